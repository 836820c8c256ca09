"""Gradient disaggregation: reconstruct every client's mean update, then apply the detectors of all rounds.

With participation A (n × N) and sums B (n × z), least squares gives mean updates W = A⁺ B. The detector of
every round classifies every row, and the majority decides. W is never formed: with D the directions of the
detectors, the logits are W Dᵀ = A⁺ (B Dᵀ), and B Dᵀ (n × n) is computed once for all prefixes.

Source: Lam et al. 2021, "Gradient Disaggregation", ICML, section 4 (here A is known); as the baseline of
Kerkouche et al. 2023, arXiv:2303.03908, section 5.1.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.property.evidence import Evidence
from glasshouse.attacks.property.readers import SumReader, sums_card
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Disaggregation(SumReader):
    """Majority of the rounds' detectors on the disaggregated updates; the score is the share of votes.

    Args:
        looks_for: name of the registered property.
        settings: arguments of the property.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
    """

    card: ClassVar[Card] = sums_card(
        "Gradient disaggregation",
        "clients' mean updates from sums over rounds, judged by every round's detector",
        source="Lam et al. 2021, arXiv:2106.06089",
        strength=1.0,
    )

    name: ClassVar[str] = "disaggregation"

    def judge(self, evidence: Evidence, lengths: tuple[int, ...], *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Scores are shares of votes, in [0, 1]."""
        del rng  # no draws beyond the evidence
        scores = torch.stack([votes(evidence.upto(n)) for n in lengths])
        return scores, scores > 0.5


def votes(evidence: Evidence) -> Tensor:
    """Share of the rounds' detectors that detect the property in each client's mean update, (N,)."""
    inverse: Tensor = torch.linalg.pinv(evidence.participation)  # (N, n)
    logits = (inverse @ evidence.kernel.sum(0)) + evidence.offset.sum(1)
    return (logits > 0).double().mean(1)

"""Every client's mean feature by ridge regression, with rounds weighted by their detector's separation.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 5.2.3, equation (10), and section 6.2, "REG".
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.property.evidence import Evidence
from glasshouse.attacks.property.readers import SumReader, normal_equations, sums_card
from glasshouse.limits import NotNegative
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Reg(SumReader):
    """Weighted ridge; a client has the property when its mean feature is above 0.

    There is no intercept, so the ridge shrinks towards 0, the detector's boundary.

    Args:
        looks_for: name of the registered property.
        settings: arguments of the property.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
        ridge: λ, >= 0, in units of a round's weight.
    """

    card: ClassVar[Card] = sums_card(
        "REG", "clients' features from sums over rounds, by weighted ridge regression", strength=1.0
    )

    name: ClassVar[str] = "reg"
    ridge: NotNegative = 5.0

    def judge(self, evidence: Evidence, lengths: tuple[int, ...], *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Scores are mean features (over the t features)."""
        del rng  # no draws beyond the evidence
        scores = expected_features(evidence, lengths, ridge=self.ridge).mean(2)
        return scores, scores > 0


def expected_features(evidence: Evidence, lengths: tuple[int, ...], *, ridge: float) -> Tensor:
    """The clients' mean features G̃ at every prefix, (P, N, t): one pass, one Cholesky per prefix."""
    left, right = normal_equations(evidence, lengths, 1 - evidence.overlap)
    # A tiny ridge keeps prefixes solvable in which a client never took part, even if ridge = 0.
    left += max(ridge, 1e-9) * torch.eye(left.shape[-1], dtype=left.dtype)
    return torch.cholesky_solve(right[..., None], torch.linalg.cholesky(left))[..., 0].transpose(1, 2)

"""Every client's mean feature by ordinary least squares on the features of the sums.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 6.2, "OLS": equation (10) with equal weights and no
regularisation; below N rounds the solution of smallest norm.
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
class Ols(SumReader):
    """Least squares; a client has the property when its mean feature is above 0, the detector's boundary.

    Args:
        looks_for: name of the registered property.
        settings: arguments of the property.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
    """

    card: ClassVar[Card] = sums_card(
        "OLS", "clients' features from sums over rounds, by least squares", strength=1.0
    )

    name: ClassVar[str] = "ols"

    def judge(self, evidence: Evidence, lengths: tuple[int, ...], *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Scores are mean features (over the t features)."""
        del rng  # no draws beyond the evidence
        a, g = evidence.participation, evidence.features
        scores = torch.stack([least_squares(a[:n], g[:n]) for n in lengths])
        return scores, scores > 0


def least_squares(participation: Tensor, features: Tensor) -> Tensor:
    """Mean feature of each client, averaged over t: (n, N) and (n, t) → (N,)."""
    solution: Tensor = torch.linalg.lstsq(participation, features, driver="gelsd").solution
    return solution.mean(1)

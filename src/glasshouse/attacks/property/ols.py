"""Every client's mean feature by ordinary least squares on the features of the sums.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 6.2, "OLS": equation (10) with equal weights and no
regularisation; below N rounds the solution of smallest norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.property.readers import (
    CONTROL,
    Settings,
    check_settings,
    claims,
    needs_of,
    prefixes,
    read,
)
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class Ols:
    """Least squares; a client has the property when its mean feature is above 0, the detector's boundary.

    Args:
        looks_for, settings: registered property, and its arguments.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
    """

    card: ClassVar[Card] = Card(
        summary="clients' features from sums over rounds, by least squares",
        source="Kerkouche et al. 2023, arXiv:2303.03908",
        threat="honest-but-curious server under secure aggregation",
        grants=("auxiliary",),
        control=CONTROL,
    )

    looks_for: str = "membership"
    settings: Settings = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    every: int = 10

    def __post_init__(self) -> None:
        check_settings("ols", self.looks_for, self.settings, self.method, self.every)

    @property
    def needs(self) -> Needs:
        return needs_of(self.looks_for, self.settings)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Scores are mean features (over the t features)."""
        del rng  # no draws beyond the evidence
        evidence = read(view, looks_for=self.looks_for, settings=self.settings, method=self.method)
        lengths = prefixes(len(evidence.rounds), self.every)
        a, g = evidence.participation, evidence.features
        scores = torch.stack([least_squares(a[:n], g[:n]) for n in lengths])
        return claims(evidence, lengths, scores, scores > 0)


def least_squares(participation: Tensor, features: Tensor) -> Tensor:
    """Mean feature of each client, averaged over t: (n, N) and (n, t) → (N,)."""
    solution: Tensor = torch.linalg.lstsq(participation, features, driver="gelsd").solution
    return solution.mean(1)

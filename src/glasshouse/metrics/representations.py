"""Metrics of claimed feature vectors: are they those of the private examples?

Shape letters: B private examples, R vectors claimed, D features.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.metrics.base import (
    ClaimKind,
    Hits,
    Reads,
    ScoreContext,
    Scores,
    nothing_claimed,
    rate_wording,
)
from glasshouse.registry import Card

SAME = 1e-2
"""Relative distance below which a claimed vector counts as that of a private example."""


def matches(
    claimed: Tensor, truth: Tensor, *, tolerance: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the claimed vectors (R,) and the private examples (B,) that match, each at most once.

    Raises:
        BadValue: shapes do not match, or a value is not finite.

    Examples:
        >>> claimed, truth = torch.tensor([[1.0, 0.0], [1.0, 0.0], [5.0, 5.0]]), torch.tensor([[1.0, 0.0]])
        >>> [part.tolist() for part in matches(claimed, truth, tolerance=1e-3)]
        [[True, False, False], [True]]
    """
    fits = claimed.ndim == truth.ndim == 2 and claimed.shape[1:] == truth.shape[1:] and len(truth)
    if not fits or not bool(claimed.isfinite().all() and truth.isfinite().all()):
        raise BadValue(
            "representations",
            needs="finite vectors (R, D) and (B, D), B > 0",
            got=f"claimed {tuple(claimed.shape)}, true {tuple(truth.shape)}",
            fix="score a claim against the batch that it is about, with the same features",
        )
    distances = torch.cdist(truth.double(), claimed.double(), compute_mode="donot_use_mm_for_euclid_dist")
    near = (distances <= tolerance * truth.double().norm(dim=1, keepdim=True)).numpy()
    rows, columns = scipy.optimize.linear_sum_assignment(~near)
    hit = near[rows, columns]
    hits, true = np.zeros(len(claimed), dtype=bool), np.zeros(len(truth), dtype=bool)
    hits[columns[hit]], true[rows[hit]] = True, True
    return hits, true


class RepresentationMetric(Hits):
    """Base class of metrics of claimed feature vectors."""

    claim: ClassVar[ClaimKind] = "representations"
    reads: ClassVar[Reads] = "vectors"
    against: ClassVar[Reads] = "vectors"

    def chance(self, context: ScoreContext) -> float | None:
        """0: a vector of hundreds of numbers cannot be guessed."""
        del context
        return 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Leakage(RepresentationMetric):
    """Share of the private examples whose representation was recovered: 1 per recovered example, else 0.

    Args:
        tolerance: relative distance up to which two vectors count as equal; an example's own vector is
            recovered up to float32 rounding, another's is hardly ever closer than 0.1.
    """

    card = Card(
        summary="share of the private examples whose features were read from the update",
        source="Dabholkar et al. 2025 (Maui), section 5.2.1 (IR leakage rate)",
    )
    wording = rate_wording(
        label="representations recovered",
        sentence="read the model's inner description of {} of the private examples",
        headline="The model's inner description of {} read",
        explanation="Share of the private examples whose feature vector inside the model was read "
        "exactly: higher is worse, guessing gets 0 %.",
        severity="descriptions",
        order=20,
        chance="0: nobody guesses a vector of hundreds of numbers",
    )

    tolerance: float = SAME

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        del context
        return matches(claimed, truth, tolerance=self.tolerance)[1].astype(np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class LeakagePrecision(RepresentationMetric):
    """Share of the claimed representations that are a private example's: 1 per vector that is, else 0.

    Args:
        tolerance: as for ``leakage``.

    Raises:
        NothingClaimed: no vector was claimed.
    """

    card = Card(summary="share of the representations that an attack claims which are a private example's")
    wording = rate_wording(
        label="precision of what was read",
        sentence="read representations of which {} are real",
        explanation="Share of the feature vectors claimed by the attack that belong to a private example:"
        " higher is worse, guessing gets 0 %.",
        severity="other",
        order=415,
        chance="0: as for leakage",
    )

    tolerance: float = SAME

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        del context
        if not len(claimed):
            raise nothing_claimed("leakage_precision", "claimed vector", "leakage")
        return matches(claimed, truth, tolerance=self.tolerance)[0].astype(np.float64)

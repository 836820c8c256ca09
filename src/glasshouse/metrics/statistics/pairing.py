"""Permutation test of whether claims match their own victims better than other victims.

A claim without information about its victim scores on it as on any other: the score on its own victim is
exchangeable with its other scores. The share of random draws that do as well is an exact p-value, however
skewed the scores are and however much claims differ from each other.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import BadValue
from glasshouse.metrics.statistics.permutation import EXCHANGES, LISTED, Floats, GuessTest
from glasshouse.rng import Rng

ROUNDING = 1e-12
"""Differences up to this, relative to the largest score, count as zero."""


def compare_with_others(
    values: ArrayLike, others: Sequence[ArrayLike], *, rng: Rng, level: float = 0.95
) -> GuessTest | None:
    """Compare the mean score of claims on their own victims with random draws from each claim's scores.

    The statistic is the mean gain: a claim's score on one victim minus its mean on the others. All draws are
    enumerated where there are at most 5,000, else 9,999 random ones and the true one are used. Exact where
    the scores of each claim are exchangeable and claims are independent. Differences between victims make it
    conservative, since a draw may use one victim twice and the truth uses each once.

    Args:
        values: ``(n,)``, each claim's score on its own victim, larger leaks more; finite.
        others: each claim's scores on other victims, at least one; finite.
        rng: stream of the draws.
        level: coverage of the two-sided interval to which ``low`` belongs.

    Returns:
        The test; its lower end is the largest gain that it rejects, computed by subtracting the gain from the
        scores on the claims' own victims. None where there are too few draws to reject anything: 40 at most
        for 95 %, so for fewer than 4 claims with two others each, or 6 with one.

    Raises:
        BadValue: a claim has no other score, or a score is not finite.

    Source:
        Pitman 1937, "Significance tests which may be applied to samples from any populations", JRSS
        Supplement 4(1), 119-130; Phipson & Smyth 2010, arXiv:1603.05766 (random draws).

    Examples:
        >>> test = compare_with_others([9.0, 8.0, 9.5, 8.5], [[1.0, 2.0]] * 4, rng=Rng.root(0))
        >>> round(test.p, 4), test.low
        (0.0123, 6.25)
    """
    own = np.asarray(values, dtype=np.float64)
    rows = [np.asarray(row, dtype=np.float64) for row in others]
    _check(own, rows)
    gaps, weights = _gaps(own, rows)
    tail, counts = (1 - level) / 2, np.array([1 + len(row) for row in rows])
    if math.prod(counts.tolist()) * tail <= 1 + ROUNDING:
        return None
    draws = _draws(counts, rng)
    swapped_weight = (weights * (draws > 0)).sum(1)
    losses = (weights * gaps[np.arange(len(own)), draws]).sum(1)
    largest = np.abs(np.concatenate([own, *rows])).max()
    losses[np.abs(losses) <= ROUNDING * len(own) * largest] = 0
    # A draw does as well as the truth once a gain of at least ``bound`` is subtracted from the true scores.
    bound = np.sort(
        np.divide(losses, swapped_weight, out=np.full(len(draws), -np.inf), where=swapped_weight > 0)
    )
    low = float(bound[math.ceil(tail * len(bound) - ROUNDING) - 1])
    return GuessTest(p=float((bound <= 0).mean()), low=low)


def _gaps(own: Floats, rows: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Own score minus each of a claim's scores, its own first, (n, 1 + most others); the claims' weights."""
    gaps = np.zeros((len(own), 1 + max(map(len, rows))))
    for number, row in enumerate(rows):
        gaps[number, 1 : 1 + len(row)] = own[number] - row
    return gaps, np.array([1 + 1 / len(row) for row in rows])


def _draws(counts: NDArray[np.int64], rng: Rng) -> NDArray[np.int64]:
    """Index of the score chosen for each draw and claim, (D, n); 0 is its own, and one draw is all 0."""
    if math.prod(counts.tolist()) <= LISTED:
        return np.indices(tuple(counts.tolist())).reshape(len(counts), -1).T
    number = min(EXCHANGES, 20_000_000 // len(counts))
    draws = rng.numpy().integers(0, counts, (1 + number, len(counts)))
    draws[0] = 0
    return draws


def _check(own: Floats, rows: Sequence[Floats]) -> None:
    shapes = own.ndim == 1 and len(own) == len(rows) > 0 and all(r.ndim == 1 and len(r) for r in rows)
    if not (shapes and np.isfinite(own).all() and all(np.isfinite(row).all() for row in rows)):
        raise BadValue(
            "comparison with other victims",
            needs="for each of n claims a finite score, and at least one finite score on another victim",
            got=f"shape {own.shape}, and {[row.shape for row in rows]}",
            fix="leave out claims that could not be scored on any other victim",
        )

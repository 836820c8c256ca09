"""Do claims know private examples at all, be it others than their own?

An attack that mixes up its clients rebuilds everybody and gains nothing about anyone by name. Its claims are
nearest to *some* private example more often than to held-out ones, which a claim that knows nobody is not.

One private example, claimed of everybody, is nearest to a private one no more often than luck allows; but it
is so much nearer to it than to any other that luck does not explain it.

Shape letters: k claims, n private examples, M held-out examples.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.metrics.statistics.units import Numbers
from glasshouse.rng import Rng

ORDERS: Final = 999
"""Orders that are drawn: the smallest p-value is 0.001."""
ON_ALL: Final = 0.8
"""Share of the level that is spent on what all claims have in common; single copies need little of it."""


def strangers_p(
    matches: Numbers,
    heldout: Numbers,
    own: NDArray[np.bool_],
    strata: NDArray[np.int64],
    heldout_strata: NDArray[np.int64],
    *,
    rng: Rng,
) -> float:
    """The p-value of "claims are nearest to private examples of others as often as to held-out ones".

    Counts the claims whose best match, their own examples left out, is private; and in how many orders, in
    which examples of one stratum exchange their parts, the count is as large. What all claims have in common
    (a mean, one picture for all) has one best match and proves nothing.

    Args:
        matches: (k, n), larger is nearer.
        heldout: (k, M).
        own: (k, n), examples that a claim is about, or near-duplicates of these.
        strata: (n,), labels; only examples of one label exchange their parts.
        heldout_strata: (M,).
        rng: stream of the orders, and of ties.

    Examples:
        >>> scores = np.roll(np.eye(8), 1, axis=1)  # everybody's, under the next one's name
        >>> one = np.zeros(8, dtype=np.int64)
        >>> strangers_p(scores, np.zeros((8, 8)), np.eye(8) > 0, one, one, rng=Rng.root(0)) < 0.01
        True
    """
    random = np.random.default_rng(rng.seed())
    others = np.where(own, -np.inf, matches)
    scores = np.concatenate([others, heldout], axis=1)
    shuffled = random.permutation(scores.shape[1])  # of equal scores any may be the best
    best = shuffled[scores[:, shuffled].argmax(1)]
    every = np.concatenate([strata, heldout_strata])
    private = np.arange(len(every)) < len(strata)
    parts = np.tile(private, (ORDERS, 1))
    for label in np.unique(every):
        among = np.flatnonzero(every == label)
        parts[:, among] = random.permuted(parts[:, among], axis=1)
    as_large = parts[:, best].sum(1) >= private[best].sum()
    return float((1 + as_large.sum()) / (1 + ORDERS))


def copied_p(
    distances: Numbers,
    private: NDArray[np.bool_],
    strata: NDArray[np.int64],
    alike: Callable[[int], NDArray[np.bool_]],
    *,
    recurring: float = 0.0,
) -> float:
    """The p-value of "no claim, and not what all have in common, was made from a private example".

    A claim that knows nobody is nearest to a private example with the chance of these among all of that
    label, and its distance to that one is at most a share t of its distance to any other with a chance of at
    most t: near a point, the number of examples within a distance grows at least as fast as the distance.
    Bonferroni's correction is over the claims; beside each of them their mean distance is a claim of its own,
    on which most of the level is spent: a blurred copy is found by it alone.

    Args:
        distances: (k, n + M), of different claims to examples; roots, where they are of squares.
        private: (n + M,).
        strata: (n + M,), labels; within one, private and held-out examples are exchangeable.
        alike: which examples are near-duplicates of one, itself too, (n + M,).
        recurring: share of the held-out examples that have a near-duplicate among the others: so often an
            exact copy is none of anybody's.

    Examples:
        >>> far = np.array([[0.001, 1.0, 1.1, 1.2], [1.0, 1.1, 1.2, 1.3]])
        >>> first = np.arange(4) < 1
        >>> round(copied_p(far, first, np.zeros(4, dtype=int), lambda one: np.arange(4) == one), 4)
        0.0025
    """
    claims = len(distances)
    rows = [(row, claims / (1 - ON_ALL)) for row in distances] + [(distances.mean(0), 1 / ON_ALL)]
    best = 1.0
    for row, tests in [(distances[0], 1.0)] if claims == 1 else rows:
        nearest = int(row.argmin())
        if not private[nearest]:
            continue
        others = ~alike(nearest)
        if not private[~others].all() or not others.any():
            continue  # a held-out example is as near as can be told
        chance = float(private[strata == strata[nearest]].mean())
        ratio = float(row[nearest] / max(row[others].min(), 1e-300))
        best = min(best, tests * chance * max(ratio, recurring))
    return min(1.0, best)

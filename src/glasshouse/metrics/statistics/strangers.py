"""Do claims know private examples at all, be it others than their own?

An attack that mixes up its clients rebuilds everybody and gains nothing about anyone by name. Its claims are
nearest to *some* private example more often than to held-out ones, which a claim that knows nobody is not.

Shape letters: k claims, n private examples, M held-out examples.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.metrics.statistics.units import Numbers
from glasshouse.rng import Rng

ORDERS: Final = 999
"""Orders that are drawn: the smallest p-value is 0.001."""


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

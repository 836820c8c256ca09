"""Are claims most like their own examples, or do they change with them, more often than luck explains?

Shape letters: k comparisons, each of a claim's own examples with others of their label; n claims.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.metrics.statistics.units import Numbers
from glasshouse.rng import Rng

__all__ = ["dependence_p", "recognised_p"]

ORDERS: Final = 999
"""Orders that are drawn: the smallest p-value is 0.001."""
Pair = tuple[Numbers, Numbers]
"""Distances between claims, and between the truths that they are about."""


def recognised_p(first: ArrayLike, chances: ArrayLike) -> float:
    """The p-value of "a claim is most like its own examples no more often than by luck".

    The number of claims whose own example comes first is a sum of independent trials, each with the chance
    that one of the own examples is the largest of all that were compared.

    Args:
        first: ``(k,)``, whether an own example is more like the claim than every other one.
        chances: ``(k,)``, own examples as a share of all that were compared, in [0, 1].

    Returns:
        The one-sided p-value; 1 where nothing was compared.

    Source:
        Wang 1993, "On the number of successes in independent trials", Statistica Sinica 3(2), 295-312 (the
        Poisson binomial distribution).

    Examples:
        >>> round(recognised_p([True, True, False], [0.1, 0.1, 0.1]), 4)
        0.028
    """
    hits, probabilities = np.asarray(first, dtype=bool), np.asarray(chances, dtype=np.float64)
    distribution = np.ones(1)
    for chance in probabilities:
        distribution = np.convolve(distribution, (1 - chance, chance))
    return float(min(1.0, distribution[int(hits.sum()) :].sum()))


def dependence_p(
    blocks: Sequence[Sequence[Pair]], strata: Sequence[NDArray[np.int64]], *, rng: Rng
) -> tuple[float, float]:
    """The p-values of "what is claimed does not depend on whom it is about", in the same part and in another.

    The distance covariance of claims and truths is large where one depends on the other in any way, also
    where no claim is like its truth: inverted, of other scales, under other names of the values. It is
    compared with that in orders in which victims of one stratum exchange their truths. Of several parts of an
    example, such as the columns of a row, the largest covariance counts, each in units of its own spread over
    the orders.

    Args:
        blocks: of each federation and part the distances between claims, (n, n), and those between the truths
            that they are about, (n, n); the same parts in each.
        strata: of each federation the victims' strata, (n,).
        rng: stream of the orders.

    Returns:
        That of the same part, and that of two different ones, the first part, an example as a whole, aside;
        1 where nothing varies.

    Source:
        Szekely, Rizzo & Bakirov 2007, "Measuring and testing dependence by correlation of distances", Annals
        of Statistics 35(6), 2769-2794; the largest of several by Westfall & Young 1993. We differ in the
        orders within strata.

    Examples:
        >>> x = np.arange(12.0)
        >>> apart = np.abs(x[:, None] - x[None])
        >>> one = np.zeros(12, dtype=np.int64)
        >>> dependence_p([[(apart / 2, apart)]], [one], rng=Rng.root(0))
        (0.001, 1.0)
        >>> dependence_p([[(0 * apart, apart)]], [one], rng=Rng.root(0))
        (1.0, 1.0)
    """
    random = np.random.default_rng(rng.seed())
    count = max((len(parts) for parts in blocks), default=0)
    sums = np.zeros((1 + ORDERS, count, count))  # the first row is the order as it is
    for parts, labels in zip(blocks, strata, strict=True):
        orders = np.tile(np.arange(len(labels)), (1 + ORDERS, 1))
        for label in np.unique(labels):
            among = np.flatnonzero(labels == label)
            orders[1:, among] = random.permuted(orders[1:, among], axis=1)
        sums[:, : len(parts), : len(parts)] += _covariances(parts, orders)
    same = np.eye(count, dtype=bool)
    other = ~same
    other[:1], other[:, :1] = False, False
    return _largest_p(sums[:, same]), _largest_p(sums[:, other])


def _largest_p(sums: Numbers) -> float:
    """The p-value of the largest of several sums, (orders, parts), in units of their spreads."""
    # The same terms in another order are ties, and a part that does not change says nothing.
    spread = sums.std(0)
    varies = spread > 1e-9 * np.abs(sums).max(0, initial=0.0)
    if not varies.any():
        return 1.0
    largest = ((sums - sums.mean(0)) / np.where(varies, spread, 1))[:, varies].max(1)
    return float((largest >= largest[0] - 1e-9).mean())


def _covariances(parts: Sequence[Pair], orders: NDArray[np.int64]) -> Numbers:
    """The sums of products of centred distances under every order of the truths, (orders, parts, parts).

    Of every part of the claims with every part of the truths.
    """
    count = orders.shape[1]
    left, right = (np.stack([_centred(pair[side]) for pair in parts], axis=2) for side in (0, 1))
    # Distances are symmetric: half of them, and the diagonal. All parts of a pair are neighbours in memory.
    first, second = np.triu_indices(count, 1)
    halves, everything, own = left[first, second], right.reshape(count * count, -1), np.arange(count)
    found = []
    for order in orders:
        moved = everything.take(order[first] * count + order[second], axis=0)
        found.append(2 * halves.T @ moved + left[own, own].T @ right[order, order])
    return np.stack(found)


def _centred(distances: Numbers) -> Numbers:
    return np.asarray(
        distances - distances.mean(0) - distances.mean(1, keepdims=True) + distances.mean(), dtype=np.float64
    )

"""Does every claim match its own victim better than the other victims? A permutation test on all pairs.

Each claim is scored against each victim. If the claims know nothing about whose they are, handing them out to
the victims in any other order gives scores as good as the true order: the share of orders that do as well is
an exact p-value, whatever the scores are and however much claims and victims differ from each other.

Shape letters: n victims and their claims, D orders.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import BadValue
from glasshouse.metrics.statistics.interval import check_level
from glasshouse.metrics.statistics.pairing import compare_with_others
from glasshouse.rng import Rng

__all__ = ["DRAWS", "LISTED_ORDERS", "ExchangeTest", "group_alike", "merge_alike", "permutation_test"]

# | number        | what it trades               | which measurement set it        | where repeated |
# |---------------|------------------------------|---------------------------------|------------------------|
# | LISTED_ORDERS | exact p-values, milliseconds | 7! orders of 7 claims take 1 ms | test_exchange.py        |
# | DRAWS         | precision of p, milliseconds | at p = 0.025 precise to 0.003   | permutation.EXCHANGES   |
LISTED_ORDERS: Final = 5040
DRAWS: Final = 9999
_ROUNDING: Final = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True)
class ExchangeTest:
    """How much better claims match their own victims than others, and whether luck explains it.

    Attributes:
        gain: mean over claims of the score on the own victim minus the mean on the others of its stratum.
        low: the smallest gain that the data do not reject at the level asked for; above 0 exactly where ``p``
            is below (1 - level) / 2.
        high: the largest such gain.
        p: one-sided p-value of "claims match their own victims no better than others".
        exact: whether all orders were enumerated.
        n: claims that could be exchanged with another one.
    """

    gain: float
    low: float
    high: float
    p: float
    exact: bool
    n: int


def permutation_test(
    scores: ArrayLike,
    strata: ArrayLike | None = None,
    *,
    rng: Rng,
    draws: int = DRAWS,
    level: float = 0.95,
) -> ExchangeTest | None:
    """Test whether claims match their own victims better than the other victims of their stratum.

    The statistic is the sum of scores over the pairs of an order; the true order is the diagonal. Both ends
    of the interval invert the test: a gain g is rejected if, once g is subtracted from the diagonal, at most
    (1 - level) / 2 of all orders do as well as the true one (for ``high``: as badly).

    Where so few orders exist that none could be rejected (four claims or fewer), each claim draws its victim
    independently of the others, which is conservative (``pairing.compare_with_others``).

    Args:
        scores: ``(n, n)``, claim i against victim j in row i and column j; larger leaks more; finite.
        strata: ``(n,)``, integers: only claims of equal strata are exchanged, e.g. the victims' labels. A
            claim alone in its stratum says nothing and is left out. None: all may be exchanged.
        rng: stream of the random orders.
        draws: number of random orders where there are more than ``LISTED_ORDERS``.
        level: coverage of the interval from ``low`` to ``high``.

    Returns:
        The test; None where no result at all could be significant: fewer than 4 claims of one stratum, or
        only strata that small.

    Raises:
        BadValue: scores are not square or not finite, or strata are of another length.

    Source:
        Pitman 1937, "Significance tests which may be applied to samples from any populations", JRSS
        Supplement 4(1), 119-130; Good 2005, "Permutation, Parametric and Bootstrap Tests of Hypotheses",
        section 3.6 (restricted permutations); Phipson & Smyth 2010, arXiv:1603.05766 (random draws).

    Examples:
        >>> test = permutation_test(10 * np.eye(5), rng=Rng.root(0))
        >>> test.gain, round(test.p, 4), test.exact
        (10.0, 0.0083, True)
    """
    check_level("exchange of claims", level)
    x, groups = _check(scores, strata)
    blocks = [np.flatnonzero(groups == g) for g in np.unique(groups)]
    blocks = [block for block in blocks if len(block) > 1]
    if not blocks:
        return None
    kept = np.concatenate(blocks)
    tail = (1 - level) / 2
    total = math.prod(math.factorial(len(block)) for block in blocks)
    gaps = [x[i, i] - np.delete(x[i, block], np.flatnonzero(block == i)) for block in blocks for i in block]
    gain = float(np.mean([gap.mean() for gap in gaps]))
    if total * tail < 1 - _ROUNDING:
        return _independent(x, blocks, gain, rng=rng, level=level)
    orders = _all_orders(blocks) if total <= LISTED_ORDERS else _random_orders(blocks, draws, rng)
    pairs = x[kept, orders]  # (D, n)
    moved = (orders != kept).sum(1)
    lost = (np.diagonal(x)[kept] - pairs).sum(1)
    lost[np.abs(lost) <= _ROUNDING * len(kept) * np.abs(x).max()] = 0
    # An order does as well as the true one if the gain that is subtracted from the diagonal reaches this.
    reached = np.divide(lost, moved, out=np.full(len(orders), -np.inf), where=moved > 0)
    first = math.ceil(tail * len(orders) - 1e-9) - 1
    ascending = np.sort(reached)
    # The true order does as badly as itself: it counts on the other side for the upper end.
    descending = np.sort(np.where(moved > 0, reached, np.inf))[::-1]
    p = float((reached <= 0).mean())
    low, high = float(ascending[first]), float(descending[first])
    return ExchangeTest(
        gain=gain, low=min(low, gain), high=max(high, gain), p=p, exact=total <= LISTED_ORDERS, n=len(kept)
    )


def _all_orders(blocks: list[Ints]) -> Ints:
    """Every order that exchanges claims within blocks, (D, n); the first is the true one."""
    parts = [np.array(list(itertools.permutations(block)), dtype=np.int64) for block in blocks]
    rows = np.indices(tuple(len(part) for part in parts)).reshape(len(parts), -1)
    return np.concatenate([part[row] for part, row in zip(parts, rows, strict=True)], axis=1)


def _random_orders(blocks: list[Ints], draws: int, rng: Rng) -> Ints:
    """The true order and ``draws`` random ones, (1 + draws, n)."""
    random = rng.child("orders").numpy()
    parts = [random.permuted(np.tile(block, (1 + draws, 1)), axis=1) for block in blocks]
    orders = np.concatenate(parts, axis=1)
    orders[0] = np.concatenate(blocks)
    return orders


def _independent(
    x: Floats, blocks: list[Ints], gain: float, *, rng: Rng, level: float
) -> ExchangeTest | None:
    """The test of few claims: each draws its victim whatever the others draw."""
    claims = [(i, block) for block in blocks for i in block]
    own = [float(x[i, i]) for i, _ in claims]
    others = [x[i, block[block != i]] for i, block in claims]
    above = compare_with_others(own, others, rng=rng, level=level)
    below = compare_with_others([-v for v in own], [-row for row in others], rng=rng, level=level)
    if above is None or below is None:
        return None
    low, high = min(above.low, gain), max(-below.low, gain)
    return ExchangeTest(gain=gain, low=low, high=high, p=above.p, exact=True, n=len(claims))


def group_alike(distances: ArrayLike, *, near: float) -> Ints:
    """Number the groups of victims that are too alike to tell apart, (n,): equal numbers are one victim.

    Two examples belong together if they, or others between them, are at most ``near`` apart (single linkage).
    Numbers count up from 0 in the order of the groups' first members.

    Args:
        distances: ``(n, n)``, symmetric, between the true examples, by their modality; finite.
        near: largest distance between near-duplicates, >= 0.

    Raises:
        BadValue: distances are not square, symmetric and finite, or ``near`` is negative.

    Examples:
        >>> group_alike([[0, 9, 1], [9, 0, 9], [1, 9, 0]], near=2.0).tolist()
        [0, 1, 0]
    """
    d = _square("groups of victims too alike", distances)
    if not (near >= 0 and np.allclose(d, d.T, rtol=1e-6, atol=1e-9) and (d >= 0).all()):
        raise BadValue(
            "groups of victims too alike",
            needs="symmetric distances, and near, all >= 0",
            got=f"near = {near}, smallest distance {d.min()}",
            fix="take the distances from the modality of the examples",
        )
    _, found = scipy.sparse.csgraph.connected_components(d <= near, directed=False)
    _, first, numbers = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers].astype(np.int64)


def merge_alike(scores: ArrayLike, groups: ArrayLike) -> Floats:
    """Scores between groups of victims, (k, k): the mean over the pairs of their members.

    Of a group's own pairs all count, also those of one member's claim with another's example: whose of them
    it is cannot be told.

    Args:
        scores: ``(n, n)``, claim i against victim j.
        groups: ``(n,)``, from :func:`group_alike`.

    Examples:
        >>> merge_alike([[5, 5, 1], [5, 5, 1], [0, 0, 7]], [0, 0, 1]).tolist()
        [[5.0, 1.0], [0.0, 7.0]]
    """
    x, labels = _check(scores, groups)
    member = (labels[None] == np.unique(labels)[:, None]).astype(np.float64)  # (k, n)
    member /= member.sum(1, keepdims=True)
    return np.asarray(member @ x @ member.T)


def _check(scores: ArrayLike, strata: ArrayLike | None) -> tuple[Floats, Ints]:
    x = _square("exchange of claims", scores)
    groups = np.zeros(len(x), dtype=np.int64) if strata is None else np.asarray(strata)
    if groups.shape != (len(x),):
        raise BadValue(
            "exchange of claims",
            needs=f"a stratum for each of {len(x)} claims",
            got=f"shape {groups.shape}",
            fix="give the label or group of each victim",
        )
    return x, groups.astype(np.int64)


def _square(subject: str, table: ArrayLike) -> Floats:
    x = np.asarray(table, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] != x.shape[1] or len(x) == 0 or not np.isfinite(x).all():
        raise BadValue(
            subject,
            needs="one finite number for each pair of n >= 1 victims, (n, n)",
            got=f"shape {x.shape}, {int((~np.isfinite(x)).sum())} not finite",
            fix="score a claim that is missing as the worst possible, and leave out victims without one",
        )
    return x

"""Rows of earlier cells shared out among the leaves of one more tree: the likeliest that fit its sums.

Where a leaf is met by so many cells that its numbers cannot all be listed (:mod:`.narrow`), those that public
rows make likely still can. For one leaf after the other, each cell gives so many of its rows; the likeliest
choices of one half of the cells are listed, and those of the other half are looked up by what H still needs.
H and G say some forty bits about each leaf but the last, which takes the rest. What fits is a guess: numbers
that were not listed may fit as well.

Source: our own; meeting in the middle as in :mod:`.narrow`, over lists in order of likelihood.

Breaks when: rows lie where public ones do not, so that the right numbers are not among the likeliest; or all
leaves of a tree together say less than the rows' places hold.

Shape letters: C cells, K earlier cells, L leaves of a tree, N rows of other people, F choices that fit.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from scipy.special import gammaln

from glasshouse.attacks.trees.algebra import Floats, Ints, Margins, Sums, derivatives
from glasshouse.attacks.trees.boxes import Background, Cells
from glasshouse.attacks.trees.narrow import ROW, SUM, Ranges, conserve, halve, meet

WEIGHT: Final = 0.5
"""What the nearest public rows count, in rows of the cell itself."""
FLOOR: Final = 0.3
"""What the size of a leaf counts, in rows of the cell itself."""
LISTED: Final = 100_000
"""Choices of one half of the cells that are listed."""
KEPT: Final = 30
"""Choices for the leaves so far that are followed to the next leaf."""
DECAY: Final = 2.0
"""How much less a public row counts for each earlier tree that puts it into another leaf: a power of e."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Earlier cells that fall into those of one more tree.

    Attributes:
        total: rows of each earlier cell, (K,).
        parents: the earlier cell of each cell, (C,).
        leaf: the leaf of each cell, (C,).
        margins: of each cell before the tree, (C,).
        sums: of the tree's leaves.
        ranges: what is known of the cells.
        weights: how likely a row of the earlier cell is to fall into each, (C,).
    """

    total: Ints
    parents: Ints
    leaf: Ints
    margins: Margins
    sums: Sums
    ranges: Ranges
    weights: Floats


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """Some choices of numbers, likeliest first.

    Attributes:
        score: logarithm of how likely each is, (F,).
        counts: rows of each cell, (F, C).
    """

    score: Floats
    counts: Ints

    def best(self, amount: int) -> "Choices":
        """The likeliest ones."""
        kept = np.argsort(-self.score, kind="stable")[:amount]
        return Choices(score=self.score[kept], counts=self.counts[kept])


def leaves_of_public(sums: list[Sums], background: Background) -> Ints:
    """The leaf of each tree in which public rows lie, (N, T); without public rows (0, T)."""
    if background.rows is None:
        return np.zeros((0, len(sums)), dtype=np.int64)
    rows = background.rows[:, None]
    inside = [((rows >= tree.lower) & (rows < tree.upper)).all(2) for tree in sums]
    return np.stack([there.argmax(1) for there in inside], 1)


def weights_of(cells: Cells, public: Ints, sums: Sums) -> Floats:
    """How likely a row of an earlier cell is to fall into each cell, as rows of that cell seen before, (C,).

    Public rows count by how many earlier trees put them into the cell's leaves, beside the nearest of them.
    """
    trees, leaf = cells.paths.shape[1], cells.paths[:, -1]
    weights = FLOOR * (sums.hessian / sums.hessian.sum())[leaf] + 1e-3
    if not len(public):
        return np.asarray(weights)
    away = (public[:, None, : trees - 1] != cells.paths[:, : trees - 1]).sum(2)
    nearest = away.min(0)
    there = public[:, trees - 1, None] == leaf
    return np.asarray(weights + WEIGHT * (np.exp(-DECAY * (away - nearest)) * there).sum(0))


def fix(ranges: Ranges, counts: Ints, parents: Ints, before: Ranges) -> Ranges:
    """Ranges in which every cell has these numbers of rows, of labels that the earlier cells can have."""
    low, high = ranges.low.copy(), ranges.high.copy()
    low[:, 2] = high[:, 2] = counts
    high[:, :2] = np.minimum(high[:, :2], counts[:, None])
    low[:, :2] = np.minimum(low[:, :2], high[:, :2])
    conserve(low, high, ((parents, before),))
    return Ranges(low=low, high=high)


def likely_counts(split: Split) -> Choices:
    """Rows of every cell that fit the sums of all leaves, likeliest first; none: nothing listed fits."""
    found = Choices(score=np.zeros(1), counts=np.zeros((1, len(split.leaf)), dtype=np.int64))
    order = np.argsort(split.sums.hessian, kind="stable")
    for position, leaf in enumerate(order.tolist()):
        later = np.isin(split.leaf, order[position + 1 :])
        parts = [_of_leaf(split, leaf, later, counts) for counts in found.counts]
        if not parts:
            break
        # Each way to go on keeps the likelihood of what it goes on from.
        score = np.concatenate([s + p.score for s, p in zip(found.score, parts, strict=True)])
        found = Choices(score=score, counts=np.concatenate([p.counts for p in parts])).best(KEPT)
    return found


def _of_leaf(split: Split, leaf: int, later: np.ndarray, before: Ints) -> Choices:
    """Rows of the cells of one leaf, after those of the leaves ``before`` it, (F, C)."""
    own = np.flatnonzero(split.leaf == leaf)
    size = len(split.total)
    rest = split.total - np.bincount(split.parents, before, size).astype(np.int64)
    room = np.bincount(split.parents, split.ranges.high[:, 2] * later, size).astype(np.int64)
    needed = np.bincount(split.parents, split.ranges.low[:, 2] * later, size).astype(np.int64)
    # An earlier cell gives the leaf what the later leaves cannot take, and leaves them what they must have.
    at = split.parents[own]
    low = np.maximum(split.ranges.low[own, 2], rest[at] - room[at])
    high = np.minimum(split.ranges.high[own, 2], rest[at] - needed[at])
    missed = np.ones(size, dtype=np.bool_)
    missed[at] = False
    if (low > high).any() or (rest[missed] > room[missed]).any():
        return Choices(score=np.zeros(0), counts=np.zeros((0, len(before)), dtype=np.int64))
    others = np.bincount(split.parents, split.weights * later, size)[at]
    p, h = (part[own] for part in derivatives(split.margins))
    lists = [
        _likely(int(a), int(b), int(n), weight, other)
        for a, b, n, weight, other in zip(low, high, rest[at], split.weights[own], others, strict=True)
    ]
    score, chosen = _meet(lists, (p, h), (float(split.sums.hessian[leaf]), float(split.sums.gradient[leaf])))
    # The file says how many rows of label 1 a leaf has: not more than its cells can have.
    positives = np.round(chosen @ p - split.sums.gradient[leaf])
    most = np.minimum(chosen, split.ranges.high[own, 1]).sum(1)
    least = np.maximum(chosen - split.ranges.high[own, 0], 0).sum(1)
    good = (positives >= least) & (positives <= most)
    counts = np.repeat(before[None], int(good.sum()), 0)
    counts[:, own] = chosen[good]
    return Choices(score=score[good], counts=counts)


def _likely(low: int, high: int, total: int, weight: float, others: float) -> tuple[Floats, Ints]:
    """Numbers of ``total`` rows that fall to one side, likeliest first, with the logarithm of how likely."""
    counts = np.arange(low, high + 1)
    score = np.zeros(len(counts))
    if others > 0:
        # A row follows the rows of its cell: a beta-binomial law, whose two weights are rows seen before.
        score = (
            gammaln(counts + weight) - gammaln(counts + 1)
            + gammaln(total - counts + others) - gammaln(total - counts + 1)
        )  # fmt: skip
        score -= np.logaddexp.reduce(score)
    order = np.argsort(-score, kind="stable")
    return score[order], counts[order]


def _meet(
    lists: list[tuple[Floats, Ints]], row: tuple[Floats, Floats], wanted: tuple[float, float]
) -> tuple[Floats, Ints]:
    """Choices of one number per cell that fit H and G of a leaf: scores (F,) and numbers (F, cells)."""
    (p, h), (hessian, gradient) = row, wanted
    halves = halve(np.array([-(np.exp(score) * score).sum() for score, _ in lists]))
    (score, counts), (score_2, counts_2) = (_listed([lists[i] for i in half]) for half in halves)
    sums = counts_2 @ h[halves[1]]
    order = np.argsort(sums, kind="stable")
    score_2, counts_2 = score_2[order], counts_2[order]
    most = min(sum(float(numbers.max()) for _, numbers in lists), hessian / float(h.min(initial=0.25)) + 1)
    slack = SUM * hessian + ROW * most
    pairs = meet(hessian - counts @ h[halves[0]], sums[order], slack)
    if pairs is None:  # cells of the same h: H does not tell them apart
        return np.zeros(0), np.zeros((0, len(lists)), dtype=np.int64)
    left, right = pairs
    # G first, on sums alone: few of the pairs that fit H are looked at whole.
    slack = SUM * abs(gradient) + ROW * most
    positives = (counts @ p[halves[0]])[left] + (counts_2 @ p[halves[1]])[right] - gradient
    whole = np.abs(positives - np.round(positives)) <= slack
    left, right = left[whole], right[whole]
    chosen = np.zeros((len(left), len(lists)), dtype=np.int64)
    chosen[:, halves[0]], chosen[:, halves[1]] = counts[left], counts_2[right]
    return score[left] + score_2[right], chosen


def _listed(lists: list[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    """The likeliest choices of one number from every list, in order: scores (F,) and numbers (F, lists)."""
    score, counts = np.zeros(1), np.zeros((1, 0), dtype=np.int64)
    for more, numbers in lists:
        # Of two lists in order, place i of one and j of the other are behind i j pairs that are likelier.
        lengths = [min(len(score), LISTED // (j + 1)) for j in range(min(len(more), LISTED))]
        first = np.concatenate([np.arange(length) for length in lengths])
        second = np.repeat(np.arange(len(lengths)), lengths)
        both = score[first] + more[second]
        kept = np.argsort(-both, kind="stable")[:LISTED]
        first, second = first[kept], second[kept]
        score, counts = both[kept], np.concatenate([counts[first], numbers[second, None]], 1)
    return score, counts

"""How many rows can lie in each joint cell: leaf by leaf, by meeting in the middle, and by conservation.

A leaf of a later tree holds whole numbers N of rows of the cells before it, whose second derivatives h and
probabilities p are known: Σ h N = H, and Σ p N - G is a whole number, that of its rows of label 1. Both sums
are doubles rounded once to float32, so that few N fit: they are listed by trying all N of one half of the
cells and looking up what the other half must add. What is known of a leaf is not in the others, since the
rows of every earlier cell are shared out among the leaves; a few passes fix nearly all numbers.

Source: meeting in the middle is Horowitz & Sahni 1974, "Computing Partitions with Applications to the
Knapsack Problem", Journal of the ACM 21(2); the use is our own.

Breaks when: sums are less exact than float32 (then no N fits, and nothing is said), or a leaf has so many
rows of so many cells that the halves cannot be listed: such leaves are narrowed by the others alone.

Shape letters: C cells, L leaves of a tree, K earlier cells; ranges are of label 0, of label 1 and of both.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from glasshouse.attacks.trees.algebra import Floats, Ints, Margins, Sums, derivatives

ROW: Final = 1.2e-7
"""Error of p and of h of one row: the step of float32 above 1, by which two libraries' 1 + exp may differ."""
SUM: Final = 2.4e-7
"""Relative error of H and of G: each is rounded to float32, G as a weight that is scaled, and taken back."""
HALF: Final = 1_000_000
"""Numbers of rows of one half of a leaf's cells that are tried at most."""
PAIRS: Final = 4_000_000
"""Pairs of halves that are looked at."""
PASSES: Final = 20


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges:
    """Smallest and largest number of rows of each cell.

    Attributes:
        low: (C, 3).
        high: (C, 3).
    """

    low: Ints
    high: Ints

    @classmethod
    def exactly(cls, counts: Ints) -> "Ranges":
        """Rows of label 0 and 1, (C, 2), that are known."""
        both = np.concatenate([counts, counts.sum(1, keepdims=True)], 1)
        return cls(low=both, high=both)

    def pick(self, kept: Ints) -> "Ranges":
        """Those of some cells."""
        return Ranges(low=self.low[kept], high=self.high[kept])


def share_out(before: Ranges, parents: Ints) -> Ranges:
    """What is known of cells into which earlier ones fall, without a look at the tree."""
    high = before.high[parents]
    return Ranges(low=np.zeros_like(high), high=high)


def narrow(before: Ranges, parents: Ints, leaf: Ints, margins: Margins, sums: Sums) -> Ranges | None:
    """The ranges of the cells of one more tree; None: no numbers fit.

    Args:
        before: of the earlier cells, K of them.
        parents: the earlier cell of each cell, (C,).
        leaf: the leaf of each cell, (C,).
        margins: of each cell before the tree, (C,).
        sums: of the tree's leaves.
    """
    (p, h), found, leaves = derivatives(margins), share_out(before, parents), len(sums.leaves)
    low, high = found.low.copy(), found.high.copy()
    within = Ranges(low=np.zeros((leaves, 3), np.int64), high=np.full((leaves, 3), before.high.sum()))
    for _ in range(PASSES):
        last = low.copy(), high.copy()
        for one in np.argsort(sums.hessian):
            own = np.flatnonzero((leaf == one) & (high[:, 2] > 0))
            if not len(own) or (low[own, 2] == high[own, 2]).all():
                continue
            wanted = float(sums.hessian[one]), float(sums.gradient[one])
            fitting = fitting_counts((p[own], h[own]), low[own, 2], high[own, 2], wanted)
            if fitting is None:
                continue
            rows = fitting.sum(1)
            positives = np.round(fitting @ p[own] - wanted[1]).astype(np.int64)
            # Label 1 as often as the cells allow: the sums say how often, not where.
            good = (positives >= low[own, 1].sum()) & (positives <= high[own, 1].sum())
            if not good.any():
                return None
            fitting, rows, positives = fitting[good], rows[good], positives[good]
            low[own, 2] = np.maximum(low[own, 2], fitting.min(0))
            high[own, 2] = np.minimum(high[own, 2], fitting.max(0))
            every = np.stack([rows - positives, positives, rows], 1)
            within.low[one], within.high[one] = every.min(0), every.max(0)
            conserve(low, high, ((parents, before), (leaf, within)))
            if (low > high).any():
                return None
        if (low == last[0]).all() and (high == last[1]).all():
            break
    return Ranges(low=low, high=high)


def conserve(low: Ints, high: Ints, groups: tuple[tuple[Ints, Ranges], ...]) -> None:
    """Tighten ranges (C, 3) in place: sums over groups of cells lie in ranges, and labels add up to both."""
    for group, total in groups:
        for column in range(3):
            least, most = (np.bincount(group, part[:, column], len(total.low)) for part in (low, high))
            rest = (least[group] - low[:, column]).astype(np.int64)
            high[:, column] = np.minimum(high[:, column], total.high[group, column] - rest)
            rest = (most[group] - high[:, column]).astype(np.int64)
            low[:, column] = np.maximum(low[:, column], total.low[group, column] - rest)
    for one, other in ((0, 1), (1, 0)):
        high[:, one] = np.minimum(high[:, one], high[:, 2] - low[:, other])
        low[:, one] = np.maximum(low[:, one], low[:, 2] - high[:, other])
    high[:, 2] = np.minimum(high[:, 2], high[:, 0] + high[:, 1])
    low[:, 2] = np.maximum(low[:, 2], low[:, 0] + low[:, 1])


def fitting_counts(
    row: tuple[Floats, Floats], low: Ints, high: Ints, wanted: tuple[float, float]
) -> Ints | None:
    """All numbers of rows (F, C) of the cells of one leaf that fit its sums; None: too many to try.

    Args:
        row: p and h of a row of each cell before the tree, (C,) each.
        low: smallest numbers, (C,).
        high: largest numbers, (C,).
        wanted: H and G of the leaf.

    Examples:
        >>> p = np.array([0.3, 0.61])
        >>> h, n = p * (1 - p), np.array([2, 3])
        >>> wanted = float(h @ n), float(p @ n - 4)
        >>> fitting_counts((p, h), np.zeros(2, np.int64), np.full(2, 9), wanted).tolist()
        [[2, 3]]
    """
    (p, h), (hessian, gradient) = row, wanted
    slack = SUM * hessian + ROW * float(min(high.sum(), hessian / h.min() + 1))
    # No cell can have more rows than H leaves beside the smallest numbers of the others.
    room = hessian + slack - (h @ low - h * low)
    high = np.minimum(high, np.floor(room / h + 1e-9).astype(np.int64))
    if (high < low).any():
        return np.zeros((0, len(p)), dtype=np.int64)
    # Cells whose number is known are no part of the search.
    free = np.flatnonzero(high > low)
    rest = hessian - float((h * low).sum()) + float((h * low)[free].sum())
    halves = tuple(free[half] for half in halve(np.log((high - low)[free] + 1.0)))
    if max(float(np.log(high - low + 1.0)[half].sum()) for half in halves) > np.log(HALF):
        return None
    first, second = (_grid(low[half], high[half]) for half in halves)
    sums = second @ h[halves[1]]
    order = np.argsort(sums)
    second = second[order]
    pairs = meet(rest - first @ h[halves[0]], sums[order], slack)
    if pairs is None:
        return None
    left, right = pairs
    counts = np.repeat(low[None], len(left), 0)
    counts[:, halves[0]], counts[:, halves[1]] = first[left], second[right]
    positives = counts @ p - gradient
    rows = counts.sum(1)
    near = np.abs(counts @ h - hessian) <= SUM * hessian + ROW * rows
    whole = np.abs(positives - np.round(positives)) <= SUM * abs(gradient) + ROW * rows
    between = (np.round(positives) >= 0) & (np.round(positives) <= rows)
    return np.asarray(counts[near & whole & between])


def meet(missing: Floats, sums: Floats, slack: float) -> tuple[Ints, Ints] | None:
    """Positions of what is missing, and of rising sums that are it within ``slack``; None: too many pairs."""
    begin, end = np.searchsorted(sums, missing - slack), np.searchsorted(sums, missing + slack, side="right")
    pairs = end - begin
    if pairs.sum() > PAIRS:
        return None
    left = np.repeat(np.arange(len(missing)), pairs)
    right = np.arange(len(left)) - np.repeat(np.cumsum(pairs) - pairs, pairs) + np.repeat(begin, pairs)
    return left, right


def halve(weights: Floats) -> tuple[Ints, Ints]:
    """Positions in two halves of about the same weight."""
    halves: tuple[list[int], list[int]] = [], []
    sums = [0.0, 0.0]
    for i in np.argsort(-weights, kind="stable").tolist():
        smaller = int(sums[1] < sums[0])
        halves[smaller].append(i)
        sums[smaller] += float(weights[i])
    return np.array(halves[0], dtype=np.int64), np.array(halves[1], dtype=np.int64)


def _grid(low: Ints, high: Ints) -> Ints:
    """All whole vectors (P, k) from ``low`` to ``high``."""
    axes = [np.arange(a, b + 1) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    if not axes:
        return np.zeros((1, 0), dtype=np.int64)
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))

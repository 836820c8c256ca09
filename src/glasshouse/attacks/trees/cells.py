"""Whole numbers of rows per joint cell of several trees, from the sums of their leaves, by integer programs.

A joint cell is a non-empty intersection of one leaf per tree; all its rows have the same margin before every
tree, so h and p are constants there and every leaf gives two equations in whole numbers z[cell, label]:
Σ z h = H and Σ z (p − y) = G, within the rounding of float32.

Source: Kotsiantis et al. 2025, "TimberStrike", PETS, arXiv:2506.07605, section 4, which averages over
leaves. Where we
differ: most numbers follow leaf by leaf (:mod:`.narrow`), then exact equations at once, of as many trees as
the solver ends with; two programs per cell tell whether its number is the only one that fits; and of all
numbers that fit, those nearest to public rows are taken.

Shape letters: C cells, T trees, L leaves of a tree, F features.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.trees.algebra import Counted, Floats, Ints, Sums
from glasshouse.attacks.trees.boxes import Background, Cells, public_in, refine, start
from glasshouse.attacks.trees.narrow import Ranges, narrow, share_out
from glasshouse.attacks.trees.programs import (
    Effort,
    Program,
    certify,
    of_first,
    of_ranges,
    of_tree,
    solve,
    solve_likely,
)
from glasshouse.formats.records import TreeEnsemble

CELLS: Final = 20_000
"""Cells from which a program is not built: it would not end."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Rows of label 0 and 1 per cell.

    Attributes:
        cells: the cells.
        counts: (C, 2).
        residual: largest distance of a leaf's sum from the file's, on its rounding; at most 1: it fits.
        certain: the count is the only one that fits, (C, 2).
        trees: number of trees whose sums were used.
    """

    cells: Cells
    counts: Ints
    residual: float
    certain: NDArray[np.bool_]
    trees: int


def expected_in(cells: Cells, ranges: Ranges, counted: Counted, background: Background) -> Floats:
    """Rows of each label to be expected per cell, (C, 2), from those of other people."""
    public = public_in(cells, background)
    total, counts = counted.counts.sum(), counted.counts[cells.paths[:, 0]]
    # Of a cell without public rows, its first leaf's labels are the guess.
    first = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    labels = (public + first) / (public.sum(1, keepdims=True) + 1)
    rows = np.clip(public.sum(1) / max(public.sum(), 1) * total, ranges.low[:, 2], ranges.high[:, 2])
    return np.asarray(rows[:, None] * labels)


def count_cells(
    trees: TreeEnsemble,
    counted: Counted,
    later: list[Sums],
    *,
    reg_lambda: float,
    effort: Effort,
    background: Background,
) -> Solution:
    """Rows of each label per joint cell of the first tree and ``later`` ones.

    Ranges leaf by leaf first, then all equations at once. Where the solver does not end, those of fewer
    trees, and their cells are shared out among those of all trees like public rows.

    Args:
        trees: the document.
        counted: the first tree.
        later: the sums of the next trees, in order.
        reg_lambda: of the penalty.
        effort: of the search.
        background: of rows in general.
    """
    layers = _layers(trees, counted, later, reg_lambda=reg_lambda, background=background)
    cells = layers[-1][0]
    whole = _program(layers[-1], counted, later, reg_lambda)
    certain = np.zeros((len(cells), 2), dtype=np.bool_)
    used, counts = 0, _share_first(layers[0][0], counted)
    # As many trees as the solver manages: fewer give coarser cells, and never wrong ones.
    for used in _tries(layers):
        some, known = layers[used]
        program = _program(layers[used], counted, later, reg_lambda)
        answer = solve(program, np.zeros(2 * len(some)), effort)
        if answer is None and used:
            continue
        if answer is not None:
            counts = answer[0]
        if answer is not None and used == len(layers) - 1:
            certain = certify(program, counts, (known.low == known.high)[:, :2], effort)
        likely = solve_likely(program, expected_in(some, known, counted, background), effort)
        counts = counts if likely is None else likely
        break
    # What the other trees split further is shared out as public rows would be.
    for (before, _), (after, known) in pairwise(layers[used:]):
        expected = expected_in(after, known, counted, background)
        counts = _split(counts, _parents(before, after), expected)
    return Solution(
        cells=cells, counts=counts, residual=whole.residual(counts), certain=certain, trees=len(layers)
    )


def _layers(
    trees: TreeEnsemble, counted: Counted, later: list[Sums], *, reg_lambda: float, background: Background
) -> list[tuple[Cells, Ranges]]:
    """Cells of one tree, of two, ... and what is known of their numbers; without those that are empty."""
    values = [trees.trees[t].value[s.leaves] for t, s in enumerate([counted.sums, *later])]
    cells = start(counted, values[0], background.possible)
    layers = [(cells, Ranges.exactly(_share_first(cells, counted)))]
    for t, sums in enumerate(later):
        before, ranges = layers[-1]
        cells = refine(before, sums, values[t + 1], background.possible)
        if len(cells) > CELLS:
            break
        parents, at, margins = _parents(before, cells), cells.paths[:, -1], cells.margins[:, t + 1]
        found = narrow(ranges, parents, at, margins, sums, reg_lambda=reg_lambda)
        ranges = share_out(ranges, parents) if found is None else found
        kept = np.flatnonzero(ranges.high[:, 2] > 0)
        layers.append((cells.pick(kept), ranges.pick(kept)))
    return layers


def _tries(layers: list[tuple[Cells, Ranges]]) -> list[int]:
    """Layers to solve, until one is: the last, then ever larger steps back, and the last that is known."""
    last = len(layers) - 1
    known = max(t for t, (_, ranges) in enumerate(layers) if (ranges.low == ranges.high)[:, 2].all())
    steps = {max(last - 2**k + 1, 0) for k in range(last.bit_length() + 1)}
    return sorted({t for t in steps if t > known} | {known, 0}, reverse=True)


def _program(layer: tuple[Cells, Ranges], counted: Counted, later: list[Sums], reg_lambda: float) -> Program:
    """All equations of the trees whose cells these are."""
    cells, ranges = layer
    program = of_first(cells, counted) + of_ranges(ranges)
    for t in range(1, cells.paths.shape[1]):
        program += of_tree(cells, t, later[t - 1], reg_lambda)
    return program


def _share_first(cells: Cells, counted: Counted) -> Ints:
    return counted.counts[cells.paths[:, 0]]


def _parents(before: Cells, cells: Cells) -> Ints:
    """The earlier cell of every cell: the one of the same path."""
    known = {tuple(path): i for i, path in enumerate(before.paths.tolist())}
    return np.array([known[tuple(path)] for path in cells.paths[:, :-1].tolist()], dtype=np.int64)


def _split(before: Ints, parents: Ints, expected: Floats) -> Ints:
    """Rows of earlier cells (K, 2) in those they fall into (C, 2), as expected: largest remainders first."""
    counts = np.zeros_like(expected, dtype=np.int64)
    for cell, label in np.argwhere(before > 0):
        children = np.flatnonzero(parents == cell)
        if not len(children):  # no row can be there: the solution before was wrong
            continue
        wanted = expected[children, label] + 1e-9
        wanted = wanted / wanted.sum() * before[cell, label]
        whole = np.floor(wanted + 1e-9).astype(np.int64)
        rest = int(before[cell, label] - whole.sum())
        whole[np.argsort(whole - wanted, kind="stable")[:rest]] += 1
        counts[children, label] = whole
    return counts

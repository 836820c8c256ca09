"""Whole numbers of rows per joint cell of several trees, from the sums of their leaves, by integer programs.

A joint cell is a non-empty intersection of one leaf per tree; all its rows have the same margin before every
tree, so h and p are constants there and every leaf gives two equations in whole numbers z[cell, label]:
Σ z h = H and Σ z (p − y) = G, within the rounding of float32.

Source: Kotsiantis et al. 2025, "TimberStrike", PETS, arXiv:2506.07605, section 4, which averages over
leaves. Where we differ: most numbers follow leaf by leaf (:mod:`.narrow`), those left open are guessed by
what public rows make likely (:mod:`.likely`), then exact equations at once, of as many trees as the solver
ends with; two programs per cell tell whether its number is the only one that fits; and of all numbers that
fit, those nearest to public rows are taken.

Shape letters: C cells, T trees, L leaves of a tree, F features.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.trees.algebra import Counted, Floats, Ints, Sums
from glasshouse.attacks.trees.boxes import Background, Cells, public_in, refine, start
from glasshouse.attacks.trees.likely import Split, fix, leaves_of_public, likely_counts, weights_of
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


LEAVES: Final = 8
"""Leaves of a tree above which nothing is guessed: the right way is lost before the last of them."""
WAYS: Final = 10
"""Guesses of the trees so far that are followed to the next tree."""


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

    Ranges leaf by leaf first, guesses where they leave a choice, then all equations at once. Where the solver
    does not end, those of fewer trees, and their cells are shared out among those of all trees like public
    rows.

    Args:
        trees: the document.
        counted: the first tree.
        later: the sums of the next trees, in order.
        reg_lambda: of the penalty.
        effort: of the search.
        background: of rows in general.
    """
    grow = Growth(trees, counted, later, background)
    layers, guessed = grow.follow(guess=True)
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
        if answer is not None and used == len(layers) - 1 and not guessed:
            certain = certify(program, counts, (known.low == known.high)[:, :2], effort)
        likely = solve_likely(program, expected_in(some, known, counted, background), effort)
        counts = counts if likely is None else likely
        break
    # What the other trees split further is shared out as public rows would be.
    for (before, _), (after, known) in pairwise(layers[used:]):
        expected = expected_in(after, known, counted, background)
        counts = _split(counts, _parents(before, after), expected)
    if guessed:
        proved, doubtful = grow.follow(guess=False)
        certain = certain if doubtful else _proved(proved[-1], cells, counts)
    return Solution(
        cells=cells, counts=counts, residual=whole.residual(counts), certain=certain, trees=len(layers)
    )


Layer = tuple[Cells, Ranges]
"""Cells of the first trees, and what is known of their numbers of rows."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Way:
    """Layers of one tree, of two, ..., without cells that are empty.

    Attributes:
        layers: of them.
        score: logarithm of how likely its guesses are.
        guessed: a number is a guess, or some sums fitted nothing: nothing of it is proved.
    """

    layers: tuple[Layer, ...]
    score: float = 0.0
    guessed: bool = False

    @property
    def known(self) -> bool:
        """Whether the number of rows of every last cell is one."""
        _, ranges = self.layers[-1]
        return bool((ranges.low == ranges.high)[:, 2].all())

    def on(self, cells: Cells, ranges: Ranges, *, score: float = 0.0, guessed: bool = False) -> "_Way":
        """One more tree."""
        kept = np.flatnonzero(ranges.high[:, 2] > 0)
        layer = cells.pick(kept), ranges.pick(kept)
        return _Way(layers=(*self.layers, layer), score=self.score + score, guessed=self.guessed or guessed)


@final
class Growth:
    """Layers of ever more trees of one document."""

    def __init__(
        self, trees: TreeEnsemble, counted: Counted, later: list[Sums], background: Background
    ) -> None:
        self._counted, self._sums, self._background = counted, [counted.sums, *later], background
        self._values = [trees.trees[t].value[s.leaves] for t, s in enumerate(self._sums)]
        # The prior is in the margin before the first tree, and counts once.
        self._values[0] = self._values[0] - counted.shift
        self._public = leaves_of_public(self._sums, background)

    def follow(self, *, guess: bool) -> tuple[list[Layer], bool]:
        """The layers of as many trees as can be built, and whether nothing of them is proved."""
        cells = start(self._counted, self._values[0], self._background.possible)
        ways = [_Way(layers=((cells, Ranges.exactly(_share_first(cells, self._counted))),))]
        for tree in range(1, len(self._sums)):
            grown = [more for way in ways for more in self._one_more(way, tree, guess=guess)]
            if not grown:
                # Every way has met a contradiction: the likeliest goes on without this tree's sums.
                grown = self._without(ways[0], tree)
            if not grown:
                break
            # A way on which all numbers are known is worth more than any on which they are not.
            ways = sorted(grown, key=lambda way: (not way.known, -way.score))[:WAYS]
            if not ways[0].known:
                ways = ways[:1]
        return list(ways[0].layers), ways[0].guessed

    def _one_more(self, way: _Way, tree: int, *, guess: bool) -> list[_Way]:
        """The ways that go on from one: narrowed leaf by leaf; where that leaves a choice, the likeliest."""
        before, known = way.layers[-1]
        sums, cells = self._sums[tree], self._cells(before, tree)
        if len(cells) > CELLS:
            return []
        parents, leaf, margins = _parents(before, cells), cells.paths[:, -1], cells.margins[:, tree]
        found = narrow(known, parents, leaf, margins, sums)
        if found is None and way.guessed:
            return []
        # Sums that fit nothing are not those of rows of weight 1, or an earlier tree's were not.
        ranges = share_out(known, parents) if found is None else found
        plain = way.on(cells, ranges, guessed=found is None)
        if plain.known or not way.known or not guess or len(sums.leaves) > LEAVES:
            return [plain]
        split = Split(
            total=known.low[:, 2], parents=parents, leaf=leaf, margins=margins, sums=sums, ranges=ranges,
            weights=weights_of(cells, self._public, sums),
        )  # fmt: skip
        choices = likely_counts(split)
        fixed = []
        for score, counts in zip(choices.score, choices.counts, strict=True):
            exact = fix(ranges, counts, parents, known)
            if (exact.low <= exact.high).all():
                fixed.append(way.on(cells, exact, score=float(score), guessed=True))
        return fixed or [plain]

    def _without(self, way: _Way, tree: int) -> list[_Way]:
        """One more tree of which only the boxes are used."""
        before, known = way.layers[-1]
        cells = self._cells(before, tree)
        return [] if len(cells) > CELLS else [way.on(cells, share_out(known, _parents(before, cells)))]

    def _cells(self, before: Cells, tree: int) -> Cells:
        return refine(before, self._sums[tree], self._values[tree], self._background.possible)


def _proved(layer: Layer, cells: Cells, counts: Ints) -> NDArray[np.bool_]:
    """Which counts are those that a layer without a guess leaves as the only ones, (C, 2)."""
    proved, ranges = layer
    if proved.paths.shape[1] < cells.paths.shape[1]:
        return np.zeros(counts.shape, dtype=np.bool_)
    known = {tuple(path): i for i, path in enumerate(proved.paths.tolist())}
    at = [known.get(tuple(path), -1) for path in cells.paths.tolist()]
    low, high = ranges.low[at, :2], ranges.high[at, :2]
    there = np.array(at) >= 0
    return np.asarray((low == high) & (counts == low) & (counts > 0) & there[:, None])


def _tries(layers: list[Layer]) -> list[int]:
    """Layers to solve, until one is: the last, then ever larger steps back, and the last that is known."""
    last = len(layers) - 1
    known = max(t for t, (_, ranges) in enumerate(layers) if (ranges.low == ranges.high)[:, 2].all())
    steps = {max(last - 2**k + 1, 0) for k in range(last.bit_length() + 1)}
    return sorted({t for t in steps if t > known} | {known, 0}, reverse=True)


def _program(layer: Layer, counted: Counted, later: list[Sums], reg_lambda: float) -> Program:
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

"""Rows of a table in a given linear span, found block by block: a category has exactly one 1.

Shape letters: r rank of the span, F entries of an encoded row, R rows found, N dimensions left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.modalities.row import Column, Row

Floats = NDArray[np.float64]

SPAN: Final = 3e-6
"""Singular values above this share of the largest one are signal, in a gradient of float32."""
AFFINE: Final = {np.float32: 2e-2, np.float64: 1e-6}
"""Residual below which a category's equations can be met: float32's error through 1 / s_r, and float64's."""
RANK: Final = 0.02
"""Share of that residual above which a singular value of the remaining equations counts."""
STEPS: Final = 128
"""Largest number of steps of a whole number whose values are tried one by one."""
BRANCHES: Final = 100_000
"""Equations after which the search ends unfinished."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Spanned:
    """Rows in a span.

    Attributes:
        rows: (R, F), encoded and valid.
        finished: every branch was followed to its end.
        open: branches in which dimensions stayed free after all categories, of which nothing is said.
    """

    rows: Floats
    finished: bool
    open: int


def basis_of(gradient: Floats, examples: int, *, share: float = SPAN) -> Floats:
    """An orthonormal basis of the row space of a gradient (O, F), at most ``examples`` vectors, (r, F)."""
    _, values, vectors = np.linalg.svd(gradient, full_matrices=False)
    rank = min(examples, int((values > share * values[0]).sum())) if values.size and values[0] > 0 else 0
    return np.asarray(vectors[:rank])


def rows_in(basis: Floats, table: Row, *, tolerance: float) -> Spanned:
    """The valid rows of ``table`` that are combinations of ``basis`` (r, F).

    A row is z B with a 1 in one entry of every category and 0 in the others. Each choice of a category leaves
    an affine set of z or none; when no dimension is left, z is the row.

    Examples:
        >>> smokes = Column(name="smokes", kind="categorical", levels=("no", "yes"))
        >>> drinks = Column(name="drinks", kind="categorical", levels=("no", "yes", "often"))
        >>> table = Row(columns=(smokes, drinks))
        >>> two = np.array([[1.0, 0, 0, 1, 0], [0, 1, 1, 0, 0]])
        >>> basis_of(two, 2).shape, rows_in(basis_of(two, 2), table, tolerance=1e-6).rows.round(6).tolist()
        ((2, 5), [[0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.0]])
    """
    if not len(basis):
        return Spanned(rows=np.zeros((0, table.shape[0])), finished=True, open=0)
    search = _Search(basis=basis, blocks=_blocks(table), tolerance=tolerance)
    points = list(search.descend(np.zeros(len(basis)), np.eye(len(basis)), 0))
    rows = _valid(np.array(points).reshape(-1, basis.shape[1]), table, tolerance)
    return Spanned(rows=rows, finished=search.left > 0, open=search.open)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """Entries of a row that can have only a few values: ``choices`` (K, k) at ``place``.

    ``always``: tried even where no dimension is left, as a test.
    """

    place: slice
    choices: Floats
    always: bool


def _blocks(table: Row) -> list[_Block]:
    """Categories, the largest first, as they cut most dimensions; then numbers of few whole values."""
    names, numbers = [], []
    for column, place in table.places():
        width = place.stop - place.start
        if column.kind == "categorical":
            names.append(_Block(place=place, choices=np.eye(width), always=True))
        elif column.kind == "binary" and not column.missing:
            names.append(_Block(place=place, choices=np.array([[0.0], [1.0]]), always=True))
        elif column.kind == "integer" and not column.missing and column.high - column.low <= STEPS:
            steps = round(column.high - column.low)
            choices = np.arange(steps + 1)[:, None] / steps
            numbers.append(_Block(place=place, choices=choices, always=False))
    names.sort(key=lambda block: -len(block.choices))
    numbers.sort(key=lambda block: len(block.choices))
    return [*names, *numbers]


@final
@dataclass(kw_only=True, eq=False)
class _Search:
    basis: Floats
    blocks: list[_Block]
    tolerance: float
    left: int = BRANCHES
    open: int = 0

    def descend(self, origin: Floats, free: Floats, depth: int) -> Iterator[Floats]:
        """Rows of the affine set origin + free w that meet the blocks from ``depth`` on."""
        if depth == len(self.blocks) or not (free.shape[1] or self.blocks[depth].always):
            if free.shape[1]:
                self.open += 1
            else:
                yield origin @ self.basis
            return
        block = self.blocks[depth]
        part = self.basis[:, block.place].T  # (k, r): entries of the block as functions of z
        matrix, offset = part @ free, part @ origin
        left, values, right = np.linalg.svd(matrix, full_matrices=True)
        rank = int((values > self.tolerance * RANK).sum())
        # A level that no row has is a column of zeros of the gradient: its entry cannot be 1.
        absent = np.linalg.norm(part, axis=1) <= self.tolerance * RANK
        for choice in block.choices[~(block.choices[:, absent] > 0).any(1)]:
            if self.left <= 0:
                return
            self.left -= 1
            moved = left.T @ (choice - offset)
            if np.linalg.norm(moved[rank:]) > self.tolerance:
                continue
            step = right[:rank].T @ (moved[:rank] / values[:rank])
            yield from self.descend(origin + free @ step, free @ right[rank:].T, depth + 1)


def _valid(points: Floats, table: Row, tolerance: float) -> Floats:
    """The points that are rows but for their error: in range, and whole where they must be. Each once."""
    clean, good = points.copy(), np.ones(len(points), dtype=np.bool_)
    for column, place in table.places():
        nearest, near = _snapped(points[:, place], column, tolerance)
        clean[:, place] = nearest
        good &= (np.abs(points[:, place] - nearest) <= near).all(1)
    clean = clean[good]
    return clean[np.sort(np.unique(clean.round(5), axis=0, return_index=True)[1])]


def _snapped(entries: Floats, column: Column, tolerance: float) -> tuple[Floats, float]:
    """The nearest valid entries (P, k) of one column, and how near is near enough."""
    if column.kind == "categorical":  # missing is one more level
        return np.eye(entries.shape[1])[entries.argmax(1)], 10 * tolerance
    if column.missing:
        return np.concatenate([np.clip(entries[:, :-1], 0, 1), np.round(entries[:, -1:])], 1), 10 * tolerance
    clipped = np.clip(entries, 0, 1)
    if column.kind == "binary":
        return np.round(clipped), 10 * tolerance
    steps = column.high - column.low
    if column.kind == "continuous":
        return clipped, 4 * tolerance
    # Whole numbers are a test only where a step is larger than the error.
    return np.round(clipped * steps) / steps, min(4 * tolerance, 0.2 / steps if steps <= STEPS else 1.0)

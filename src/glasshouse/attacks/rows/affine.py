"""Rows of a table in a span, as far as their categories go.

A row z B has exactly one 1 in every category. The equations of a category are the same for all rows but for
the place of the 1, so that after all categories every combination of levels that the span allows leaves one
point and the *same* open directions: those of the span in which only numbers differ. Nothing here proves a
row.

Shape letters: r rank of the span, F entries of an encoded row, S combinations of levels, D open directions,
N points.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.modalities.row import Column, Row

Floats = NDArray[np.float64]

RANK: Final = 4e-4
"""Singular value of a category's remaining equations, on an orthonormal basis, from which it counts."""
MANY: Final = 100_000
"""Combinations of levels after which the search ends unfinished."""
SLACK: Final = 0.02
"""How far a number may lie outside its range: errors of float32 through the smallest singular value."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Combinations:
    """Combinations of levels that are in a span.

    Attributes:
        origins: one point of each, in coordinates of the span, (S, r).
        free: the open directions, (D, r).
        finished: all combinations are here.
    """

    origins: Floats
    free: Floats
    finished: bool


def combinations_in(basis: Floats, table: Row, *, tolerance: float) -> Combinations:
    """Every combination of levels of which a point lies in the span of ``basis`` (r, F).

    Examples:
        >>> from glasshouse.modalities.row import Column
        >>> smokes = Column(name="smokes", kind="categorical", levels=("no", "yes"))
        >>> drinks = Column(name="drinks", kind="categorical", levels=("no", "yes", "often"))
        >>> age = Column(name="age", kind="integer", low=0, high=100)
        >>> table = Row(columns=(smokes, drinks, age))
        >>> rows = np.array([[1.0, 0, 0, 1, 0, 0.3], [0, 1, 1, 0, 0, 0.5], [0, 1, 1, 0, 0, 0.6]])
        >>> found = combinations_in(np.linalg.svd(rows)[2][:3], table, tolerance=1e-6)
        >>> found.origins.shape, found.free.shape
        ((2, 3), (1, 3))
    """
    origins, free = np.zeros((1, len(basis))), np.eye(len(basis))
    for place in _categories(table):
        part = basis[:, place]  # (r, k)
        choices = (
            np.eye(place.stop - place.start) if place.stop - place.start > 1 else np.array([[0.0], [1.0]])
        )
        # A level that no row has is a column of zeros of the gradient: its entry cannot be 1.
        absent = np.linalg.norm(part, axis=0) <= RANK
        choices = choices[~(choices[:, absent] > 0).any(1)]
        left, values, right = np.linalg.svd(free @ part, full_matrices=True)
        rank = int((values > RANK).sum())
        moved = (choices[None] - (origins @ part)[:, None]) @ right.T  # (S, choices, k)
        fits = np.linalg.norm(moved[..., rank:], axis=2) <= tolerance
        at, level = np.nonzero(fits)
        steps = (moved[at, level, :rank] / values[:rank]) @ left[:, :rank].T
        origins, free = origins[at] + steps @ free, left[:, rank:].T @ free
        if len(origins) > MANY:
            return Combinations(origins=origins[:0], free=free, finished=False)
    return Combinations(origins=origins, free=free, finished=True)


def numbers_of(table: Row) -> NDArray[np.int64]:
    """The entries of numbers."""
    return np.array([place.start for column, place in table.places() if column.numeric], dtype=np.int64)


def in_range(points: Floats, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which points (N, F) have their numbers in their ranges, (N,)."""
    numbers = points[:, entries] if len(entries) else points[:, :0]
    return np.asarray(((numbers >= -SLACK) & (numbers <= 1 + SLACK)).all(1))


def _categories(table: Row) -> list[slice]:
    """Entries of columns without numbers, the largest first: they cut most dimensions."""
    places = [
        place
        for column, place in table.places()
        if column.kind == "categorical" or (column.kind == "binary" and not column.missing)
    ]
    return sorted(places, key=lambda place: place.start - place.stop)


def nearest_entries(entries: Floats, column: Column) -> Floats:
    """The nearest valid entries of one column, (N, k)."""
    if column.kind == "categorical":  # missing is one more level
        return np.asarray(np.eye(entries.shape[1])[entries.argmax(1)])
    clipped = np.clip(entries, 0, 1)
    if column.kind == "integer":
        steps = column.high - column.low
        clipped = np.round(clipped * steps) / steps
    elif column.kind == "binary":
        clipped = np.round(clipped)
    if column.missing:
        clipped[:, -1] = np.round(np.clip(entries[:, -1], 0, 1))
    return clipped

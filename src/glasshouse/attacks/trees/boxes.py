"""Joint cells of several trees as boxes: non-empty intersections of one leaf per tree.

Shape letters: C cells, T trees, L leaves of a tree, F features, N rows of other people.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.trees.algebra import Counted, Floats, Ints, Margins, Sums, margin_of

Possible = Callable[[Floats, Floats], NDArray[np.bool_]]
"""Lower and upper ends of boxes (C, F) → whether a valid row lies in each."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Background:
    """What is known of rows in general.

    Attributes:
        possible: which boxes hold a valid row; None: all.
        rows: of other people, (N, F); None: none.
        labels: of those, (N,).
    """

    possible: Possible | None = None
    rows: Floats | None = None
    labels: Ints | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Joint cells of the first trees.

    Attributes:
        lower: (C, F).
        upper: (C, F).
        paths: position of the leaf in each tree, (C, T).
        margins: before each tree and after the last, (C, T + 1).
    """

    lower: Floats
    upper: Floats
    paths: Ints
    margins: Margins

    def __len__(self) -> int:
        return len(self.lower)

    def pick(self, kept: Ints) -> "Cells":
        """Some of them."""
        return Cells(
            lower=self.lower[kept], upper=self.upper[kept], paths=self.paths[kept], margins=self.margins[kept]
        )


def start(counted: Counted, values: Floats, possible: Possible | None = None) -> Cells:
    """The cells of the first tree: its leaves.

    Args:
        counted: the first tree.
        values: what its leaves add to the margin, (L,).
        possible: which boxes hold a valid row; None: all.
    """
    before = np.full(len(values), margin_of(counted.base), dtype=np.float32)
    cells = Cells(
        lower=counted.sums.lower,
        upper=counted.sums.upper,
        paths=np.arange(len(values))[:, None],
        margins=np.stack([before, add(before, values)], 1),
    )
    return _kept(cells, possible)


def refine(cells: Cells, sums: Sums, values: Floats, possible: Possible | None = None) -> Cells:
    """The non-empty intersections of cells with the leaves of the next tree."""
    lower = np.maximum(cells.lower[:, None], sums.lower)
    upper = np.minimum(cells.upper[:, None], sums.upper)
    cell, leaf = np.nonzero((lower < upper).all(2))
    after = add(cells.margins[cell, -1], values[leaf])
    return _kept(
        Cells(
            lower=lower[cell, leaf],
            upper=upper[cell, leaf],
            paths=np.concatenate([cells.paths[cell], leaf[:, None]], 1),
            margins=np.concatenate([cells.margins[cell], after[:, None]], 1),
        ),
        possible,
    )


def add(margins: Margins, values: Floats) -> Margins:
    """Margins after a tree, summed in float32 as XGBoost sums them."""
    return margins + values.astype(np.float32)


def _kept(cells: Cells, possible: Possible | None) -> Cells:
    return cells if possible is None else cells.pick(np.flatnonzero(possible(cells.lower, cells.upper)))


def public_in(cells: Cells, background: Background) -> Floats:
    """Rows of label 0 and 1 of other people in each cell, (C, 2)."""
    rows, labels = background.rows, background.labels
    if rows is None or labels is None:
        return np.zeros((len(cells), 2))
    inside = [((rows >= low) & (rows < up)).all(1) for low, up in zip(cells.lower, cells.upper, strict=True)]
    return np.array([[float((there & (labels == y)).sum()) for y in (0, 1)] for there in inside])

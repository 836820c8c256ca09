"""Directions: which backward signals made a gradient, and the rows that each of them carries.

A layer's gradient is G = Σ δ_i x_iᵀ. A backward signal depends on a row by the units that are active, so that
a guess of a row's numbers mostly has the signal of the row itself; it is in the column space of G. Directions
that are found are projected out, on the left: what remains is spanned by the other rows alone, and fewer rows
leave fewer numbers open. With all r directions D, the rows follow: D⁺ G holds the sum behind each.

Source: that rows follow from directions is Dimitrov et al. 2024, SPEAR, arXiv:2403.03945; finding directions
by guesses of rows is our own.

Shape letters: O units of the layer, F entries of a row, r rank, M directions, N points.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.rows.affine import combinations_in
from glasshouse.attacks.rows.nearby import points_inside
from glasshouse.attacks.rows.signals import Signals, Space
from glasshouse.modalities.row import Row

Floats = NDArray[np.float64]

APART: Final = 3e-3
"""Share of a direction outside the span of others from which it is another one."""
ENOUGH: Final = 3
"""New directions at which the others are looked for among fewer rows."""


def directions_in(
    weight: Floats, rank: int, table: Row, signals: Signals, *, tolerance: float, draws: np.random.Generator
) -> Floats:
    """Independent directions of backward signals in the column space of a gradient (O, F), (O, M), M <= r."""
    space = Space(span=np.linalg.svd(weight, full_matrices=False)[0][:, :rank], signals=signals)
    found = np.zeros((len(weight), 0))
    while found.shape[1] < rank:
        known = np.linalg.qr(found)[0]
        rest = weight - known @ (known.T @ weight)
        basis = np.linalg.svd(rest, full_matrices=False)[2][: rank - found.shape[1]]
        combinations = combinations_in(basis, table, tolerance=tolerance)
        more = found
        for points in points_inside(combinations, basis, table, space, draws):
            more = _with(space.inside(points), found, rank)
            if more.shape[1] >= min(found.shape[1] + ENOUGH, rank):
                break
        if more.shape[1] == found.shape[1]:
            break
        found = more
    return found


def _with(vectors: Floats, found: Floats, rank: int) -> Floats:
    """``found`` (O, M) with those directions of vectors (N, O) that are independent, up to the rank."""
    for vector in vectors:
        if found.shape[1] == rank:
            return found
        known, unit = np.linalg.qr(found)[0], vector / np.linalg.norm(vector)
        if np.linalg.norm(unit - known @ (known.T @ unit)) > APART:
            found = np.concatenate([found, unit[:, None]], 1)
    return found

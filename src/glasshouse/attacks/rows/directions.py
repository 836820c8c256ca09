"""Directions: which backward signals made a gradient, and the rows that each of them carries.

A layer's gradient is G = Σ δ_i x_iᵀ. A backward signal depends on a row by the units that are active, so that
a guess of a row's numbers mostly has the signal of the row itself; it is in the column space of G. Directions
that are found are projected out, on the left: what remains is spanned by the other rows alone, and fewer rows
leave fewer numbers open. With all r directions D, the rows follow: D⁺ G holds the sum behind each.

Source: that rows follow from directions is Dimitrov et al. 2024, SPEAR, arXiv:2403.03945; finding directions
by guesses of rows is our own.

Shape letters: O units of the layer, F entries of a row, r rank, M directions, N points, K classes.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.rows.affine import combinations_in, nearest_to_zero, points_of
from glasshouse.modalities.row import Row

Floats = NDArray[np.float64]
Signals = Callable[[Floats], Floats]
"""Backward signals of points (N, F) under all labels, (K, N, O)."""

INSIDE: Final = 1e-3
"""Share of a backward signal outside the column space up to which it is in it; float32 leaves 1e-6."""
APART: Final = 3e-3
"""Share of a direction outside the span of others from which it is another one."""
FRAGMENT: Final = 20_000
"""Points whose signals are looked at together."""


def directions_in(weight: Floats, rank: int, table: Row, signals: Signals, *, tolerance: float) -> Floats:
    """Independent directions of backward signals in the column space of a gradient (O, F), (O, M), M <= r."""
    span = np.linalg.svd(weight, full_matrices=False)[0][:, :rank]
    found = np.zeros((len(weight), 0))
    while found.shape[1] < rank:
        known = np.linalg.qr(found)[0]
        rest = weight - known @ (known.T @ weight)
        basis = np.linalg.svd(rest, full_matrices=False)[2][: rank - found.shape[1]]
        combinations = combinations_in(basis, table, tolerance=tolerance)
        if len(combinations.free):
            # Few units change with a row's numbers: of the right levels, any numbers are nearly inside.
            likely = nearest_to_zero(combinations, basis, table)
            combinations = combinations.pick(np.argsort(nearness(likely, span, signals)))
        more = found
        for points in points_of(combinations, basis, table):
            more = _with_those_of(points, found, span, signals)
            if more.shape[1] > found.shape[1]:
                break
        if more.shape[1] == found.shape[1]:
            break
        found = more
    return found


def _with_those_of(points: Floats, found: Floats, span: Floats, signals: Signals) -> Floats:
    """``found`` (O, M) with the directions of points (N, F) that are in the column space and independent."""
    for start in range(0, len(points), FRAGMENT):
        each = signals(points[start : start + FRAGMENT]).reshape(-1, len(span))
        for vector in each[share_outside(each, span) < INSIDE]:
            if found.shape[1] == span.shape[1]:
                return found
            known, unit = np.linalg.qr(found)[0], vector / np.linalg.norm(vector)
            if np.linalg.norm(unit - known @ (known.T @ unit)) > APART:
                found = np.concatenate([found, unit[:, None]], 1)
    return found


def nearness(points: Floats, span: Floats, signals: Signals) -> Floats:
    """Share of each point's signals outside the column space, under the label of which least is, (N,)."""
    parts = [np.zeros(0)]
    for start in range(0, len(points), FRAGMENT):
        each = signals(points[start : start + FRAGMENT])
        parts.append(np.stack([share_outside(one, span) for one in each]).min(0))
    return np.concatenate(parts)


def share_outside(vectors: Floats, span: Floats) -> Floats:
    """Share of each of ``vectors`` (N, O) that lies outside an orthonormal span (O, r); 1 for zeros, (N,)."""
    size = np.linalg.norm(vectors, axis=1)
    rest = np.linalg.norm(vectors - vectors @ span @ span.T, axis=1)
    return np.where(size > 0, rest / np.maximum(size, 1e-300), 1.0)

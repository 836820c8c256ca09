"""How far backward signals of rows lie outside the column space of a layer's gradient.

Shape letters: O units of the layer, r rank, N points, F entries of a row, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Signals = Callable[[Floats], Floats]
"""Backward signals of points (N, F) under all labels, (K, N, O)."""

INSIDE: Final = 1e-4
"""Share of a backward signal outside the column space up to which it is in it; float32 leaves 1e-6."""
NEARLY: Final = 1e-3
"""The same, of rounded updates and small singular values."""
FRAGMENT: Final = 20_000
"""Points whose signals are looked at together."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """A column space, and the signals of rows beside it.

    Attributes:
        span: orthonormal, (O, r).
        signals: of rows.
    """

    span: Floats
    signals: Signals

    def nearness(self, points: Floats) -> Floats:
        """Share of each point's signals outside the space, under the label of which least is, (N,)."""
        parts = [np.zeros(0)]
        for start in range(0, len(points), FRAGMENT):
            each = self.signals(points[start : start + FRAGMENT])
            parts.append(np.stack([share_outside(one, self.span) for one in each]).min(0))
        return np.concatenate(parts)

    def inside(self, points: Floats) -> Floats:
        """The signals of points that are in the space, under any label, the nearest first, (_, O)."""
        if not len(points):
            return np.zeros((0, len(self.span)))
        each = self.signals(points).reshape(-1, len(self.span))
        apart = share_outside(each, self.span)
        order = np.argsort(apart, kind="stable")
        return np.asarray(each[order[apart[order] < NEARLY]])


def share_outside(vectors: Floats, span: Floats) -> Floats:
    """Share of each of ``vectors`` (N, O) that lies outside an orthonormal span (O, r); 1 for zeros, (N,)."""
    size = np.linalg.norm(vectors, axis=1)
    rest = np.linalg.norm(vectors - vectors @ span @ span.T, axis=1)
    return np.where(size > 0, rest / np.maximum(size, 1e-300), 1.0)

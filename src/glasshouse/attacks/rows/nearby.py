"""Numbers of rows moved about until a row's backward signal lies in a column space.

The right levels leave a row's numbers open, and its signal depends on them by the units that are active: of
numbers near enough to the true ones it is the signal of the row itself. How much of a signal lies outside the
space falls as more units are right, so that it leads there. Of every combination of levels some likely
numbers are tried first, then the best of them are moved by draws that become smaller.

Source: our own. Breaks when: so many combinations of levels are in the span that few draws are left for each.

Shape letters: S combinations of levels, D open directions, F entries of a row, N numbers, T draws.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.rows.affine import Combinations, in_range, numbers_of
from glasshouse.attacks.rows.signals import INSIDE, NEARLY, Space
from glasshouse.modalities.row import Row

Floats = NDArray[np.float64]

FIRST: Final = 100_000
"""Points of the first numbers of all combinations together."""
FEWEST: Final = 4
"""First numbers of each combination, however many combinations there are."""
MOST: Final = 200
"""First numbers of each combination, however few there are."""
ZERO: Final = 0.4
"""Share of numbers that are tried at their low end, where most of some columns are."""
ROUNDS: Final = 14
"""Times that the best points are moved."""
MOVED: Final = 30_000
"""Points that one of these times tries."""
FOLLOWED: Final = 3_000
"""Combinations that are followed at most."""
STAY: Final = 60
"""Combinations that are followed at least."""
DRAWS: Final = 64
"""Draws for one combination at most."""
STEP: Final = 0.3
"""Length of the first moves, on the range of a number."""
SHRINK: Final = 0.75
"""How much shorter moves become from time to time."""


def points_inside(
    found: Combinations, basis: Floats, table: Row, space: Space, draws: np.random.Generator
) -> Iterator[Floats]:
    """Points (S, F) whose signals are inside, of all combinations, again after each further search.

    Args:
        found: combinations of levels in the span of ``basis``.
        basis: of the span, (r, F).
        table: the columns.
        space: the column space and the signals of rows.
        draws: of numbers.
    """
    points, free = found.origins @ basis, found.free @ basis
    entries = numbers_of(table)
    # Nothing is open: the categories fix every number.
    if not len(free):
        points = points[in_range(points, entries)]
        apart = space.nearness(points)
        yield points[apart < INSIDE]
        yield points[apart < NEARLY]
        return
    back = np.linalg.pinv(free[:, entries])
    apart = np.full(len(points), np.inf)
    for turn in range(int(np.clip(FIRST // max(len(points), 1), FEWEST, MOST))):
        wanted = np.where(draws.random(len(entries)) < ZERO, 0.0, draws.beta(2, 3, len(entries))) * (turn > 0)
        tried = points + (wanted - points[:, entries]) @ back @ free
        _keep_nearer(points, apart, np.arange(len(points)), tried[None], space)
        if turn == 0:
            yield points[apart < INSIDE]
    yield points[apart < INSIDE]
    for turn in range(ROUNDS):
        followed = np.argsort(apart, kind="stable")[
            : min(FOLLOWED, max(STAY, len(points) >> (turn // 2 + 1)))
        ]
        count = int(np.clip(MOVED // max(len(followed), 1), 8, DRAWS))
        moves = draws.standard_normal((count, len(followed), len(free))) * STEP * SHRINK**turn
        _keep_nearer(points, apart, followed, points[followed] + moves @ free, space)
        yield points[apart < INSIDE]
    # With one unit on the wrong side a signal may be nearly inside: it is taken where there is nothing else.
    yield points[apart < NEARLY]


def _keep_nearer(
    points: Floats, apart: Floats, which: NDArray[np.int64], tried: Floats, space: Space
) -> None:
    """Replace points in place by the nearest of those that were ``tried`` for them, (T, len(which), F)."""
    each = space.nearness(tried.reshape(-1, tried.shape[-1])).reshape(tried.shape[:2])
    best = each.argmin(0)
    own = each[best, np.arange(len(which))]
    nearer = np.flatnonzero(own < apart[which])
    apart[which[nearer]] = own[nearer]
    points[which[nearer]] = tried[best[nearer], nearer]

"""Equations in whole numbers of rows per joint cell and label, and integer programs that solve them.

Shape letters: C cells, L leaves of a tree.
"""

from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, hstack, vstack

from glasshouse.attacks.trees.algebra import Counted, Floats, Ints, Sums, derivatives
from glasshouse.attacks.trees.boxes import Cells
from glasshouse.attacks.trees.narrow import Ranges

HESSIAN_ERROR: Final = 1e-5
"""Relative error of H: float32 sums of some thousand rows."""
GRADIENT_ERROR: Final = 2e-5
"""Error of G on H + λ: G is a leaf's float32 value times that."""


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long the programs may search, counted in nodes so that a run can be repeated.

    Args:
        nodes: branch-and-bound nodes of one program.
        seconds: an upper end for one program, far above what its nodes take.
        certify: cells of which the smallest and largest number are computed.
    """

    nodes: int = 20_000
    seconds: float = 20.0
    certify: int = 150


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Equations A z = b within an error, for whole z >= 0: z of label 0 of all cells, then of label 1."""

    rows: csr_array
    wanted: Floats
    error: Floats

    def __add__(self, other: "Program") -> "Program":
        return Program(
            rows=vstack([self.rows, other.rows], format="csr"),
            wanted=np.concatenate([self.wanted, other.wanted]),
            error=np.concatenate([self.error, other.error]),
        )

    def residual(self, counts: Ints) -> float:
        """Largest distance from an equation, on its error."""
        away = np.abs(self.rows @ counts.T.ravel() - self.wanted)
        return float((away / np.maximum(self.error, 1e-9)).max(initial=0.0))


def of_first(cells: Cells, counted: Counted) -> Program:
    """Rows of each label in every leaf of the first tree, exactly."""
    leaves, size = len(counted.counts), len(cells)
    at, cell = cells.paths[:, 0], np.arange(size)
    rows = csr_array(
        (np.ones(2 * size), (np.concatenate([at, leaves + at]), np.concatenate([cell, size + cell]))),
        shape=(2 * leaves, 2 * size),
    )
    return Program(rows=rows, wanted=counted.counts.T.ravel().astype(float), error=np.zeros(2 * leaves))


def of_tree(cells: Cells, tree: int, sums: Sums, reg_lambda: float) -> Program:
    """The sums of the leaves of one later tree."""
    p, h = derivatives(cells.margins[:, tree])
    at, leaves, size = cells.paths[:, tree], len(sums.leaves), len(cells)
    cell = np.arange(size)
    where = (np.concatenate([at, at]), np.concatenate([cell, size + cell]))
    second = csr_array((np.concatenate([h, h]), where), shape=(leaves, 2 * size))
    first = csr_array((np.concatenate([p, p - 1]), where), shape=(leaves, 2 * size))
    errors = [HESSIAN_ERROR * sums.hessian, GRADIENT_ERROR * (sums.hessian + reg_lambda)]
    return Program(
        rows=vstack([second, first], format="csr"),
        wanted=np.concatenate([sums.hessian, sums.gradient]),
        error=np.concatenate(errors),
    )


def of_ranges(ranges: Ranges) -> Program:
    """Smallest and largest numbers of each cell: of label 0, of label 1, and of both."""
    size = len(ranges.low)
    cell = np.arange(size)
    both = csr_array(
        (np.ones(2 * size), (np.concatenate([cell, cell]), np.arange(2 * size))), shape=(size, 2 * size)
    )
    one = csr_array((np.ones(2 * size), (np.arange(2 * size), np.arange(2 * size))))
    return Program(
        rows=vstack([one, both], format="csr"),
        wanted=(ranges.low + ranges.high).T.ravel() / 2,
        error=(ranges.high - ranges.low).T.ravel() / 2,
    )


def solve(program: Program, goal: Floats, effort: Effort) -> tuple[Ints, bool] | None:
    """Whole numbers (C, 2) that fit with a small ``goal`` · z, and if none is smaller; None: none came."""
    size = program.rows.shape[1]
    result = milp(
        goal,
        constraints=LinearConstraint(
            program.rows, program.wanted - program.error, program.wanted + program.error
        ),
        integrality=np.ones(size, dtype=np.int64),
        bounds=Bounds(0, np.inf),
        options={"node_limit": effort.nodes, "time_limit": effort.seconds},
    )
    if result.x is None:
        return None
    counts = np.round(result.x).astype(np.int64).reshape(2, -1).T
    return counts, bool(result.status == 0)


def solve_likely(program: Program, expected: Floats, effort: Effort) -> Ints | None:
    """Whole numbers (C, 2) that fit and are nearest to ``expected`` (C, 2), in the sum of distances."""
    rows, size = program.rows, program.rows.shape[1]
    one = csr_array((np.ones(size), (np.arange(size), np.arange(size))))
    nothing = csr_array((rows.shape[0], size))
    result = milp(
        np.concatenate([np.zeros(size), np.ones(2 * size)]),
        constraints=[
            LinearConstraint(
                hstack([rows, nothing, nothing], format="csr"),
                program.wanted - program.error,
                program.wanted + program.error,
            ),
            LinearConstraint(hstack([one, one, -one], format="csr"), expected.T.ravel(), expected.T.ravel()),
        ],
        integrality=np.concatenate([np.ones(size, dtype=np.int64), np.zeros(2 * size, dtype=np.int64)]),
        bounds=Bounds(0, np.inf),
        options={"node_limit": effort.nodes, "time_limit": effort.seconds},
    )
    if result.x is None:
        return None
    return np.round(result.x[:size]).astype(np.int64).reshape(2, -1).T


def certify(program: Program, counts: Ints, known: NDArray[np.bool_], effort: Effort) -> NDArray[np.bool_]:
    """Which counts are the only ones that fit: smallest and largest are equal, both proved, (C, 2).

    ``known``: those of which that is known already.

    Every solution on the way is kept: a count in which two of them differ needs no program of its own.
    """
    certain, size = known.copy(), len(counts)
    least, most = counts.copy(), counts.copy()
    short = replace(effort, seconds=effort.seconds / 20)
    left = effort.certify
    for cell, label in np.argwhere((counts > 0) & ~known):
        proved = True
        # The count is the only one if the smallest and the largest that fit are the same, both proved.
        for sign in (1.0, -1.0):
            if least[cell, label] != most[cell, label] or not proved or left <= 0:
                proved = False
                break
            goal = np.zeros(2 * size)
            goal[label * size + cell] = sign
            answer, left = solve(program, goal, short), left - 1
            proved = answer is not None and answer[1]
            if answer is not None:
                least, most = np.minimum(least, answer[0]), np.maximum(most, answer[0])
        certain[cell, label] = proved and least[cell, label] == most[cell, label]
    return np.asarray(certain & (least == most) & (counts > 0))

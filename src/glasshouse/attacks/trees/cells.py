"""Whole numbers of rows per joint cell of several trees, from the sums of their leaves, by integer programs.

A joint cell is a non-empty intersection of one leaf per tree; all its rows have the same margin before every
tree, so h and p are constants there and every leaf gives two equations in whole numbers z[cell, label]:
Σ z h = H and Σ z (p − y) = G, within the rounding of float32.

Source: Kotsiantis et al. 2025, "TimberStrike", PETS, arXiv:2506.07605, section 4, which averages over
leaves. Where we
differ: exact equations at once where the solver ends, else tree by tree with a way back; and two programs per
cell tell whether its number is the only one that fits.

Shape letters: C cells, T trees, L leaves of a tree, F features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, hstack, vstack

from glasshouse.attacks.trees.algebra import Counted, Floats, Ints, Sums, margin_of, sigmoid
from glasshouse.formats.records import TreeEnsemble

HESSIAN_ERROR: Final = 1e-5
"""Relative error of H: float32 sums of some thousand rows."""
GRADIENT_ERROR: Final = 2e-5
"""Error of G on H + λ: G is a leaf's float32 value times that."""
CELLS: Final = 20_000
"""Cells from which a program is not built: it would not end."""

Possible = Callable[[Floats, Floats], NDArray[np.bool_]]
"""Lower and upper ends of boxes (C, F) → whether a valid row lies in each."""


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long the programs may search, counted in nodes so that a run can be repeated.

    Args:
        nodes: branch-and-bound nodes of one program.
        seconds: an upper end for one program, far above what its nodes take.
        returns: how often the search may go back to another split of an earlier tree.
        certify: cells of which the smallest and largest number are computed.
    """

    nodes: int = 20_000
    seconds: float = 20.0
    returns: int = 6
    certify: int = 150


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
    margins: Floats

    def __len__(self) -> int:
        return len(self.lower)


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


def start(counted: Counted, values: Floats, possible: Possible | None = None) -> Cells:
    """The cells of the first tree: its leaves.

    Args:
        counted: the first tree.
        values: what its leaves add to the margin, (L,).
        possible: which boxes hold a valid row; None: all.
    """
    before = np.full(len(values), margin_of(counted.base))
    cells = Cells(
        lower=counted.sums.lower,
        upper=counted.sums.upper,
        paths=np.arange(len(values))[:, None],
        margins=np.stack([before, before + values], 1),
    )
    return _kept(cells, possible)


def refine(cells: Cells, sums: Sums, values: Floats, possible: Possible | None = None) -> Cells:
    """The non-empty intersections of cells with the leaves of the next tree."""
    lower = np.maximum(cells.lower[:, None], sums.lower)
    upper = np.minimum(cells.upper[:, None], sums.upper)
    cell, leaf = np.nonzero((lower < upper).all(2))
    after = cells.margins[cell, -1] + values[leaf]
    return _kept(
        Cells(
            lower=lower[cell, leaf],
            upper=upper[cell, leaf],
            paths=np.concatenate([cells.paths[cell], leaf[:, None]], 1),
            margins=np.concatenate([cells.margins[cell], after[:, None]], 1),
        ),
        possible,
    )


def _kept(cells: Cells, possible: Possible | None) -> Cells:
    if possible is None:
        return cells
    keep = possible(cells.lower, cells.upper)
    return replace(cells, **{name: getattr(cells, name)[keep] for name in cells.__dataclass_fields__})


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
    p = sigmoid(cells.margins[:, tree])
    at, leaves, size = cells.paths[:, tree], len(sums.leaves), len(cells)
    cell = np.arange(size)
    h = p * (1 - p)
    where = (np.concatenate([at, at]), np.concatenate([cell, size + cell]))
    second = csr_array((np.concatenate([h, h]), where), shape=(leaves, 2 * size))
    first = csr_array((np.concatenate([p, p - 1]), where), shape=(leaves, 2 * size))
    errors = [HESSIAN_ERROR * sums.hessian, GRADIENT_ERROR * (sums.hessian + reg_lambda)]
    return Program(
        rows=vstack([second, first], format="csr"),
        wanted=np.concatenate([sums.hessian, sums.gradient]),
        error=np.concatenate(errors),
    )


def of_parents(cells: Cells, parents: Ints, counts: Ints) -> Program:
    """The rows of every earlier cell, shared out among the cells that it falls into."""
    size, before = len(cells), len(counts)
    cell = np.arange(size)
    where = (np.concatenate([parents, before + parents]), np.concatenate([cell, size + cell]))
    rows = csr_array((np.ones(2 * size), where), shape=(2 * before, 2 * size))
    return Program(rows=rows, wanted=counts.T.ravel().astype(float), error=np.zeros(2 * before))


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


def solve_nearest(program: Program, effort: Effort, *, whole: bool = True) -> Floats | None:
    """Numbers (C, 2), whole or not, with the least sum of distances from the equations, each on its error."""
    rows, equations = program.rows, len(program.wanted)
    size = rows.shape[1]
    hard = program.error == 0
    scale = 1 / np.where(hard, 1.0, program.error)
    slack = csr_array((np.where(hard, 0.0, 1.0), (np.arange(equations), np.arange(equations))))
    scaled = csr_array(rows.multiply(scale[:, None]))
    wanted = program.wanted * scale
    result = milp(
        np.concatenate([np.zeros(size), np.ones(2 * equations)]),
        constraints=LinearConstraint(hstack([scaled, slack, -slack], format="csr"), wanted, wanted),
        integrality=np.concatenate([np.full(size, int(whole)), np.zeros(2 * equations, dtype=np.int64)]),
        bounds=Bounds(0, np.inf),
        options={"node_limit": effort.nodes, "time_limit": effort.seconds},
    )
    if result.x is None:
        return None
    return np.asarray(result.x[:size].reshape(2, -1).T)


def certify(program: Program, counts: Ints, effort: Effort) -> NDArray[np.bool_]:
    """Which counts are the only ones that fit: smallest and largest are equal, both proved, (C, 2).

    Every solution on the way is kept: a count in which two of them differ needs no program of its own.
    """
    certain, size = np.zeros_like(counts, dtype=np.bool_), len(counts)
    least, most = counts.copy(), counts.copy()
    short = replace(effort, seconds=effort.seconds / 20)
    left = effort.certify
    for cell, label in np.argwhere(counts > 0):
        proved = True
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
    return np.asarray(certain & (least == most))


def count_cells(
    trees: TreeEnsemble,
    counted: Counted,
    later: list[Sums],
    *,
    reg_lambda: float,
    effort: Effort,
    rng: np.random.Generator,
    possible: Possible | None = None,
) -> Solution:
    """Rows of each label per joint cell of the first tree and ``later`` ones, as many trees as can be solved.

    All equations at once first; where the solver does not end, tree by tree, and back to another split of an
    earlier tree where none fits any more.

    Args:
        trees: the document.
        counted: the first tree.
        later: the sums of the next trees, in order.
        reg_lambda: of the penalty.
        effort: of the search.
        rng: draws which of several splits is tried.
        possible: which boxes hold a valid row.
    """
    values = [trees.trees[t].value[s.leaves] for t, s in enumerate([counted.sums, *later])]
    layers = [start(counted, values[0], possible)]
    for t, sums in enumerate(later):
        if len(layers[-1]) > CELLS:
            break
        layers.append(refine(layers[-1], sums, values[t + 1], possible))
    used = len(layers) - 1
    last = layers[-1]
    program = of_first(last, counted)
    for t in range(used):
        program += of_tree(last, t + 1, later[t], reg_lambda)
    answer = solve(program, np.zeros(2 * len(last)), effort) if len(last) <= CELLS else None
    if answer is not None:
        counts = answer[0]
        certain = certify(program, counts, effort)
    else:
        counts = _tree_by_tree(layers, counted, later, reg_lambda=reg_lambda, effort=effort, rng=rng)
        certain = np.zeros_like(counts, dtype=np.bool_)
    return Solution(
        cells=last, counts=counts, residual=program.residual(counts), certain=certain, trees=used + 1
    )


def _tree_by_tree(
    layers: list[Cells],
    counted: Counted,
    later: list[Sums],
    *,
    reg_lambda: float,
    effort: Effort,
    rng: np.random.Generator,
) -> Ints:
    """Split the rows of every cell over the next tree's leaves, one tree after another, with a way back.

    A tree of which no split fits shows that an earlier split was wrong: the tree before is split anew towards
    a random goal. Where the returns are used up, the split with the least residual is taken, and it goes on.
    """
    chosen = [_share_first(layers[0], counted)]
    returns = effort.returns
    while len(chosen) < len(layers):
        t = len(chosen)
        cells, before = layers[t], chosen[-1]
        parents = _parents(layers[t - 1], cells)
        program = of_parents(cells, parents, before) + of_tree(cells, t, later[t - 1], reg_lambda)
        answer = solve(program, rng.standard_normal(2 * len(cells)) * bool(returns < effort.returns), effort)
        if answer is not None:
            chosen.append(answer[0])
        elif returns and t > 1:
            returns -= 1
            chosen.pop()
        else:
            nearest = solve_nearest(program, effort)
            if nearest is None:  # the solver had no time: its relaxation, rounded, is a guess
                relaxed = solve_nearest(program, effort, whole=False)
                shares = np.zeros((len(cells), 2)) if relaxed is None else relaxed
                chosen.append(_rounded(shares, parents, before))
            else:
                chosen.append(np.round(nearest).astype(np.int64))
    return chosen[-1]


def _share_first(cells: Cells, counted: Counted) -> Ints:
    return counted.counts[cells.paths[:, 0]]


def _parents(before: Cells, cells: Cells) -> Ints:
    """The earlier cell of every cell: the one of the same path."""
    known = {tuple(path): i for i, path in enumerate(before.paths.tolist())}
    return np.array([known[tuple(path)] for path in cells.paths[:, :-1].tolist()], dtype=np.int64)


def _rounded(shares: Floats, parents: Ints, before: Ints) -> Ints:
    """Shares of the rows of earlier cells as whole numbers of the same sum: largest remainders first."""
    counts = np.floor(shares + 1e-9).astype(np.int64)
    for cell, label in np.argwhere(before > 0):
        children = np.flatnonzero(parents == cell)
        rest = int(before[cell, label] - counts[children, label].sum())
        order = np.argsort(counts[children, label] - shares[children, label], kind="stable")
        np.add.at(counts[:, label], children[order[np.arange(max(rest, 0)) % len(children)]], 1)
    return counts

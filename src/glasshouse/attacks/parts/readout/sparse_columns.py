"""Factorise a ReLU layer's gradient into examples, by sparse directions in its column space.

The gradient of a linear layer is G = D X: row r of D holds dL/dz of row r for every example, X the inputs.
Both have rank B, so an SVD gives G = U S Vᵀ and D = U Q for some unknown Q. Behind a ReLU, dL/dz is zero
wherever a row is inactive: about half of every column of D. For nearly all other q, U q has no zero at all,
so a q with many zeros in U q is a column of Q, up to a factor. Two ways to find such q:

* draws: B - 1 random rows of U have one common null direction q. It is a column of Q whenever one example
  activates none of them, about B times in 2 ** (B - 1) draws.
* descents: the sum of ``|U q|`` over rows has local minima at the columns of Q; start at random points on the
  sphere, of the whole space or of the null space of a few random rows.

Source: Dimitrov et al. 2024 (SPEAR), arXiv:2403.03945 (low rank, sampling, sparsity filter, greedy choice);
Bakarsky et al. 2025 (SPEAR++), arXiv:2510.24200 (dictionary learning instead of sampling). Where we differ:
entries below the noise of the received gradient, estimated from the singular values after the first B, count
as zeros; every candidate is refined to vanish exactly on its zeros; descents also run in null spaces of a few
rows, which finds columns that no descent in the whole space reaches.

Shape letters: R rows, D entries of an input, B examples, C candidates, N starts or draws, S null spaces, E
their dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import final

import torch
from torch import Tensor

from glasshouse.limits import Natural, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng

LEAST_ZEROS = 0.05
"""Share of rows that must be zero in a candidate, besides the B - 1 that always can be."""
SIGMAS = 8.0
"""Entries below this many standard deviations of the noise count as zero."""
_STEPS, _STARTS, _SPACES = 150, 4, 64  # steps of a descent; starts per null space; null spaces per sweep
_CONDITIONS = (0, 0, 1, 2, 3, 4)  # rows whose null space a sweep searches, in turn
_DRAWS = 4096  # in one batched solve
_POLISH = (1e-1, 3e-2, 1e-2, 1e-3, 1e-5, 1e-7)  # entries below this multiple of a typical one are made zero
_SAME = 1e-2  # directions whose cosine is within this of 1 count as equal
_PROMISING = 256  # candidates that are refined at once, the sparsest


@final
@dataclass(frozen=True, kw_only=True)
class ColumnSearch:
    """Length of the search: the table ``search`` of SPEAR.

    Attributes:
        iterations: sweeps of 256 descents; 0: none.
        draws: draws of B - 1 rows, made after the sweeps if columns are still missing; 0: none.
    """

    iterations: Natural = 60
    draws: Natural = 0

    def __post_init__(self) -> None:
        check_ranges(self, "search for sparse columns")

    @property
    def sweeps(self) -> int:
        """Sweeps of both kinds together."""
        return self.iterations + -(-self.draws // _DRAWS)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The gradient, factorised.

    Attributes:
        rows: (R', B), the rows of U of units with a nonzero gradient.
        alive: (R,) bool, mask of these units.
        inverse: (B,) 1 / singular values.
        noise: standard deviation of one entry of the gradient outside its B largest components.
    """

    rows: Tensor
    alive: Tensor
    inverse: Tensor
    noise: float

    @property
    def least(self) -> float:
        """Minimum number of zero entries of a column."""
        return self.rows.shape[1] - 1 + LEAST_ZEROS * len(self.rows)

    def zeros(self, directions: Tensor, *, width: float = 0.0) -> Tensor:
        """Mask (R', C) of the entries of U q below the noise, or ``width``, for unit directions (B, C)."""
        level = SIGMAS * self.noise * (self.inverse[:, None] * directions).norm(dim=0) + 1e-13
        small: Tensor = (self.rows @ directions).abs() <= level.clamp_min(width)
        return small

    def columns(self, directions: Tensor) -> Tensor:
        """U q of unit directions (B, C) over all rows, with entries below the noise set to zero: (R, C)."""
        values = self.rows.new_zeros(len(self.alive), directions.shape[1])
        values[self.alive] = (self.rows @ directions).masked_fill(self.zeros(directions), 0.0)
        return values


def factorize(gradient: Tensor, examples: int) -> Factors:
    """Factorise a gradient (R, D), float64, of at most ``examples`` examples, fewer than R and D."""
    left, values, _ = torch.linalg.svd(gradient, full_matrices=False)
    beyond = values[examples:]
    noise = float(
        beyond.square().sum().div((len(gradient) - examples) * (gradient.shape[1] - examples)).sqrt()
    )
    edge = 3.0 * float(beyond[0])
    rank = max(1, int((values[:examples] > edge).sum()))
    rows = left[:, :rank]
    alive = rows.norm(dim=1) > SIGMAS * noise * float(1 / values[rank - 1]) + 1e-13
    return Factors(rows=rows[alive], alive=alive, inverse=1 / values[:rank], noise=noise)


def find_columns(
    factors: Factors, search: ColumnSearch, *, accept: Callable[[Tensor], bool], rng: Rng
) -> Tensor:
    """Directions q of the sparsest independent columns, (B, C) with C <= B: sparsest first.

    The search ends when there are B columns that ``accept`` confirms, or when its budget is spent.
    """
    examples = factors.rows.shape[1]
    if len(factors.rows) <= examples:  # nearly all rows are below the noise
        return factors.rows.new_zeros(examples, 0)
    columns = factors.rows.new_ones(examples, int(examples == 1))
    sweeps = track(range(search.iterations), "searching for sparse columns")
    draws = track(range(search.sweeps - search.iterations), "drawing rows")
    ways = chain(((_descend, i) for i in sweeps), ((_draw, i) for i in draws))
    while not (columns.shape[1] == examples and accept(columns)) and (way := next(ways, None)):
        search_in, number = way
        stream = rng.child(f"{search_in.__name__}/{number}")
        candidates = _sparse(factors, search_in(factors.rows, number, stream))
        columns = _choose(factors, torch.cat((columns, candidates), dim=1))
    return columns


def _descend(rows: Tensor, number: int, rng: Rng) -> Tensor:
    """Local minima of sum |rows @ q| over unit vectors, in null spaces of a few rows: (B, N)."""
    count, examples = rows.shape
    generator = rng.torch()
    conditions = min(_CONDITIONS[number % len(_CONDITIONS)], max(examples - 2, 0))
    if conditions:
        picked = torch.rand(_SPACES, count, generator=generator).argsort(1)[:, :conditions]
        null = torch.linalg.qr(rows[picked].mT, mode="complete").Q[:, :, conditions:]  # (S, B, E)
        starts = _STARTS
    else:
        null, starts = torch.eye(examples, dtype=rows.dtype)[None], _STARTS * _SPACES
    inside = rows @ null  # (S, R, E)
    square_root, failed = torch.linalg.cholesky_ex(inside.mT @ inside)
    if bool(failed.any()):
        return rows.new_zeros(examples, 0)
    null = torch.linalg.solve_triangular(square_root, null.mT, upper=False).mT
    inside = rows @ null
    q = torch.randn(len(null), null.shape[2], starts, generator=generator, dtype=rows.dtype)
    for step in range(_STEPS):
        q = q / q.norm(dim=1, keepdim=True).clamp_min(1e-12)
        width = max(0.916**step, 1e-4) * count**-0.5
        slope = inside.mT @ torch.tanh(inside @ q / width)
        slope = slope - q * (q * slope).sum(1, keepdim=True)
        q = q - 0.3 * 0.97**step * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-12)
    columns: Tensor = torch.nn.functional.normalize((null @ q).mT.reshape(-1, examples), dim=1).T
    return columns


def _draw(rows: Tensor, number: int, rng: Rng) -> Tensor:
    """Null directions of B - 1 random rows each, (B, N)."""
    del number
    count, examples = rows.shape
    index = torch.rand(_DRAWS, count, generator=rng.torch()).topk(examples - 1, dim=1).indices
    picked = rows[index]  # (N, B - 1, B)
    head, failed = torch.linalg.solve_ex(picked[:, :, :-1], -picked[:, :, -1])
    q = torch.cat((head, head.new_ones(len(head), 1)), dim=1)[(failed == 0) & head.isfinite().all(1)]
    columns: Tensor = torch.nn.functional.normalize(q, dim=1).T
    return columns


def _sparse(factors: Factors, q: Tensor) -> Tensor:
    """The distinct directions of (B, N) with many zeros, refined to be exactly zero there: (B, C)."""
    rows, unit = factors.rows, len(factors.rows) ** -0.5
    near = ((rows @ q).abs() < 0.1 * unit).sum(0)
    order = near.argsort(descending=True, stable=True)
    q = _distinct(q[:, order[: int((near >= factors.least).sum())]])[:, :_PROMISING]
    for width in _POLISH:
        if not q.shape[1]:
            return q
        weight = factors.zeros(q, width=width * unit).T.to(rows.dtype)  # (C, R)
        q = torch.linalg.eigh(torch.einsum("cr,ri,rj->cij", weight, rows, rows))[1][:, :, 0].T
    return _distinct(q[:, factors.zeros(q).sum(0) >= factors.least])


def _distinct(q: Tensor) -> Tensor:
    """The first of every group of directions (B, N) that are nearly equal up to sign."""
    chosen: list[int] = []
    cosines = (q.T @ q).abs()
    for i in range(q.shape[1]):
        if not bool((cosines[i, chosen] > 1 - _SAME).any()):
            chosen.append(i)
    return q[:, chosen]


def _choose(factors: Factors, q: Tensor) -> Tensor:
    """Choose directions greedily: the sparsest that are independent of those chosen before."""
    order = factors.zeros(q).sum(0).argsort(descending=True, stable=True)
    chosen: list[int] = []
    basis = q[:, :0]
    for i in order.tolist():
        rest = q[:, i] - basis @ (basis.T @ q[:, i])
        if float(rest.norm()) > 1e-3:
            chosen.append(i)
            basis = torch.cat((basis, (rest / rest.norm())[:, None]), dim=1)
    return q[:, chosen]

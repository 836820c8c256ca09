"""Rows of an update to one linear layer, and row combinations from which a server may read inputs.

Shape letters: m rows of the weight, n its columns, B examples, v combinations,
k pairs of a combination and an example.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.layers.contributions import FAINT, Sizes
from glasshouse.guard.layers.trace import LayerTrace

NEAR_PARALLEL: Final = 0.2
"""Cosine below which the difference of two rows exposes no example that neither row exposes alone."""
AT_A_TIME: Final = 2**23
"""Numbers gathered at a time."""
OWNED: Final = 0.9
"""Share of a vector from which on it exposes one example."""
ROUNDING: Final = 1e-5
"""A difference below this share of its rows is lost in float32 rounding."""
SAME: Final = 1 - 1e-9
"""Cosine from which on two rows count as equal: they differ by about ``ROUNDING`` or less."""
NEIGHBOURS: Final = 8
"""Number of most similar rows that a row is compared with."""
WITNESSES: Final = 2
"""Other examples that must agree on the factor between two rows: a single agreement may be chance."""
AGREEMENT: Final = 0.01
UNEVEN: Final = 0.2
"""Share of a difference's energy that an isolated example must have at least; a cheap test."""
_NUMBERS: Final = 2**22  # compared at a time
_DISTINCT: Final = 256  # rows compared at a time
_TINY: Final = torch.finfo(torch.float).tiny

By = Literal["a row", "several rows", "a difference of two rows", "all rows", "fixed rows", "own columns"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowCombinations:
    """Rows, or differences of two: the first minus a multiple (0 for single rows) of the second.

    Attributes:
        first, second: row indices, (v,).
        multiples: (v,).
        by: kind of combination.
    """

    first: Tensor
    second: Tensor
    multiples: Tensor
    by: By

    def of(self, t: Tensor) -> Tensor:
        """The same combinations of the rows of ``t``, (m, ...); a view for consecutive single rows."""
        if self.by != "a row":
            multiples = self.multiples.reshape(-1, *(1,) * (t.ndim - 1))
            return t[self.first] - multiples * t[self.second]
        first, last = int(self.first[0]), int(self.first[-1])  # rows are in their order
        return t[first : last + 1] if last - first < len(self.first) else t[self.first]

    def at_most(self, sizes: Tensor) -> Tensor:
        """Bounds on the entries of combinations, (v,), from bounds ``sizes`` on those of the rows, (m,)."""
        return sizes[self.first] + self.multiples.abs() * sizes[self.second]

    def least(self, t: Tensor) -> Tensor:
        """The smaller one of the two rows' values in ``t``, (m,): (v,)."""
        return torch.minimum(t[self.first], t[self.second])

    def pick(self, some: Tensor) -> "RowCombinations":
        """The combinations with these indices, in ascending order."""
        first, second, multiples = self.first[some], self.second[some], self.multiples[some]
        return RowCombinations(first=first, second=second, multiples=multiples, by=self.by)

    def parts(self, width: int) -> Iterator["RowCombinations"]:
        """Parts small enough that their vectors of ``width`` numbers fit in memory."""
        at_a_time = max(1, AT_A_TIME // max(1, width))
        split = (torch.split(t, at_a_time) for t in (self.first, self.second, self.multiples))
        for first, second, multiples in zip(*split, strict=True) if len(self.first) else ():
            yield RowCombinations(first=first, second=second, multiples=multiples, by=self.by)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """k pairs of a vector and an example that contributed enough to it.

    Attributes:
        vectors: indices of the vectors in any pair, ascending, (v,).
        examples: indices of the examples in any pair, ascending, (e,).
        which: position of each pair's vector in ``vectors``, (k,).
        who: position of its example in ``examples``, (k,).
        own: the example's own contribution to the vector's component along it, (k,).
    """

    vectors: Tensor
    examples: Tensor
    which: Tensor
    who: Tensor
    own: Tensor


def candidates(rows: Tensor, sizes: Sizes, trace: LayerTrace) -> Iterator[RowCombinations]:
    """Combinations that a server may read: rows, isolating differences, and those of adjacent thresholds."""
    yield single(rows)
    top, cosines = sizes.top / sizes.length.clamp_min(FAINT), sizes.cosines
    uneven = (top + cosines * top[:, None]).square() >= UNEVEN * (1 - cosines.square())
    possible = uneven & (cosines >= NEAR_PARALLEL)
    near = possible.any(1).nonzero()[:, 0]
    ordered = in_order_of_thresholds(rows, trace)
    if len(near):
        pairs = differences(sizes.signed[near].T, like=NEAR_PARALLEL, opposite=True)
        ordered = RowCombinations(
            first=torch.cat([near[pairs.rows], ordered.first]),
            second=torch.cat([near[pairs.others], ordered.second]),
            multiples=torch.cat([pairs.multiples.to(rows.dtype), ordered.multiples]),
            by=ordered.by,
        )
    yield ordered


def single(rows: Tensor) -> RowCombinations:
    """Each single row."""
    every = torch.arange(len(rows), device=rows.device)
    return RowCombinations(first=every, second=every, multiples=torch.zeros_like(rows[:, 0]), by="a row")


def in_order_of_thresholds(rows: Tensor, trace: LayerTrace) -> RowCombinations:
    """Differences of rows whose units are adjacent in the order of activation thresholds."""
    weight, bias = trace.layer.weight.detach(), trace.layer.bias
    offset = torch.zeros(len(weight), device=weight.device) if bias is None else bias.detach()
    order = (-offset / torch.linalg.vector_norm(weight, dim=1).clamp_min(_TINY)).to(rows.device).argsort()
    order = order[rows[order].any(1)]
    return RowCombinations(
        first=order[1:],
        second=order[:-1],
        multiples=torch.ones(max(0, len(order) - 1), dtype=rows.dtype, device=rows.device),
        by="a difference of two rows",
    )


def ask(vectors: RowCombinations, sizes: Sizes, least: Tensor) -> Pairs | None:
    """The pairs of a vector and an example that contributed at least ``least``, (v,), to it.

    Contributions are computed only for vectors that pass a cheap upper bound.
    """
    some = ((vectors.at_most(sizes.top) >= least) & (least > 0)).nonzero()[:, 0]
    if not len(some):
        return None
    own = vectors.pick(some).of(sizes.signed)
    which, who = (own.abs() >= least[some, None]).nonzero(as_tuple=True)
    if not len(who):
        return None
    used, place = torch.unique(which, return_inverse=True)
    examples, number = torch.unique(who, return_inverse=True)
    return Pairs(vectors=some[used], examples=examples, which=place, who=number, own=own[which, who])


@final
@dataclass(frozen=True, kw_only=True)
class Differences:
    """D differences of two rows in which most examples cancel out.

    Attributes:
        rows: of the layer's weight, (D,).
        others: the rows of which a multiple is subtracted, (D,).
        multiples: the factors, (D,).
        examples: the only example in the remainder, (D,); -1: it mixes several.
    """

    rows: Tensor
    others: Tensor
    multiples: Tensor
    examples: Tensor


def differences(signed_sizes: Tensor, *, like: float = -1.0, opposite: bool = False) -> Differences:
    """Differences of similar rows to which all examples contribute equally, except for one or a few.

    Args:
        signed_sizes: signed contribution of each example to the gradient of each row, (B, rows).
        like: cosine of two rows below which their difference is not considered.
        opposite: also consider rows that are similar up to their sign.
    """
    every = signed_sizes.T
    numbers = every.any(1).nonzero()[:, 0]
    rows = every[numbers].double()
    directions = F.normalize(rows / rows.abs().amax(1, keepdim=True), dim=1)  # also for tiny rows
    first = _is_first(directions)
    if not bool(first.all()):
        numbers, rows, directions = numbers[first], rows[first], directions[first]
    blocks = [torch.empty(0, 4, dtype=torch.double, device=rows.device)]
    at_a_time = max(1, _NUMBERS // (NEIGHBOURS * max(1, len(signed_sizes))))
    for places in torch.split(torch.arange(len(rows), device=rows.device), at_a_time):
        cosine = directions[places] @ directions.T
        likeness = cosine.abs() if opposite else cosine.clone()
        likeness.masked_fill_(likeness > SAME, -1)  # itself
        neighbours = likeness.topk(max(0, min(NEIGHBOURS, len(rows) - 1)), dim=1).indices  # (r, k)
        mine, others = _uneven(directions, places, neighbours, cosine.gather(1, neighbours), like)
        some, near = rows[mine], rows[others]  # (pairs, B)
        ratios = torch.where(near != 0, some / near, torch.nan)
        factor = ratios.nanmedian(1).values.nan_to_num()
        multiple = factor[:, None] * near
        residual = (some - multiple).abs()
        whole = some.abs() + multiple.abs()
        agree = (residual <= AGREEMENT * whole) & (whole > ROUNDING * whole.amax(1, keepdim=True))
        top, who = residual.max(1)
        confirmed = (top >= ROUNDING * whole.sum(1)) & (agree.sum(1) >= WITNESSES)
        only = torch.where(top >= OWNED * residual.sum(1), who, -1)
        of_pairs = (numbers[mine], numbers[others], factor, only)
        blocks.append(torch.stack([t[confirmed].double() for t in of_pairs], dim=1))
    pairs = torch.cat(blocks)
    return Differences(
        rows=pairs[:, 0].long(),
        others=pairs[:, 1].long(),
        multiples=pairs[:, 2],
        examples=pairs[:, 3].long(),
    )


def _uneven(
    directions: Tensor, places: Tensor, neighbours: Tensor, cosine: Tensor, like: float
) -> tuple[Tensor, Tensor]:
    """The pairs of rows whose least-squares difference is dominated by some example.

    Args:
        directions: of all rows, (m, B).
        places: indices of the rows, (r,).
        neighbours: of each row, (r, k).
        cosine: between them, (r, k).
        like: absolute cosine below which a pair is left out.

    Returns:
        Indices of the rows and of their neighbours, (pairs,) each.
    """
    single = directions.float()
    top = single.abs().amax(1)
    at_most = (top[places][:, None] + cosine.abs() * top[neighbours]).square()
    possible = (cosine.abs() >= like) & (at_most >= UNEVEN * (1 - cosine.square()))
    mine, others = places[:, None].expand_as(neighbours)[possible], neighbours[possible]
    residual = (single[mine] - cosine[possible].float()[:, None] * single[others]).square()
    uneven = residual.amax(1) >= UNEVEN * residual.sum(1)
    return mine[uneven], others[uneven]


def _is_first(directions: Tensor) -> Tensor:
    """Which unit-norm rows do not equal an earlier one."""
    if not len(directions):
        return torch.ones(0, dtype=torch.bool, device=directions.device)
    parts = torch.split(directions, _DISTINCT)
    first = [(some @ directions.T > SAME).byte().argmax(1) for some in parts]
    return torch.cat(first) == torch.arange(len(directions), device=directions.device)

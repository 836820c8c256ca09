"""Rows of an update to one linear layer, and row combinations from which a server may read inputs.

Shape letters: m rows of the weight, n its columns, B examples, v combinations,
k pairs of a combination and an example.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.guard.behaviour.measures import UNEVEN, differences
from glasshouse.guard.behaviour.trace import LayerTrace
from glasshouse.guard.contributions import FAINT, Sizes

NEAR_PARALLEL: Final = 0.2
"""Cosine below which the difference of two rows exposes no example that neither row exposes alone."""
AT_A_TIME: Final = 2**23
"""Numbers gathered at a time."""
_TINY: Final = torch.finfo(torch.float).tiny

By = Literal["a row", "several rows", "a difference of two rows", "all rows"]


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

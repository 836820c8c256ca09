"""Rows of an update to one linear layer, and combinations of them in which a server may look for inputs.

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
"""Cosine below which the difference of two rows shows nobody whom one of them does not show."""
AT_A_TIME: Final = 2**23
"""Numbers that are gathered at a time."""
OWN: Final = 0.2
"""Share of a vector's length that an example must have contributed: with less, the rest resembles it as
well."""
_TINY: Final = torch.finfo(torch.float).tiny

By = Literal["a row", "several rows", "a difference of two rows", "all rows"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowCombinations:
    """Rows, or differences of two: the first less a multiple of the second, which is 0 for rows.

    Attributes:
        first, second: numbers of rows, (v,).
        multiples: (v,).
        by: what they are.
    """

    first: Tensor
    second: Tensor
    multiples: Tensor
    by: By

    def of(self, t: Tensor) -> Tensor:
        """The same combination of the rows of ``t``, (m, ...); of a run of single rows a view."""
        if self.by != "a row":
            multiples = self.multiples.reshape(-1, *(1,) * (t.ndim - 1))
            return t[self.first] - multiples * t[self.second]
        first, last = int(self.first[0]), int(self.first[-1])  # rows are in their order
        return t[first : last + 1] if last - first < len(self.first) else t[self.first]

    def at_most(self, sizes: Tensor) -> Tensor:
        """(v,), what no entry of a combination exceeds where none of a row exceeds ``sizes``, (m,)."""
        return sizes[self.first] + self.multiples.abs() * sizes[self.second]

    def least(self, t: Tensor) -> Tensor:
        """Of numbers of the rows, (m,), the lesser of each two."""
        return torch.minimum(t[self.first], t[self.second])

    def pick(self, some: Tensor) -> "RowCombinations":
        """Those with these numbers, rising."""
        first, second, multiples = self.first[some], self.second[some], self.multiples[some]
        return RowCombinations(first=first, second=second, multiples=multiples, by=self.by)

    def parts(self, width: int) -> Iterator["RowCombinations"]:
        """So many at a time that vectors of ``width`` numbers are no burden."""
        at_a_time = max(1, AT_A_TIME // max(1, width))
        split = (torch.split(t, at_a_time) for t in (self.first, self.second, self.multiples))
        for first, second, multiples in zip(*split, strict=True) if len(self.first) else ():
            yield RowCombinations(first=first, second=second, multiples=multiples, by=self.by)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Vectors and examples that contributed enough to them, k pairs.

    Attributes:
        vectors: numbers of those that are in a pair, rising, (v,).
        examples: numbers of those that are in a pair, rising, (e,).
        which: place of each pair's vector among ``vectors``, (k,).
        who: place of its example among ``examples``, (k,).
        own: the example's part of its component of the vector, (k,).
    """

    vectors: Tensor
    examples: Tensor
    which: Tensor
    who: Tensor
    own: Tensor


def candidates(rows: Tensor, sizes: Sizes, trace: LayerTrace) -> Iterator[RowCombinations]:
    """What a server may look at: rows, differences that isolate, and those of neighbouring thresholds."""
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
    """Each row by itself."""
    every = torch.arange(len(rows), device=rows.device)
    return RowCombinations(first=every, second=every, multiples=torch.zeros_like(rows[:, 0]), by="a row")


def in_order_of_thresholds(rows: Tensor, trace: LayerTrace) -> RowCombinations:
    """Differences of rows whose units begin to fire one after the other along their own direction."""
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


def ask(vectors: RowCombinations, sizes: Sizes, whole: Tensor) -> Pairs | None:
    """The pairs of a vector and an example that contributed at least ``OWN`` of ``whole``, (v,), to it.

    What examples contributed is looked up only for vectors of rows to which one contributed so much.
    """
    some = ((vectors.at_most(sizes.top) >= OWN * whole) & (whole > 0)).nonzero()[:, 0]
    if not len(some):
        return None
    own = vectors.pick(some).of(sizes.signed)
    which, who = (own.abs() >= OWN * whole[some, None]).nonzero(as_tuple=True)
    if not len(who):
        return None
    used, place = torch.unique(which, return_inverse=True)
    examples, number = torch.unique(who, return_inverse=True)
    return Pairs(vectors=some[used], examples=examples, which=place, who=number, own=own[which, who])

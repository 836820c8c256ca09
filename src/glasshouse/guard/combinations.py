"""Rows of an update to one linear layer, and combinations of them in which a server may look for inputs.

Shape letters: m rows of the weight, n its columns, B examples, v combinations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.measures import UNEVEN, differences
from glasshouse.guard.behaviour.trace import LayerTrace

NEAR_PARALLEL: Final = 0.2
"""Cosine below which the difference of two rows shows nobody whom one of them does not show."""
PAIRS: Final = 2**23
"""Numbers that are gathered at a time."""
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
        """The same combination of the rows of ``t``."""
        if self.by == "a row":  # all, or some in their order
            return t[int(self.first[0]) : int(self.first[-1]) + 1]
        return t[self.first] - self.multiples[:, None] * t[self.second]

    def least(self, t: Tensor) -> Tensor:
        """Of numbers of the rows, (m,), the lesser of each two."""
        return torch.minimum(t[self.first], t[self.second])

    def parts(self, width: int) -> Iterator["RowCombinations"]:
        """So many at a time that vectors of ``width`` numbers are no burden."""
        at_a_time = max(1, PAIRS // max(1, width))
        split = (torch.split(t, at_a_time) for t in (self.first, self.second, self.multiples))
        for first, second, multiples in zip(*split, strict=True) if len(self.first) else ():
            yield RowCombinations(first=first, second=second, multiples=multiples, by=self.by)


def candidates(rows: Tensor, signed: Tensor, trace: LayerTrace) -> Iterator[RowCombinations]:
    """What a server may look at: rows, differences that isolate, and those of neighbouring thresholds."""
    yield single(rows)
    directions = F.normalize(signed, dim=1)
    cosines = (directions @ directions.T).fill_diagonal_(0).abs()
    top = directions.abs().amax(1)
    uneven = (top + cosines * top[:, None]).square() >= UNEVEN * (1 - cosines.square())
    possible = uneven & (cosines >= NEAR_PARALLEL)
    near = possible.any(1).nonzero()[:, 0]
    pairs = differences(signed[near].T, like=NEAR_PARALLEL, opposite=True)
    yield RowCombinations(
        first=near[pairs.rows],
        second=near[pairs.others],
        multiples=pairs.multiples.to(rows.dtype),
        by="a difference of two rows",
    )
    yield in_order_of_thresholds(rows, trace)


def single(rows: Tensor) -> RowCombinations:
    """Each row by itself."""
    every = torch.arange(len(rows), device=rows.device)
    return RowCombinations(first=every, second=every, multiples=torch.zeros_like(rows[:, 0]), by="a row")


def in_order_of_thresholds(rows: Tensor, trace: LayerTrace) -> RowCombinations:
    """Differences of rows whose units begin to fire one after the other along their own direction."""
    weight, bias = trace.layer.weight.detach(), trace.layer.bias
    offset = torch.zeros(len(weight), device=weight.device) if bias is None else bias.detach()
    order = (-offset / weight.norm(dim=1).clamp_min(_TINY)).to(rows.device).argsort()
    order = order[rows[order].any(1)]
    return RowCombinations(
        first=order[1:],
        second=order[:-1],
        multiples=torch.ones(max(0, len(order) - 1), dtype=rows.dtype, device=rows.device),
        by="a difference of two rows",
    )

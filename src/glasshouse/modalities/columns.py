"""All columns of a table at once: what one column does to its entries, in few operations for many columns.

Every number is that of the columns one by one, to the last digit: what is paired and judged by these
distances must not depend on how many columns are worked on at a time.
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol, final

import numpy as np
import torch
from torch import Tensor

__all__ = ["Columns"]

AT_ONCE: Final = 2**20
"""Distances of single columns that are kept at a time."""


class _Column(Protocol):
    """What is read of a column."""

    @property
    def kind(self) -> str: ...
    @property
    def numeric(self) -> bool: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def entries(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def missing(self) -> bool: ...
    @property
    def same(self) -> float: ...


@final
class Columns:
    """The columns of a table, C of them, in the order of their entries; F entries make a row."""

    def __init__(self, columns: Sequence[_Column]) -> None:
        widths = torch.tensor([column.width for column in columns])
        self._first = widths.cumsum(0) - widths
        self._last = self._first + widths - 1
        self._low = torch.tensor([column.low for column in columns], dtype=torch.float64)
        self._span = torch.tensor([column.high - column.low for column in columns], dtype=torch.float64)
        self._same = torch.tensor([column.same for column in columns], dtype=torch.float64)
        self._numeric = torch.tensor([column.numeric for column in columns])
        self._whole = torch.tensor([column.kind == "integer" for column in columns])
        self._binary = torch.tensor([column.kind == "binary" for column in columns])
        self._missing = torch.tensor([column.missing for column in columns])
        # Categories with as many levels as others are read together: positions (K,) and entries (K, L).
        alike: dict[int, list[int]] = {}
        for i, column in enumerate(columns):
            if column.kind == "categorical":
                alike.setdefault(column.entries, []).append(i)
        self._categories = [
            (torch.tensor(own), self._first[own][:, None] + torch.arange(width))
            for width, own in alike.items()
        ]

    def decode(self, inputs: Tensor) -> Tensor:
        """The valid values nearest to encoded rows (B, F): (B, C) float64, NaN where missing."""
        entries, device = inputs.double(), inputs.device
        own = entries[:, self._first.to(device)]
        numbers = own.clamp(0, 1) * self._span.to(device) + self._low.to(device)
        numbers = torch.where(self._whole.to(device), numbers.round(), numbers)
        values = torch.where(self._binary.to(device), (own > 0.5).double(), numbers)
        rival = torch.full_like(values, 0.5)
        for place, levels in self._categories:
            each = entries[:, levels.to(device)]
            values[:, place] = each.argmax(2).double()
            # Of a category, missing is one more level; of a number, its entry decides alone.
            rival[:, place] = each.amax(2)
        if self._missing.any():
            absent = self._missing.to(device) & (entries[:, self._last.to(device)] > rival)
            values = values.masked_fill(absent, math.nan)
        return values

    def apart(self, left: Tensor, right: Tensor, columns: slice = slice(None)) -> Tensor:
        """The distance of decoded cells in every column, as they broadcast: (..., C) float64 in [0, 1].

        Args:
            left: (..., C).
            right: (..., C).
            columns: those that both have.
        """
        numeric, span, same, missing = (
            each[columns].to(left.device) for each in (self._numeric, self._span, self._same, self._missing)
        )
        gap = (left - right).abs()
        of_numbers = (gap / span).clamp_(max=1).masked_fill_(gap <= same, 0.0)
        apart = torch.where(numeric, of_numbers, (left != right).double())
        if not missing.any():
            return apart
        absent = left.isnan() & missing, right.isnan() & missing
        # A missing value is as far as can be from any other.
        apart = torch.where(absent[0] ^ absent[1], 1.0, apart)
        return torch.where(absent[0] & absent[1], 0.0, apart)

    def total(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum of :meth:`apart` over the columns, (...), a few columns at a time where rows are many."""
        shape = np.broadcast_shapes(left.shape, right.shape)[:-1]
        total = torch.zeros(shape, dtype=torch.float64, device=left.device)
        size = max(1, AT_ONCE // max(1, total.numel()))
        for start in range(0, len(self._first), size):
            some = slice(start, start + size)
            # One after another, in order: a sum in pairs would differ in its last digit.
            for one in self.apart(left[..., some], right[..., some], some).unbind(-1):
                total += one
        return total

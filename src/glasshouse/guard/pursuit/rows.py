"""Which axes of a tensor count rows: a server may take any of them.

A tensor with no axis of rows is a single row: a scale, a bias, or a layer of one unit. Rows that are tensors
of their own are combined like those of one matrix. The forward pass may take a tensor for other matrices:
each is a piece of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, final

import torch
from torch import Tensor

Axes = tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Rows of a tensor that the forward pass makes of numbers of another.

    Attributes:
        places: of its numbers in that, counted from 0, in its own shape.
        axes: that count rows.
    """

    places: Tensor
    axes: Axes

    def of(self, tensor: Tensor) -> Tensor:
        """Its numbers, copied."""
        return tensor.reshape(-1)[self.places.to(tensor.device)]


Rows = Axes | Piece
"""Where the rows of a tensor are."""
FIRST: Final[Axes] = (0,)
"""Rows of a linear layer or a convolution."""
_LEAST: Final = 16  # numbers of a row below which further divisions are left out
_MOST: Final = 2048  # rows of a further division


def as_rows(tensor: Tensor, axes: Rows) -> Tensor:
    """The rows of a tensor, (rows, n)."""
    if isinstance(axes, Piece):
        return as_rows(axes.of(tensor), axes.axes)
    rest = [axis for axis in range(tensor.ndim) if axis not in axes]
    count = math.prod(tensor.shape[axis] for axis in axes)
    return tensor.permute(*axes, *rest).reshape(count, -1)


def without_rows(tensor: Tensor, axes: Rows, rows: Sequence[int]) -> Tensor:
    """A copy in which some rows are zero."""
    if isinstance(axes, Piece):
        left = tensor.clone(memory_format=torch.contiguous_format)
        left.view(-1)[axes.places.to(tensor.device)] = without_rows(axes.of(tensor), axes.axes, rows)
        return left
    count = math.prod(tensor.shape[axis] for axis in axes)
    dropped = torch.zeros(count, dtype=torch.bool, device=tensor.device)
    dropped[list(rows)] = True
    shape = [size if axis in axes else 1 for axis, size in enumerate(tensor.shape)]
    return tensor.masked_fill(dropped.reshape(shape), 0)


def divisions(shape: Sequence[int], *, whole: bool) -> list[Axes]:
    """The axes that may count rows: every way to divide them into rows and columns that says something.

    Args:
        shape: of a tensor.
        whole: also take the tensor for one row, as others of its size may be the other rows.
    """
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    found: list[Axes] = [()] if wide and (whole or len(wide) == 1) else []
    for count in range(1, len(wide)):
        for axes in combinations(wide, count):
            rows = math.prod(shape[axis] for axis in axes)
            narrow = math.prod(shape) // rows < _LEAST or rows > _MOST
            if axes == tuple(wide[:1]) or len(wide) == 2 or not narrow:
                found.append(axes)
    return found

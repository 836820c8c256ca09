"""Which axes of a tensor count rows: a server may take any of them.

A tensor with no axis of rows is a single row: a scale, a bias, or a layer of one unit. Rows that are tensors
of their own are combined like those of one matrix. The forward pass may take a tensor for other matrices:
each is a piece of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
_SKETCH: Final = 8  # numbers by which directions are compared
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


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One side of one tensor: its rows, and what the examples add to them.

    Attributes:
        name: of the tensor.
        pulls: (N, R).
        sizes: length of what each example adds to each row, (N, R): more than the pulls where a row is used
            at several positions.
        directions: unit vectors along which the examples pull, (N, n): what each reads, up to sign; None:
            rows read inputs of their own (groups of a convolution).
        numbers: of the rows in the tensor, (R,): rows that nobody reaches may be left out.
        axes: of the tensor, or of a piece of it, that count rows; none: it is a single row.
        reach: length of what each example's row reads, (N,), negative where ``directions`` are turned round;
            None: it is read at several positions.
        ratio: what the pulls were multiplied by, (N, 1), as the group reads the same in other coordinates.
        mixed: names of the tensors whose rows a fixed mixture turns into these, which no tensor has.
        fires: on which side of its hyperplane each row is, (N, R), where no pull vanishes (an activation with
            a slope on both sides); None: pulls that vanish tell it.
    """

    name: str
    pulls: Tensor
    sizes: Tensor
    directions: Tensor | None
    numbers: Tensor
    axes: Rows = FIRST
    reach: Tensor | None = None
    ratio: Tensor | None = None
    mixed: tuple[str, ...] = ()
    fires: Tensor | None = None

    @property
    def layer(self) -> str:
        """The layer that the tensor is the weight of; a parameter by itself: its own name."""
        return self.name.removesuffix("weight").removesuffix(".") or self.name

    @property
    def columns(self) -> int:
        """n; 0: unknown."""
        return 0 if self.directions is None else self.directions.shape[1]

    @cached_property
    def sketch(self) -> Tensor | None:
        """A few numbers of each direction, (N, 8), by which inputs are compared."""
        if self.directions is None:
            return None
        mixtures = torch.randn(self.columns, _SKETCH, generator=torch.Generator().manual_seed(1))
        return self.directions.float() @ mixtures.to(self.directions.device)

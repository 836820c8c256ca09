"""Domain shifts: transforms that move images to another domain, such as blur or a mask.

Each transform maps images (B, C, H, W) in [0, 1] to images of the same shape, type and range.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, final, runtime_checkable

from torch import Tensor
from torch.nn import functional

from glasshouse.errors import BadValue
from glasshouse.limits import Fix, Unit, check_ranges
from glasshouse.registry import Card


@runtime_checkable
class Hiding(Protocol):
    """A shift that removes all information from part of an image."""

    def hidden(self, height: int) -> tuple[int, int]:
        """The hidden rows of images of this height, as (first, one past the last)."""


def hidden_rows(shifts: Sequence[object], height: int, *, shares: Sequence[float] = ()) -> tuple[int, int]:
    """Rows that the public domain hides, as (first, one past the last); all rows if it hides none.

    Args:
        shifts: transforms; those that are :class:`Hiding` define the rows.
        height: height of the images.
        shares: start and end of the hidden part as shares of the height; empty: taken from ``shifts``.

    Examples:
        >>> hidden_rows([LowerHalfMask()], 64), hidden_rows([BoxBlur()], 64)
        ((32, 64), (0, 64))
        >>> hidden_rows([], 64, shares=(0.5, 1.0))
        (32, 64)
    """
    if shares:
        first, last = shares
        return math.floor(first * height + 1e-9), math.ceil(last * height - 1e-9)
    ranges = [shift.hidden(height) for shift in shifts if isinstance(shift, Hiding)]
    return (min(a for a, _ in ranges), max(b for _, b in ranges)) if ranges else (0, height)


@final
@dataclass(frozen=True, kw_only=True)
class BoxBlur:
    """The mean over a square window; edges are mirrored.

    For an even ``size`` the window extends one pixel further up and left, as in OpenCV's ``blur``,
    which PLI's authors use with 10 × 10 on 64 × 64 images.

    Args:
        size: side of the window in pixels, at least 1.
    """

    card: ClassVar[Card] = Card(
        summary="mean over a square window", source="Takahashi et al. 2023, Breaching FedMD, CVPR"
    )

    size: int = 10

    def __call__(self, inputs: Tensor) -> Tensor:
        """Blurred images."""
        before, after = self.size // 2, self.size - 1 - self.size // 2
        if self.size < 1 or before >= min(inputs.shape[2:]):
            raise BadValue(
                "transform 'box_blur'",
                needs="1 <= size < 2 × the image's side",
                got=f"size = {self.size} for images {tuple(inputs.shape[2:])}",
                fix="use a smaller window",
            )
        padded = functional.pad(inputs, (before, after, before, after), mode="reflect")
        return functional.avg_pool2d(padded, self.size, stride=1)


@final
@dataclass(frozen=True, kw_only=True)
class LowerHalfMask:
    """Replace rows from H // 2 downwards by one value, as a face mask hides mouth and nose.

    Args:
        fill: replacement value in [0, 1]; 0 is black.
    """

    card: ClassVar[Card] = Card(summary="the lower half replaced by one stated value")

    fill: Annotated[Unit, Fix("0 is black")] = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, "transform 'lower_half_mask'")

    def __call__(self, inputs: Tensor) -> Tensor:
        """Masked copies of the images."""
        masked = inputs.clone()
        masked[:, :, self.hidden(inputs.shape[2])[0] :] = self.fill
        return masked

    def hidden(self, height: int) -> tuple[int, int]:
        """The lower half."""
        return height // 2, height


@final
@dataclass(frozen=True, kw_only=True)
class Downsample:
    """Replace each ``factor × factor`` block by its mean; the size is unchanged.

    Args:
        factor: side of the blocks in pixels; must divide height and width.
    """

    card: ClassVar[Card] = Card(summary="blocks of pixels replaced by their mean")

    factor: int = 2

    def __call__(self, inputs: Tensor) -> Tensor:
        """Coarse images."""
        if self.factor < 1 or any(side % self.factor for side in inputs.shape[2:]):
            raise BadValue(
                "transform 'downsample'",
                needs="a factor that divides height and width",
                got=f"factor = {self.factor} for images {tuple(inputs.shape[2:])}",
                fix="use another factor, or resize the images first (data.resize)",
            )
        coarse = functional.avg_pool2d(inputs, self.factor)
        return coarse.repeat_interleave(self.factor, dim=2).repeat_interleave(self.factor, dim=3)

"""Pictures: (C, H, W) float32 pixels in a declared range.

Shape letters: B examples, R candidates, N originals, C channels, H and W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.modalities import guesses
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.registry import Card
from glasshouse.rng import Rng

SLACK: Final = 1e-4
"""Tolerated excess over the range: rounding of a normalisation that was undone."""


@final
@dataclass(frozen=True, kw_only=True)
class Image(Modality):
    """Pictures of one size.

    Args:
        size: (C, H, W).
        range: smallest and largest possible pixel; declared, never measured.

    Examples:
        >>> Image(size=(1, 2, 2)).distance(torch.zeros(1, 1, 2, 2), torch.ones(3, 1, 2, 2)).tolist()
        [[1.0, 1.0, 1.0]]
    """

    card: ClassVar[Card] = Card(summary="pictures: channels, height and width in a declared range of pixels")
    name: ClassVar[str] = "image"
    noun: ClassVar[str] = "picture"
    nouns: ClassVar[str] = "pictures"
    metrics: ClassVar[tuple[str, ...]] = ("psnr", "ssim", "identification")
    same: ClassVar[float] = 1e-8  # 80 dB on [0, 1]
    near: ClassVar[float] = 1e-3  # 30 dB on [0, 1]: nearly a copy

    size: tuple[int, int, int]
    range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if min(self.size) < 1 or not self.range[0] < self.range[1]:
            raise BadValue(
                "modality 'image'",
                needs="size (C, H, W) of at least one pixel, range (low, high) with low < high",
                got=f"size {self.size}, range {self.range}",
                fix="declare the pictures as they enter the network",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return self.size

    @property
    def dtype(self) -> torch.dtype:
        """float32."""
        return torch.float32

    @property
    def grey(self) -> float:
        """The middle of the range: the best guess of whoever knows only the range."""
        return (self.range[0] + self.range[1]) / 2

    def violation(self, inputs: Tensor) -> tuple[str, str] | None:
        """Pixels outside the declared range."""
        low, high = self.range
        if not len(inputs) or (inputs.min() >= low - SLACK and inputs.max() <= high + SLACK):
            return None
        return f"pixels in [{low}, {high}]", f"[{float(inputs.min()):.3g}, {float(inputs.max()):.3g}]"

    def project(self, inputs: Tensor) -> Tensor:
        """Clipped to the range."""
        return inputs.clamp(*self.range)

    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """Mean squared difference of the pixels, on a range of width 1."""
        left, right = candidates.double().flatten(1), originals.double().flatten(1).to(candidates.device)
        # By inner products, so that thousands of pictures fit in memory; the error is about 1e-14.
        squares = left.square().sum(1)[:, None] + right.square().sum(1)[None]
        width = self.range[1] - self.range[0]
        return (squares - 2 * left @ right.T).clamp_min(0) / (left.shape[1] * width**2)

    def nulls(self) -> Sequence[Null]:
        """Grey; mean and random auxiliary pictures, of any label and of the victim's."""
        return (
            Null(name="grey picture", knows="nothing", guess=self._grey, steady=True),
            *guesses.averaged(self.noun),
            *guesses.drawn(self.noun),
        )

    def _grey(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        inputs = torch.full((wanted.count, *self.shape), self.grey)
        return Batch(inputs=inputs, labels=guesses.labels_for(auxiliary, wanted, rng))

    def display(self, example: Tensor) -> Display:
        """The picture with its range mapped to [0, 1]; one or three channels, else the first."""
        pixels = ((example - self.range[0]) / (self.range[1] - self.range[0])).clamp(0, 1)
        shown = pixels if pixels.shape[0] in (1, 3) else pixels[:1]
        return Display(pixels=shown.permute(1, 2, 0).cpu())

"""Pictures: (C, H, W) float32 pixels in a declared range.

Shape letters: B examples, R candidates, N originals, C channels, H and W pixels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.images import total_variation
from glasshouse.modalities import guesses
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.modalities.likeness import correlation, moved, part
from glasshouse.outside import limits
from glasshouse.registry import Card
from glasshouse.rng import Rng

SLACK: Final = 1e-4
"""Tolerated excess over the range: rounding of a normalisation that was undone."""
_LEVELS: Final = 255


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
    metrics: ClassVar[tuple[str, ...]] = ("mse", "psnr", "ssim", "identification")
    same: ClassVar[float] = 1e-8  # 80 dB on [0, 1]
    near: ClassVar[float] = 1e-3  # 30 dB on [0, 1]: nearly a copy

    size: tuple[int, int, int]
    range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        channels, height, width = self.size
        small = channels <= limits.CHANNELS and max(height, width) <= limits.SIDE
        small = small and math.prod(self.size) <= limits.IMAGE_VALUES
        if min(self.size) < 1 or not small or not self.range[0] < self.range[1]:
            raise BadValue(
                "modality 'image'",
                needs=f"size (C, H, W) of 1 to {limits.IMAGE_VALUES:,} numbers, range low < high",
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
    def size_words(self) -> str:
        """Height and width."""
        return "×".join(map(str, self.size[1:]))

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

    def received(self, inputs: Tensor) -> Tensor:
        """Pixels in the range; those of 8-bit pictures exactly, since a normalisation was undone."""
        low, high = self.range
        levels = ((inputs - low) / (high - low) * _LEVELS).round() / _LEVELS * (high - low) + low
        exact = bool((levels - inputs).abs().max() < SLACK)
        near = bool(((inputs >= low - SLACK) & (inputs <= high + SLACK)).all())
        return (levels if exact else inputs).clamp(low, high) if near else inputs

    def project(self, inputs: Tensor) -> Tensor:
        """Clipped to the range."""
        return inputs.clamp(*self.range)

    def roughness(self, inputs: Tensor) -> Tensor:
        """Total variation: the mean absolute difference of neighbouring pixels."""
        return total_variation(inputs)

    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """Mean squared difference of the pixels, on a range of width 1."""
        return guesses.squared_distance(candidates, originals, width=self.range[1] - self.range[0])

    def likenesses(self, candidates: Tensor, originals: Tensor) -> Mapping[str, Tensor]:
        """Inverted or of another contrast; right in a part; moved or mirrored."""
        return {
            "inverted, or of another brightness and contrast": correlation(candidates, originals),
            "right in a part of the pixels": part(candidates, originals),
            "moved or mirrored": moved(candidates, originals),
        }

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

    def probes(self, count: int, draws: torch.Generator) -> Tensor:
        """Smooth random pictures of four resolutions; noise of single pixels says little about a network."""
        (channels, *sides), (low, high) = self.size, self.range
        coarse = [torch.rand(count // 4, channels, side, side, generator=draws) for side in (1, 2, 4, 8)]
        smooth = torch.cat([F.interpolate(x, size=sides, mode="bilinear") for x in coarse])
        return smooth * (high - low) + low

    def display(self, example: Tensor) -> Display:
        """The picture with its range mapped to [0, 1]; one or three channels, else the first."""
        pixels = ((example - self.range[0]) / (self.range[1] - self.range[0])).clamp(0, 1)
        shown = pixels if pixels.shape[0] in (1, 3) else pixels[:1]
        return Display(pixels=shown.permute(1, 2, 0).cpu())

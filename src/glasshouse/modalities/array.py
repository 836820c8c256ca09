"""Arrays of one fixed shape: volumes, series, spectra, or any numbers in a declared range.

Shape letters: B examples, R candidates, N originals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.modalities import guesses
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.modalities.likeness import correlation, part
from glasshouse.outside import limits
from glasshouse.registry import Card
from glasshouse.rng import Rng

SLACK: Final = 1e-4
"""Tolerated excess over the range, as a share of its width: rounding of a normalisation that was undone."""


@final
@dataclass(frozen=True, kw_only=True)
class Array(Modality):
    """Arrays of numbers.

    Args:
        size: the shape of one example: (C, D, H, W) of a volume, (C, T) of a series, (F,) of features.
        range: smallest and largest possible number; declared, never measured.

    Examples:
        >>> Array(size=(1, 4), range=(-1.0, 1.0)).distance(-torch.ones(1, 1, 4), torch.ones(1, 1, 4)).tolist()
        [[1.0]]
    """

    card: ClassVar[Card] = Card(summary="arrays of one shape in a declared range: volumes, series, features")
    name: ClassVar[str] = "array"
    noun: ClassVar[str] = "array"
    nouns: ClassVar[str] = "arrays"
    metrics: ClassVar[tuple[str, ...]] = ("mse", "identification")
    same: ClassVar[float] = 1e-8  # an error of 1e-4 of the range
    near: ClassVar[float] = 1e-3  # 3 % of the range

    size: tuple[int, ...]
    range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        low, high = self.range
        fits = bool(self.size) and min(self.size) >= 1 and math.prod(self.size) <= limits.IMAGE_VALUES
        if not fits or not (low < high and math.isfinite(high - low)):
            raise BadValue(
                "modality 'array'",
                needs=f"a size of 1 to {limits.IMAGE_VALUES:,} numbers, range (low, high) with low < high",
                got=f"size {self.size}, range {self.range}",
                fix="declare the arrays as they enter the network",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """``size``."""
        return self.size

    @property
    def dtype(self) -> torch.dtype:
        """float32."""
        return torch.float32

    def violation(self, inputs: Tensor) -> tuple[str, str] | None:
        """Numbers outside the declared range."""
        low, high = self.range
        slack = SLACK * (high - low)
        if not len(inputs) or (inputs.min() >= low - slack and inputs.max() <= high + slack):
            return None
        return f"numbers in [{low}, {high}]", f"[{float(inputs.min()):.3g}, {float(inputs.max()):.3g}]"

    def project(self, inputs: Tensor) -> Tensor:
        """Clipped to the range."""
        return inputs.clamp(*self.range)

    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """Mean squared difference, on a range of width 1."""
        return guesses.squared_distance(candidates, originals, width=self.range[1] - self.range[0])

    def likenesses(self, candidates: Tensor, originals: Tensor) -> Mapping[str, Tensor]:
        """Inverted or of another scale; right in a part."""
        return {
            "inverted, or of another level and scale": correlation(candidates, originals),
            "right in a part of the numbers": part(candidates, originals),
        }

    def nulls(self) -> Sequence[Null]:
        """The middle of the range; mean and random auxiliary arrays, of any label and of the victim's."""
        return (
            Null(name="middle of the range", knows="nothing", guess=self._middle, steady=True),
            *guesses.averaged(self.noun),
            *guesses.drawn(self.noun),
        )

    def _middle(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        inputs = torch.full((wanted.count, *self.shape), sum(self.range) / 2)
        return Batch(inputs=inputs, labels=guesses.labels_for(auxiliary, wanted, rng))

    def display(self, example: Tensor) -> Display:
        """The middle slice of a volume as a picture; a series or features as numbers."""
        low, high = self.range
        if example.ndim == 4:
            middle = ((example[0, example.shape[1] // 2] - low) / (high - low)).clamp(0, 1)
            return Display(pixels=middle[..., None].cpu())
        numbers = example.flatten()[:SHOWN].tolist()
        more = f" and {example.numel() - SHOWN:,} more" if example.numel() > SHOWN else ""
        return Display(text=", ".join(f"{number:.3g}" for number in numbers) + more)


SHOWN: Final = 16
"""Numbers of an array that are written in a report."""

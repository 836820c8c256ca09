"""The property that singles out one example of a sum, and images that have it.

Brightness is the mean of all pixels; the chosen images are those above the quantile that one example of a sum
exceeds on average. Of 8,000 auxiliary images that is 125 for sums of 64, too few to train on, so others are
brightened to match: the brightest quarter, and the negatives of the darkest quarter, by an exponent.

Shape letters: N images, C, H, W.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable

Property = Literal["brightest", "darkest"]
_QUARTER = 4
_LOW, _HIGH, _HALVINGS, _BLACK = 0.02, 3.0, 14, 1e-3  # of the search for exponents
_REACH = 3  # largest shift, in pixels
_AT_ONCE = 500


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """Images with and without the property.

    Attributes:
        threshold: of the brightness; of the negatives' brightness for ``darkest``.
        others: (N, C, H, W), without the property.
        natural: with the property.
        adjusted: images whose brightness was changed to have it.
    """

    threshold: float
    others: Tensor
    natural: Tensor
    adjusted: Tensor


def brightness(images: Tensor, looks_for: Property = "brightest") -> Tensor:
    """The mean pixel (N,) of images in [0, 1], or of their negatives.

    Examples:
        >>> brightness(torch.full((1, 1, 2, 2), 0.25), "darkest")
        tensor([0.7500])
    """
    bright = images.flatten(1).mean(1)
    return bright if looks_for == "brightest" else 1 - bright


def choose(images: Tensor, examples: int, *, looks_for: Property, generator: torch.Generator) -> Chosen:
    """Split auxiliary images (N, C, H, W) in [0, 1] by the property, for sums of ``examples`` examples.

    Raises:
        Inapplicable: all are equally bright.
    """
    size = brightness(images, looks_for)
    threshold = float(size.double().quantile(1 - 1 / max(examples, 2)))
    with_it = size >= threshold
    if bool(with_it.all()):
        raise Inapplicable(
            "attack 'seer'",
            needs="auxiliary images of different brightness",
            got=f"{len(images)} of mean pixel {float(images.mean()):.3g}",
            fix="grant other images (data.auxiliary)",
        )
    as_bright = images if looks_for == "brightest" else 1 - images
    order, part = size.argsort(), max(1, len(images) // _QUARTER)
    sources = torch.cat((as_bright[order[-part:]], 1 - as_bright[order[:part]]))
    natural = images[with_it]
    goals = size[with_it][torch.randint(len(natural), (len(sources),), generator=generator)]
    pairs = zip(torch.split(sources, _AT_ONCE), torch.split(goals, _AT_ONCE), strict=True)
    adjusted = torch.cat([with_brightness(part, goal) for part, goal in pairs])
    adjusted = adjusted if looks_for == "brightest" else 1 - adjusted
    return Chosen(threshold=threshold, others=images[~with_it], natural=natural, adjusted=adjusted)


def with_brightness(images: Tensor, goals: Tensor) -> Tensor:
    """Raise images (N, C, H, W) in [0, 1] to the powers at which their mean pixels are ``goals`` (N,).

    Examples:
        >>> images = with_brightness(torch.full((1, 1, 2, 2), 0.25), torch.tensor([0.5]))
        >>> round(float(images.mean()), 3)
        0.5
    """
    images = images.clamp_min(_BLACK)
    low, high = (torch.full((len(images), 1, 1, 1), end) for end in (_LOW, _HIGH))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_dark = (brightness(images**middle) < goals)[:, None, None, None]
        low, high = torch.where(too_dark, low, middle), torch.where(too_dark, middle, high)
    changed: Tensor = images ** ((low + high) / 2)
    return changed


def moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images (N, C, H, W), all shifted by the same 0 to 3 pixels, each mirrored at random."""
    height, width = images.shape[2:]
    padded = nn.functional.pad(images, (_REACH,) * 4, mode="replicate")
    down, right = torch.randint(2 * _REACH + 1, (2,), generator=generator).tolist()
    shifted = padded[:, :, down : down + height, right : right + width]
    mirror = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirror[:, None, None, None], shifted.flip(3), shifted)

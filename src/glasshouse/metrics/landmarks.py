"""Illustrations of image metrics: noisy copies of a photograph at given metric values."""

import base64
import io
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glasshouse.metrics.base import Metric, ScoreContext

SIDE: Final = 64
STEPS: Final = 14
"""Bisection steps on the share of noise; the metric of the copy is then within 0.001 of the target."""


def landmarks(metric: Metric) -> list[tuple[float, str, str]]:
    """(value, its meaning in words, a picture as ``data:`` URL) for every landmark of the wording.

    Each picture is the photograph blended with noise until the metric reaches the value, so this works for
    any metric that needs no context and is monotonic in the share of noise.

    Examples:
        >>> from glasshouse.metrics.reconstruction import Ssim
        >>> [(number, words) for number, words, _ in landmarks(Ssim())][0]
        (0.9, 'nearly a copy')
    """
    return [(number, words, _data(_copy(metric, number))) for number, words in metric.wording.landmarks]


def _copy(metric: Metric, number: float) -> Tensor:
    image, context = _photograph(), ScoreContext()
    noise = torch.rand(image.shape, generator=torch.Generator().manual_seed(0))
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        share = (low + high) / 2
        value = float(metric.score(torch.lerp(image, noise, share), image, context=context)[0])
        near = value > number if metric.higher_leaks else value < number
        low, high = (share, high) if near else (low, share)
    return torch.lerp(image, noise, low)


@cache
def _photograph() -> Tensor:
    """scikit-learn's photo of a flower, (1, 3, H, W) in [0, 1]; flickr.com/photos/vultilion, CC BY 2.0."""
    found = find_spec("sklearn")  # importing it would take a CPU second
    assert found is not None
    assert found.origin is not None
    flower = Path(found.origin).parent / "datasets" / "images" / "flower.jpg"
    with flower.open("rb") as file, Image.open(file) as photo:
        square = photo.convert("RGB").crop((140, 30, 500, 390)).resize((SIDE, SIDE))
    return torch.from_numpy(np.asarray(square, dtype=np.float32) / 255).permute(2, 0, 1)[None]


def _data(image: Tensor) -> str:
    pixels = (image[0].permute(1, 2, 0) * 255).round().byte().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

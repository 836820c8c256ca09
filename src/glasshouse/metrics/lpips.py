"""LPIPS: a perceptual distance with weights learned from human judgements. Needs the ``vision`` extra."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import NotInstalled, Undefined
from glasshouse.metrics.base import Metric, ScoreContext, Scores, Wording
from glasshouse.metrics.reconstruction import pair_images
from glasshouse.registry import Card

try:
    import torchvision  # noqa: F401  (torchmetrics takes its backbones from there)
    from torchmetrics.image import lpip

    _MISSING = ""
except (ImportError, RuntimeError) as error:  # RuntimeError: a wheel built for another build of torch
    _MISSING = f"{type(error).__name__}: {error}"

_SMALLEST = 32


@final
@dataclass(frozen=True, kw_only=True)
class Lpips(Metric):
    """Learned perceptual distance per original; 0 for equal images. Grey images get three equal channels.

    Args:
        net: backbone, ``"alex"`` or ``"vgg"``; papers quote either. Its ImageNet weights are fetched by
            torchvision at the first use.

    Raises:
        NotInstalled: torchvision is missing, does not fit this build of torch, or its weights cannot be had.
    """

    card = Card(
        summary="learned perceptual distance of the paired reconstruction",
        source="Zhang et al. 2018, arXiv:1801.03924",
        extra="vision",
    )
    wording = Wording(
        label="LPIPS",
        sentence="rebuilt private images at LPIPS distance {} (unlikeness; 0 is a perfect copy)",
        explanation="Difference of both images as people would judge it: 0 is the same, so lower is "
        "worse. What guessing reaches depends on the images.",
        severity="images",
        order=210,
        worse="down",
        range=(0.0, math.inf),
    )

    net: Literal["alex", "vgg"] = "alex"

    def __post_init__(self) -> None:
        if _MISSING:
            raise _not_installed("torchvision, built for the installed torch", _MISSING)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        left, right = pair_images("lpips", claimed, truth, context)
        if min(truth.shape[-2:]) < _SMALLEST or truth.shape[1] not in (1, 3):
            raise Undefined(
                "metric 'lpips'",
                needs=f"1 or 3 channels, at least {_SMALLEST} × {_SMALLEST} pixels",
                got=f"{tuple(truth.shape[1:])}",
                fix="use the metric 'perceptual'",
            )
        distance = _network(self.net)
        a, b = (_three_channels(x, context) for x in (left, right))
        # One pair at a time: the mean over a batch of one is the same in every version of torchmetrics.
        with torch.no_grad():
            return np.array([float(distance(a[i : i + 1], b[i : i + 1])) for i in range(len(truth))])


def _three_channels(x: Tensor, context: ScoreContext) -> Tensor:
    return ((x - context.image_range[0]) / context.data_range).float().cpu().expand(-1, 3, -1, -1)


@functools.cache
def _network(net: Literal["alex", "vgg"]) -> Callable[[Tensor, Tensor], Tensor]:
    try:
        return lpip.LearnedPerceptualImagePatchSimilarity(net_type=net, normalize=True)
    except OSError as error:
        raise _not_installed(f"the ImageNet weights of '{net}'", f"{error}") from error


def _not_installed(needs: str, got: str) -> NotInstalled:
    return NotInstalled(
        "metric 'lpips'",
        needs=needs,
        got=got,
        fix="pip install 'glasshouse[vision]' (weights: once with a network), or use the metric 'perceptual'",
    )

"""ShuffleNet-V2 at CIFAR size."""

from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.limits import Natural
from glasshouse.models.base import Shape, SplitModel, check_shape, normed, with_head
from glasshouse.registry import Card

WIDTHS: Final = {"0.5": (48, 96, 192, 1024), "1": (116, 232, 464, 1024), "1.5": (176, 352, 704, 1024)}
"""Channels of the three stages and of the last convolution, by size."""
_DEPTHS: Final = (3, 7, 3)  # blocks of a stage after its first


def _branch(inward: int, outward: int, *, stride: int) -> list[nn.Module]:
    """1 × 1, depthwise 3 × 3 and 1 × 1 convolutions, each with batch norm; ReLU after both 1 × 1 ones."""
    return [
        *normed(inward, outward, 1),
        nn.ReLU(),
        *normed(outward, outward, 3, stride=stride, padding=1, groups=outward),
        *normed(outward, outward, 1),
        nn.ReLU(),
    ]


def _shuffle_channels(x: Tensor) -> Tensor:
    """Interleave the channels of the two halves."""
    n, channels, height, width = x.shape
    return x.reshape(n, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


@final
class Basic(nn.Module):
    """Half of the channels pass unchanged, the other half goes through the branch; then they are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_branch(channels // 2, channels // 2, stride=1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → the same shape."""
        left, right = x.chunk(2, dim=1)
        return _shuffle_channels(torch.cat([left, self.branch(right)], dim=1))


@final
class Down(nn.Module):
    """Downsampling block: halves the side and adds channels, by two parallel branches."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        half = outward // 2
        self.branch = nn.Sequential(*_branch(inward, half, stride=2))
        self.shortcut = nn.Sequential(
            *normed(inward, inward, 3, stride=2, padding=1, groups=inward),
            *normed(inward, half, 1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inward, H, W) → (B, outward, H / 2, W / 2)."""
        return _shuffle_channels(torch.cat([self.shortcut(x), self.branch(x)], dim=1))


@Card(
    summary="ShuffleNet-V2 at CIFAR size: 24-channel stem without pooling, 1,024 features",
    source="Ma et al. 2018, arXiv:1807.11164",
)
def shufflenet_v2(
    input_shape: Shape,
    classes: int,
    *,
    size: str = "0.5",
    hidden: Natural = 0,
    mean: float = 0.5,
    std: float = 0.25,
) -> SplitModel:
    """Stages of 4, 8 and 4 blocks, each halving the side; then a 1 × 1 convolution and average pooling.

    Differs from the source as its CIFAR variants do: stride 1 and no pooling in the stem. Size 0.5 has
    341 thousand parameters before the head, as stated in the Maui paper.

    Args:
        input_shape: (C, H, W).
        classes: K.
        size: ``0.5``, ``1`` or ``1.5``.
        hidden: units of a second linear layer in the head; 0: none.
        mean: mean of the fixed pixel normalisation.
        std: standard deviation of the fixed pixel normalisation.
    """
    check_shape(input_shape, classes, model="shufflenet_v2")
    if size not in WIDTHS:
        raise BadValue(
            "model 'shufflenet_v2'",
            needs=f"size: one of {', '.join(WIDTHS)}, as text",
            got=repr(size),
            fix="set model.size",
        )
    *stages, last = WIDTHS[size]
    layers = [*normed(input_shape[0], 24, 3, padding=1), nn.ReLU()]
    inward = 24
    for outward, depth in zip(stages, _DEPTHS, strict=True):
        layers += [Down(inward, outward), *(Basic(outward) for _ in range(depth))]
        inward = outward
    layers += [*normed(inward, last, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    features = nn.Sequential(*layers)
    return with_head(features, last, classes, mean=mean, std=std, hidden=hidden, model="shufflenet_v2")

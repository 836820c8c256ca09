"""ResNet-18 at CIFAR size."""

from itertools import pairwise
from typing import final

from torch import Tensor, nn

from glasshouse.limits import Count, Natural
from glasshouse.models.base import Shape, SplitModel, check_shape, normed, with_head
from glasshouse.registry import Card


@final
class Block(nn.Module):
    """Two 3 × 3 convolutions with batch norm, and a shortcut (1 × 1 convolution if the shape changes)."""

    def __init__(self, inward: int, outward: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outward)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outward)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Sequential(*normed(inward, outward, 1, stride=stride))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inward, H, W) → (B, outward, H / stride, W / stride)."""
        residual = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu2(residual + self.shortcut(x))
        return out


def stem_and_stages(channels: int, width: int) -> list[nn.Module]:
    """A 3 × 3 stem, then four stages of two blocks with width × 1, 2, 4, 8 channels; three halve the side."""
    layers = [*normed(channels, width, 3, padding=1), nn.ReLU()]
    for inward, outward in pairwise((width, width, 2 * width, 4 * width, 8 * width)):
        layers.append(Block(inward, outward, stride=1 if inward == outward else 2))
        layers.append(Block(outward, outward, stride=1))
    return layers


@Card(
    summary="ResNet-18 at CIFAR size: 3x3 stem, batch norm, global average pooling",
    source="He et al. 2016, arXiv:1512.03385",
)
def resnet18(
    input_shape: Shape,
    classes: int,
    *,
    width: Count = 64,
    hidden: Natural = 0,
    mean: float = 0.5,
    std: float = 0.5,
) -> SplitModel:
    """Four stages of two blocks, width × 1, 2, 4, 8 channels; Kaiming initialisation (fan out).

    Differs from the source as its CIFAR variants do: a 3 × 3 stem with stride 1 and no pooling after it.
    Width 64 has 11.17 million parameters. No activation is in-place. ``hidden`` > 0 adds a second linear
    layer to the head.
    """
    check_shape(input_shape, classes, model="resnet18", width=width)
    layers = stem_and_stages(input_shape[0], width)
    features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in features.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return with_head(features, 8 * width, classes, mean=mean, std=std, hidden=hidden, model="resnet18")

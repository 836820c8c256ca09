"""The small CNN of the Maui paper: four convolutions, each followed by pooling, and a two-layer head."""

from torch import nn

from glasshouse.limits import Count, Natural
from glasshouse.models.base import Shape, SplitModel, chain, check_shape, flat_size, with_head
from glasshouse.registry import Card

STAGES = (1, 1, 2, 2)
"""Channels of the four convolutions, in multiples of ``width``."""


@Card(
    summary="four 3x3 convolutions with poolings (260 thousand parameters), then a two-layer head",
    source="Dabholkar et al. 2025 (Maui); the layer table is ours, from its parameter count",
)
def maui_cnn(
    input_shape: Shape,
    classes: int,
    *,
    width: Count = 64,
    hidden: Natural = 512,
    batch_norm: bool = True,
    poolings: Natural = 4,
) -> SplitModel:
    """Convolution, (batch norm,) 2 × 2 max-pooling and ReLU, four times; then ``hidden`` and K units.

    The paper states 260 thousand parameters and 512 features; 64, 64, 128 and 128 channels on 32 × 32 images
    give 260,160 and 512. ReLU after pooling computes the same function as before it, and trains a fifth
    faster. On smaller images the last poolings are omitted, so that 2 × 2 positions remain.

    Args:
        input_shape: (C, H, W).
        classes: K.
        width: channels of the first convolution.
        hidden: units between features and logits; 0: the head is one linear layer.
        batch_norm: use batch norm after every convolution.
        poolings: number of convolutions followed by pooling, 0 to 4.
    """
    check_shape(input_shape, classes, model="maui_cnn", width=width)
    layers: dict[str, nn.Module] = {}
    channels, side = input_shape[0], min(input_shape[1:])
    for i, multiple in enumerate(STAGES):
        layers[f"conv{i}"] = nn.Conv2d(channels, multiple * width, 3, padding=1)
        channels = multiple * width
        if batch_norm:
            layers[f"bn{i}"] = nn.BatchNorm2d(channels)
        if side >= 4 and i < poolings:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
            side //= 2
        layers[f"relu{i}"] = nn.ReLU()
    features = chain(**layers, flatten=nn.Flatten())
    size = flat_size(features, input_shape)
    return with_head(features, size, classes, std=0.25, hidden=hidden, model="maui_cnn")

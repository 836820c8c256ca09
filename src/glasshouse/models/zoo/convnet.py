"""The small ConvNet of the gradient-inversion literature."""

from torch import nn

from glasshouse.limits import Count
from glasshouse.models.base import Shape, SplitModel, chain, check_shape, flat_size, with_head
from glasshouse.registry import Card

STAGES = (1, 2, 2, 4, 4, 4, 4, 4)
"""Channels of the eight convolutions, in multiples of ``width``."""
POOL_AFTER = (5, 7)


@Card(
    summary="ConvNet of the gradient-inversion literature: eight 3x3 convolutions, two poolings",
    source="Geiping et al. 2020, arXiv:2003.14053",
)
def convnet(
    input_shape: Shape,
    classes: int,
    *,
    width: Count = 64,
    batch_norm: bool = True,
    mean: float = 0.5,
    std: float = 0.5,
) -> SplitModel:
    """Eight 3 × 3 convolutions (width × 1, 2, 2, 4, 4, 4, 4, 4), no dropout, no average pooling.

    As in the source: the layer table, batch norm after every convolution, two 3 × 3 max-poolings (after the
    sixth and the eighth convolution), and width 64 for the published figures. For images below 18 pixels the
    poolings are 2 × 2, since two of 3 × 3 would leave nothing.

    Args:
        input_shape: (C, H, W).
        classes: K.
        width: channels of the first convolution; 64 gives 2.9 million parameters, 8 gives 49 thousand.
        batch_norm: False omits batch norm and uses Kaiming initialisation instead, without which eight
            layers would not train.
        mean: mean of the fixed pixel normalisation.
        std: standard deviation of the fixed pixel normalisation.
    """
    check_shape(input_shape, classes, model="convnet", width=width)
    pool = 3 if min(input_shape[1:]) >= 18 else 2
    layers: dict[str, nn.Module] = {}
    channels = input_shape[0]
    for i, multiple in enumerate(STAGES):
        convolution = nn.Conv2d(channels, multiple * width, 3, padding=1)
        channels = multiple * width
        layers[f"conv{i}"] = convolution
        if batch_norm:
            layers[f"bn{i}"] = nn.BatchNorm2d(channels)
        else:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # the bias exists: bias=True
        layers[f"relu{i}"] = nn.ReLU()
        if i in POOL_AFTER:
            layers[f"pool{i}"] = nn.MaxPool2d(pool)
    features = chain(**layers, flatten=nn.Flatten())
    return with_head(features, flat_size(features, input_shape), classes, mean=mean, std=std)

"""A multi-layer perceptron."""

import math

from torch import nn

from glasshouse.errors import BadValue
from glasshouse.models.base import SplitModel, chain, with_head
from glasshouse.registry import Card


@Card(summary="Linear layers with ReLUs; the first one sees the inputs")
def mlp(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    hidden: int | str = "128,64",
    mean: float = 0.5,
    std: float = 0.5,
) -> SplitModel:
    """Linear layers with ReLUs in between.

    Args:
        input_shape: of one example: (C, H, W) of pictures, (F,) of rows, ...
        classes: K, the number of outputs.
        hidden: units of the hidden layers, first to last: ``64`` or ``"128,64"``.
        mean: mean of the fixed normalisation.
        std: standard deviation of the fixed normalisation.

    Examples:
        >>> [name for name, _ in mlp((1, 8, 8), 10, hidden=16).named_parameters()]
        ['features.fc1.weight', 'features.fc1.bias', 'head.weight', 'head.bias']
    """
    words = str(hidden).split(",")
    if not all(word.strip().isdecimal() and int(word) >= 1 for word in words):
        raise BadValue(
            "model 'mlp'",
            needs='hidden: whole numbers from 1, as 64 or "128,64"',
            got=repr(hidden),
            fix="set model.hidden",
        )
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    units = math.prod(input_shape)
    for i, word in enumerate(words, start=1):
        layers[f"fc{i}"] = nn.Linear(units, int(word))
        layers[f"relu{i}"] = nn.ReLU()
        units = int(word)
    return with_head(chain(**layers), units, classes, mean=mean, std=std)

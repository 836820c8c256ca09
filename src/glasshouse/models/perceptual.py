"""A stand-in for LPIPS: a small network that is trained on auxiliary images and is not under attack.

LPIPS needs backbone weights that are not available everywhere. This stand-in compares activations of a
ConvNet trained for classification on the auxiliary part. It is not LPIPS and its values are not comparable
with published ones; within one audit it ranks reconstructions by the same principle.
"""

from dataclasses import replace

from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.models.base import SplitModel
from glasshouse.wire import Architecture


def network(agreed: Architecture) -> Architecture:
    """The stand-in's architecture, for the examples and the task of ``agreed``."""
    return replace(agreed, name="convnet", arguments={"width": 8, "batch_norm": False})


def activations(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Activations (B, C', H', W') after each ReLU, for images (B, C, H, W) in [0, 1].

    Raises:
        BadValue: not a model of the zoo with sequential features.
    """
    if not isinstance(model, SplitModel) or not isinstance(model.features, nn.Sequential):
        raise BadValue(
            "perceptual stand-in",
            needs="a zoo model with sequential features",
            got=type(model).__name__,
            fix="use network()",
        )
    x = model.normalize(images)
    layers = []
    for layer in model.features:
        x = layer(x)
        if isinstance(layer, nn.ReLU) and x.ndim == 4:
            layers.append(x)
    return layers

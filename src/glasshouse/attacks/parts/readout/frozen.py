"""The frozen features of federated transfer learning, and the head that is trained on them.

Shape letters: B images, C channels, H and W pixels, D features, N units of the head's first layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.attacks.parts.readout.linear_tail import LinearTail, find_tail, latents
from glasshouse.models.build import build, load
from glasshouse.tensors import device_of
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture

TWO_LAYERS = "set model.hidden, or use a model with a two-layer head"
"""Advice in errors about a head that these attacks cannot read."""
_CHUNK = 256


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenFeatures:
    """The model as broadcast, in ``eval()`` mode, without gradients of its parameters, on their device.

    Attributes:
        model: the whole model.
        tail: its linear layers at the end; the features are the input of the first.
        tensors: the weights, by name.
    """

    model: nn.Module
    tail: LinearTail
    tensors: Mapping[str, Tensor]

    @property
    def weight(self) -> str:
        """Name of the first linear layer's weight, (N, D)."""
        return f"{self.tail.names[0]}.weight"

    @property
    def bias(self) -> str:
        """Name of the first linear layer's bias, (N,)."""
        return f"{self.tail.names[0]}.bias"

    def __call__(self, images: Tensor) -> Tensor:
        """Features (B, D) of images (B, C, H, W); gradients flow to the images."""
        return latents(self.model, self.tail.names[0])(images)

    def of(self, images: Tensor) -> Tensor:
        """Features in chunks, without gradients, float32."""
        with torch.no_grad():
            return torch.cat([self(part) for part in torch.split(images, _CHUNK)]).float()


def freeze_features(
    architecture: Architecture, tensors: Mapping[str, Tensor], *, subject: str
) -> FrozenFeatures:
    """The model with the given weights.

    Raises:
        Inapplicable: it does not end in two consecutive linear layers with biases.
    """
    model = build(architecture)
    load(model, tensors)
    model.eval().requires_grad_(False)
    tail = find_tail(model, architecture.image_shape, subject=subject, fix=TWO_LAYERS)
    return FrozenFeatures(model=model.to(device_of(tensors)), tail=tail, tensors=dict(tensors))


def check_tail(architecture: Architecture, *, subject: str) -> None:
    """Refuse a model whose head cannot be read, from the architecture alone.

    Raises:
        Inapplicable: it does not end in two consecutive linear layers with biases.
    """
    find_tail(build(architecture), architecture.image_shape, subject=subject, fix=TWO_LAYERS)


def complete_broadcast(view: View) -> dict[str, Tensor]:
    """The last broadcast value of every tensor of the agreed architecture."""
    tensors: dict[str, Tensor] = {}
    for one in view.rounds:
        if one.broadcast.architecture == view.terms.architecture:
            tensors |= one.broadcast.tensors
    return tensors

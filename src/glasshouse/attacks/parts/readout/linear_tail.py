"""The linear layers at the end of a model, and the input vector of the first of them.

Shape letters: B images, C channels, H and W pixels, D features that enter the first layer, N its units, K
classes.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.models.build import build, load
from glasshouse.tensors import device_of
from glasshouse.wire import Architecture

BEYOND = "nothing to fix: this model is out of the attack's reach; audit 'robbing_the_fed' instead"
TWO_LAYERS = "set model.hidden, or use a model with a two-layer head"
"""Advice in errors about a head that these attacks cannot read."""
_CHUNK = 256
_TRANSPARENT = (nn.ReLU, nn.Dropout, nn.Identity, nn.Flatten)


@final
@dataclass(frozen=True, kw_only=True)
class LinearTail:
    """Consecutive linear layers with nothing but ReLUs between, up to the logits.

    Attributes:
        names: of the layers, in order; at least two.
        latent: D, input entries of the first.
        widths: outputs of each layer; the last is K.
    """

    names: tuple[str, ...]
    latent: int
    widths: tuple[int, ...]


@final
class _LayerInput(Exception):
    """Carries a layer's input out of the forward pass, which it aborts."""


def find_tail(
    model: nn.Module, input_shape: tuple[int, ...], *, subject: str, fix: str = BEYOND
) -> LinearTail:
    """Find the tail by passing one blank image through ``model``; works for any module tree.

    ``subject`` and ``fix`` appear in the error: the calling attack, and advice.

    Raises:
        Inapplicable: fewer than two consecutive biased linear layers at the end.
    """
    order: list[tuple[str, nn.Module]] = []

    def note(name: str, module: nn.Module, *_: object) -> None:
        order.append((name, module))

    # The order in which layers run is not that of their names: one forward pass tells it.
    leaves = [(name, m) for name, m in model.named_modules() if not list(m.children())]
    training = model.training
    try:
        with ExitStack() as hooks, torch.no_grad():
            for name, leaf in leaves:
                hooks.enter_context(leaf.register_forward_hook(partial(note, name)))
            model.eval()(torch.zeros(1, *input_shape))
    finally:
        model.train(training)
    # From the end backwards, until something bends what passes.
    tail: list[tuple[str, nn.Linear]] = []
    for name, module in reversed(order):
        if isinstance(module, nn.Linear) and module.bias is not None:
            tail.insert(0, (name, module))
        elif not isinstance(module, _TRANSPARENT):
            break
    if len(tail) < 2:
        raise Inapplicable(
            subject,
            needs="a model that ends in two or more consecutive linear layers with biases",
            got=f"{len(tail)} after '{order[-1][0] if order else 'nothing'}' and before",
            fix=fix,
        )
    return LinearTail(
        names=tuple(name for name, _ in tail),
        latent=tail[0][1].in_features,
        widths=tuple(m.out_features for _, m in tail),
    )


def latents(model: nn.Module, layer: str) -> Callable[[Tensor], Tensor]:
    """A differentiable function from images (B, C, H, W) to the input of ``layer`` (B, D)."""
    module = model.get_submodule(layer)

    def before(images: Tensor) -> Tensor:
        try:
            with module.register_forward_pre_hook(_raise_reached):
                model(images)
        except _LayerInput as reached:
            value: Tensor = reached.args[0]
            return value
        raise AssertionError("the layer is part of the forward pass")

    return before


def _raise_reached(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    raise _LayerInput(inputs[0])


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
    def names(self) -> tuple[str, str]:
        """Names of the first linear layer's weight, (N, D), and bias, (N,)."""
        return f"{self.tail.names[0]}.weight", f"{self.tail.names[0]}.bias"

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
    tail = find_tail(model, architecture.input_shape, subject=subject, fix=TWO_LAYERS)
    return FrozenFeatures(model=model.to(device_of(tensors)), tail=tail, tensors=dict(tensors))


def check_tail(architecture: Architecture, *, subject: str) -> None:
    """Refuse a model whose head cannot be read, from the architecture alone.

    Raises:
        Inapplicable: it does not end in two consecutive linear layers with biases.
    """
    find_tail(build(architecture), architecture.input_shape, subject=subject, fix=TWO_LAYERS)

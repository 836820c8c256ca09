"""The linear layers at the end of a model, and the input vector of the first of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable

BEYOND = "nothing to fix: this model is out of the attack's reach; audit 'robbing_the_fed' instead"
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

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def find_tail(
    model: nn.Module, input_shape: tuple[int, int, int], *, subject: str, fix: str = BEYOND
) -> LinearTail:
    """Find the tail by passing one blank image through ``model``; works for any module tree.

    ``subject`` and ``fix`` appear in the error: the calling attack, and advice.

    Raises:
        Inapplicable: fewer than two consecutive biased linear layers at the end.
    """
    order: list[tuple[str, nn.Module]] = []
    leaves = [(name, m) for name, m in model.named_modules() if not list(m.children())]
    hooks = [m.register_forward_hook(_record_order(order, name)) for name, m in leaves]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *input_shape))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
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
        hook = module.register_forward_pre_hook(_raise_reached)
        try:
            model(images)
        except _LayerInput as reached:
            return reached.value
        finally:
            hook.remove()
        raise AssertionError("the layer is part of the forward pass")

    return before


def _raise_reached(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    raise _LayerInput(inputs[0])


def _record_order(order: list[tuple[str, nn.Module]], name: str) -> Callable[[nn.Module, Any, Any], None]:
    def note(module: nn.Module, _inputs: Any, _output: Any) -> None:
        order.append((name, module))

    return note

"""Show that no example of a batch influences another, which every proof about single examples needs.

A network whose output for one example depends on its neighbours (statistics of the batch, a layer that takes
the batch for a sequence) has no gradient of a single example: clipping what it returns bounds nothing. The
check runs the network on a batch and on each of its examples alone, in several sizes, since a layer may mix
examples only where two dimensions happen to agree.

Shape letters: B examples.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.examples import Batch
from glasshouse.interfaces import losses_of

TOLERANCE: Final = 1e-4
"""Largest difference, relative to the largest value, that rounding in another order explains in float32."""
ERRORS: Final = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""What a network raises on a batch size that it cannot take."""


def check_independence(model: nn.Module, batch: Batch, *, subject: str, sizes: Sequence[int]) -> None:
    """Raise if the loss of an example depends on the others in its batch, or on how many there are.

    Args:
        model: in the mode in which it is trained, without dropout.
        batch: at least two different examples.
        subject: what needs the independence, for the error.
        sizes: batch sizes to try; larger ones than ``batch`` are left out.

    Raises:
        Inapplicable: examples influence each other, or the network cannot take a single one; names the first
            layer whose output differs.
    """
    for size in sorted({min(size, len(batch)) for size in sizes if size >= 2}):
        together = batch.pick(torch.arange(size))
        try:
            with torch.no_grad():
                losses = losses_of(model, together)
                alone = [losses_of(model, together.pick(torch.tensor([i]))) for i in range(size)]
        except ERRORS as error:
            raise _mixes(subject, f"{type(error).__name__}: {str(error).splitlines()[0]}", size) from error
        if losses.shape != (size,) or not _alike(losses, torch.cat(alone)):
            raise _mixes(subject, _first_difference(model, together), size)


def _alike(left: Tensor, right: Tensor) -> bool:
    """Equal up to rounding, relative to the largest value."""
    scale = max(float(left.abs().max()), float(right.abs().max()), 1e-12)
    return left.shape == right.shape and float((left - right).abs().max()) <= TOLERANCE * scale


def _first_difference(model: nn.Module, batch: Batch) -> str:
    """The first layer, in the order of the computation, whose output depends on the other examples."""
    last = len(batch) - 1  # the one that a sequence over the batch changes most
    rows, alone = _outputs(model, batch), _outputs(model, batch.pick(torch.tensor([last])))
    for name, output in rows.items():
        single = alone.get(name)
        if single is None or output.ndim == 0 or len(output) != len(batch):
            return f"layer '{name}' ({_kind(model, name)})"
        if not _alike(output[last:], single):
            return f"layer '{name}' ({_kind(model, name)})"
    return "a computation outside its layers"


def _kind(model: nn.Module, name: str) -> str:
    return type(model.get_submodule(name)).__name__


def _outputs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The first tensor that each layer returns, by name; a layer's own parts come before it."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor):
                outputs.setdefault(name, first.detach())

        return hook

    handles = [layer.register_forward_hook(keep(name)) for name, layer in model.named_modules() if name]
    try:
        with torch.no_grad():
            losses_of(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def _mixes(subject: str, got: str, size: int) -> Inapplicable:
    return Inapplicable(
        subject,
        needs="a network in which no example influences another: alone, each has the same loss",
        got=f"in a batch of {size}, {got}" + (" differs" if got.startswith("layer") else ""),
        fix="use group or layer norm instead of batch statistics, and layers that take the batch first",
    )

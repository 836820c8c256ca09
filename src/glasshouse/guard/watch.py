"""What training itself shows of a client's examples; the check before sending then needs no pass of its own.

Every linear layer's inputs, and the pulls of the loss on its outputs, pass by while a client trains. Kept,
they say exactly what each example added to each row of the update, step by step; a pass afterwards costs a
third of an epoch, and knows only the models before and after.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from glasshouse.guard.behaviour.trace import LayerTrace

__all__ = ["Watched", "watch"]

_MARKS: Final = 64  # entries of an example by which it is known again
_NEAR: Final = 1e-9


@final
@dataclass(kw_only=True)
class _Call:
    """One step of one layer: inputs (b, n), None where they are what entered the network; pulls (b, m)."""

    step: int
    inputs: Tensor | None
    pulls: Tensor | None = None


@final
@dataclass(kw_only=True)
class Watched:
    """The steps of one local training.

    Attributes:
        marks: some entries of the examples of every step, (b, k) each.
        calls: of each linear layer, by its name.
    """

    marks: list[Tensor] = field(default_factory=list)
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    _entered: Tensor | None = None

    def follow(self, model: nn.Module) -> list[RemovableHandle]:
        """Hooks on ``model`` and its linear layers."""
        layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        return [
            model.register_forward_pre_hook(self.enter),
            *(layer.register_forward_hook(partial(self._leave_layer, name)) for name, layer in layers),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def enter(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Before the network runs: note its examples."""
        if torch.compiler.is_compiling():  # a pass has to tell
            return
        if model.training and torch.is_grad_enabled() and inputs and isinstance(inputs[0], Tensor):
            self._entered = inputs[0].detach()
            self.marks.append(_some_entries(self._entered).clone())

    def _leave(self, model: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        del model, inputs, output
        if not torch.compiler.is_compiling():
            self._entered = None

    def _leave_layer(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what entered a linear layer, and ask for the pull on what came out."""
        del layer
        if torch.compiler.is_compiling():
            return
        entered, seen = self._entered, inputs[0].detach()
        if entered is None or not output.requires_grad or seen.ndim != 2 or len(seen) != len(entered):
            return
        is_entered = seen.numel() == entered.numel() and bool((seen.flatten() == entered.flatten()).all())
        call = _Call(step=len(self.marks) - 1, inputs=None if is_entered else seen)
        self.calls.setdefault(name, []).append(call)

        def keep(pull: Tensor) -> None:
            call.pulls = pull.detach()

        output.register_hook(keep)  # type: ignore[no-untyped-call]  # torch's own

    def layers(self, model: nn.Module, inputs: Tensor) -> list[LayerTrace] | None:
        """What the examples did to the linear layers of ``model``, each example summed over its steps.

        None: training passed other examples, or another network, and a pass has to tell.
        """
        order = self._numbers(inputs)
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        if order is None or not self.calls.keys() <= linear.keys():
            return None
        traces = []
        for name, layer in linear.items():
            taken = [call for call in self.calls.get(name, ()) if call.pulls is not None]
            if not taken:
                continue
            who = torch.cat([order[call.step] for call in taken])
            pulled = torch.cat([call.pulls for call in taken if call.pulls is not None])
            parts = [call.inputs for call in taken if call.inputs is not None]
            goals = inputs.flatten(1)
            if len(parts) == len(taken):
                goals = parts[0].new_zeros(len(inputs), parts[0].shape[1])
                goals[who] = torch.cat(parts)
            if goals.shape[1] != layer.in_features or pulled.shape[1] != layer.out_features:
                return None
            pulls = pulled.new_zeros(len(inputs), layer.out_features).index_add_(0, who, pulled)
            traces.append(LayerTrace(name=name, layer=layer, inputs=goals, pulls=pulls))
        return traces or None

    def _numbers(self, inputs: Tensor) -> list[Tensor] | None:
        """Of the examples of every step among ``inputs``; None if one of them is not there."""
        if not self.marks or any(t.shape[1:] != self.marks[0].shape[1:] for t in self.marks):
            return None
        known, places = _marks_of(_some_entries(inputs)).sort()
        seen = _marks_of(torch.cat(self.marks))
        near = torch.searchsorted(known, seen - _NEAR).clamp_max(len(known) - 1)
        if bool(((known[near] - seen).abs() > _NEAR).any()):
            return None
        return list(torch.split(places[near], [len(t) for t in self.marks]))


def _some_entries(inputs: Tensor) -> Tensor:
    flat = inputs.flatten(1)
    return flat[:, :: max(1, flat.shape[1] // _MARKS)]


def _marks_of(entries: Tensor) -> Tensor:
    """(B,), a number of each example."""
    weights = torch.arange(1, entries.shape[1] + 1, dtype=torch.double, device=entries.device).sin()
    marks: Tensor = (entries.double() * weights).sum(1)
    return marks


@contextmanager
def watch(model: nn.Module | None = None) -> Iterator[Watched]:
    """Watch the training in this block, for :func:`~glasshouse.guard.preflight.preflight`.

    Args:
        model: that is trained; None: the first network with linear layers that runs in training mode.

    Examples:
        >>> model, images = nn.Linear(4, 2), torch.rand(3, 4)
        >>> with watch(model) as seen:
        ...     torch.autograd.backward(nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 1])))
        >>> [layer.pulls.shape for layer in seen.layers(model, images)]
        [torch.Size([3, 2])]
    """
    seen = Watched()
    handles: list[RemovableHandle] = []

    def meet(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if (
            module.training
            and torch.is_grad_enabled()
            and any(isinstance(m, nn.Linear) for m in module.modules())
        ):
            handles.pop().remove()
            handles.extend(seen.follow(module))
            seen.enter(module, inputs)  # its hooks run from the next step on

    handles += [register_module_forward_pre_hook(meet)] if model is None else seen.follow(model)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()

"""What training itself shows of a client's examples; the check before sending then needs no pass of its own.

Every linear layer's inputs, and the pulls of the loss on its outputs, pass by while a client trains. Kept,
they say exactly what each example added to each row of the update, step by step; a pass afterwards costs a
third of an epoch, and knows only the models before and after.
"""

from collections.abc import Iterator, Sequence
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

_RUNS, _RUN = 8, 8  # of an example, by which it is known again, and entries of each
_NEAR: Final = 1e-9


@final
@dataclass(kw_only=True, slots=True)
class _Call:
    """One step of one layer.

    Attributes:
        step: its number.
        inputs: (b, n); None where they are what entered the network.
        pulls: (b, m); None: nothing pulled on this step.
    """

    step: int
    inputs: Tensor | None
    pulls: Tensor | None = None

    def keep(self, pulls: Tensor) -> None:
        """Called in the backward pass."""
        self.pulls = pulls.detach()


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
    _asked: list[tuple[str, _Call, Tensor, int]] = field(default_factory=list)
    _left_alone: dict[str, bool] = field(default_factory=dict)
    _lost: bool = False
    _is_copy: bool = False

    def __deepcopy__(self, memo: object) -> "Watched":
        """Hooks are copied with a network: those of the copy see nothing, it trains for somebody else."""
        del memo
        return Watched(_is_copy=True)

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
        if self._is_copy or torch.compiler.is_compiling():  # a pass has to tell
            return
        if model.training and torch.is_grad_enabled() and inputs and isinstance(inputs[0], Tensor):
            self._settle()
            self._entered = inputs[0].detach()
            self.marks.append(_some_entries(self._entered).clone())

    def _leave(self, model: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        del model, inputs, output
        if not torch.compiler.is_compiling():
            self._entered = None

    def _leave_layer(self, name: str, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what entered a linear layer, and ask for the pull on what came out."""
        if (entered := self._entered) is None or torch.compiler.is_compiling():
            return
        seen = inputs[0].detach()
        if not output.requires_grad or seen.ndim != 2 or len(seen) != len(entered):
            return
        is_entered = seen.numel() == entered.numel() and bool((seen.flatten() == entered.flatten()).all())
        call = _Call(step=len(self.marks) - 1, inputs=None if is_entered else seen)
        self.calls.setdefault(name, []).append(call)
        if not self._left_alone.get(name) or not _retain(output):
            output.register_hook(call.keep)  # type: ignore[no-untyped-call]  # torch's own
        self._asked.append((name, call, output, output._version))

    def _settle(self) -> None:
        """Take the pulls of the last step that torch retained.

        That is cheaper than a hook, but what is overwritten afterwards (by a ReLU in place) retains the pull
        on what it became. So every layer is hooked at first, and only those whose outputs are left alone
        retain.
        """
        for name, call, output, version in self._asked:
            is_alone = output._version == version
            if output.retains_grad:
                self._lost |= not is_alone
                call.pulls = output.grad
            self._left_alone[name] = is_alone and self._left_alone.get(name, True)
        self._asked.clear()

    def layers(self, model: nn.Module, inputs: Tensor) -> list[LayerTrace] | None:
        """What the examples did to the linear layers of ``model``, each example summed over its steps.

        None: training passed other examples, or another network, and a pass has to tell.
        """
        self._settle()
        order = self._numbers(inputs)
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        if order is None or self._lost or not self.calls.keys() <= linear.keys():
            return None
        traces = []
        for name, layer in linear.items():
            taken = [call for call in self.calls.get(name, ()) if call.pulls is not None]
            if not taken:
                continue
            goals: Tensor | None = inputs.flatten(1)
            pulls = _add_up(taken, order, (len(inputs), layer.out_features))
            if all(call.inputs is not None for call in taken):
                goals = _put_last(taken, order, (len(inputs), layer.in_features))
            if goals is None or pulls is None or goals.shape[1] != layer.in_features:
                return None
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


def _retain(output: Tensor) -> bool:
    """Have the pull on it retained; inside of a transform of ``torch.func`` that cannot be."""
    try:
        output.retain_grad()
    except RuntimeError:
        return False
    return True


def _add_up(taken: Sequence[_Call], order: Sequence[Tensor], shape: tuple[int, int]) -> Tensor | None:
    """Of each example the sum of its pulls; None: a layer of another width was watched."""
    pulls = [call.pulls for call in taken if call.pulls is not None]
    if any(t.shape[1:] != shape[1:] for t in pulls):
        return None
    total = pulls[0].new_zeros(shape)
    for call, t in zip(taken, pulls, strict=True):
        total.index_add_(0, order[call.step], t.to(total))
    return total


def _put_last(taken: Sequence[_Call], order: Sequence[Tensor], shape: tuple[int, int]) -> Tensor | None:
    """Of each example what entered a layer last; None: a layer of another width was watched."""
    inputs = [call.inputs for call in taken if call.inputs is not None]
    if any(t.shape[1:] != shape[1:] for t in inputs):
        return None
    last = inputs[0].new_zeros(shape)
    for call, t in zip(taken, inputs, strict=True):
        last.index_copy_(0, order[call.step], t.to(last))
    return last


def _some_entries(inputs: Tensor) -> Tensor:
    """Of each example a few runs: what stands side by side is read at once."""
    flat = inputs.flatten(1)
    apart = flat.shape[1] // _RUNS
    if apart < _RUN:
        return flat
    before = (apart - _RUN) // 2
    runs = flat[:, : apart * _RUNS].reshape(len(flat), _RUNS, apart)
    return runs[..., before : before + _RUN].flatten(1)


def _marks_of(entries: Tensor) -> Tensor:
    """(B,), a number of each example."""
    weights = torch.arange(1, entries.shape[1] + 1, dtype=torch.double, device=entries.device).sin()
    return entries.double() @ weights


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

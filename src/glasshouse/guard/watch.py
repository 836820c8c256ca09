"""Record local training, so that the check before sending needs no extra pass over the examples.

The inputs of every linear layer, and the gradients of the loss at its outputs ("pulls"), are computed anyway
while a client trains. Stored, they give the exact contribution of each example to each row of the update, in
every step; a pass afterwards costs a third of an epoch, and uses only the models before and after.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from glasshouse.guard.layers.trace import LayerTrace

__all__ = ["Watched", "watch"]

_RUNS, _RUN = 3, 32  # runs of entries that identify an example, and entries per run: as wide as a digit
_NEAR: Final = 1e-9


@final
@dataclass(kw_only=True, slots=True)
class _Call:
    """One forward pass of one layer.

    Attributes:
        step: number of the training step.
        inputs: (b, n); None if they are the network's inputs.
        pulls: gradients at the outputs, (b, m); None if no gradient arrived.
    """

    step: int
    inputs: Tensor | None
    pulls: Tensor | None = None

    def add(self, pulls: Tensor) -> None:
        """Called in every backward pass that reaches the layer; gradients of several losses are summed."""
        pulls = pulls.detach() if pulls.requires_grad else pulls
        self.pulls = pulls if self.pulls is None else self.pulls + pulls


@final
@dataclass(kw_only=True)
class Watched:
    """The recorded steps of one local training.

    Attributes:
        marks: some entries of the examples of every step, (b, ...) each, to identify them.
        calls: forward passes of each linear layer, by name.
    """

    marks: list[Tensor] = field(default_factory=list)
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    _entered: Tensor | None = None
    _takes_inputs: dict[str, bool] = field(default_factory=dict)
    _asked: list[tuple[str, _Call, Tensor, int, bool]] = field(default_factory=list)
    _left_alone: dict[str, bool] = field(default_factory=dict)
    _lost: bool = False
    _is_copy: bool = False

    def __deepcopy__(self, memo: object) -> "Watched":
        """Hooks are copied with a network: those of the copy record nothing, as its training is another."""
        del memo
        return Watched(_is_copy=True)

    def follow(self, model: nn.Module) -> list[RemovableHandle]:
        """Register hooks on ``model`` and its linear layers."""
        layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        return [
            model.register_forward_pre_hook(self.enter),
            *(layer.register_forward_hook(partial(self._leave_layer, name)) for name, layer in layers),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def enter(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Record the examples before the network's forward pass."""
        if self._is_copy or torch.compiler.is_compiling():  # not recorded: a separate pass is needed
            return
        if model.training and torch.is_grad_enabled() and inputs and isinstance(inputs[0], Tensor):
            self.settle()
            entered = inputs[0]
            self._entered = entered
            self.marks.append(_some_entries(entered.detach()).clone())

    def _leave(self, model: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        del model, inputs, output
        if not torch.compiler.is_compiling():
            self._entered = None

    def _leave_layer(self, name: str, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Store the input of a linear layer, and request the gradient at its output."""
        if (entered := self._entered) is None or torch.compiler.is_compiling():
            return
        seen = inputs[0]
        if not output.requires_grad or seen.ndim != 2 or seen.shape[0] != entered.shape[0]:
            return
        call = _Call(
            step=len(self.marks) - 1, inputs=None if self._is_entered(name, seen, entered) else seen.detach()
        )
        self.calls.setdefault(name, []).append(call)
        is_retained = self._left_alone.get(name, False) and _retain(output)
        if not is_retained:
            output.register_hook(call.add)  # type: ignore[no-untyped-call]  # torch's own
        self._asked.append((name, call, output, output._version, is_retained))

    def _is_entered(self, name: str, seen: Tensor, entered: Tensor) -> bool:
        """Whether a layer's input is the network's; once it was not, the layer is not compared again."""
        if seen.numel() != entered.numel() or not self._takes_inputs.get(name, True):
            return False
        self._takes_inputs[name] = bool((seen.flatten() == entered.flatten()).all())
        return self._takes_inputs[name]

    def settle(self) -> None:
        """Collect the retained output gradients of the last step, and release its graph.

        Retaining is cheaper than a hook, but an output modified in place afterwards (by a ReLU) retains the
        gradient of its modified value. So every layer is hooked at first, and only layers whose outputs are
        not modified use retained gradients. If no gradient has arrived yet (one backward pass over several
        steps), a hook waits for it; if one has, later gradients of the same step are missed.
        """
        for name, call, output, version, is_retained in self._asked:
            is_alone = output._version == version
            if is_retained:
                self._lost |= not is_alone
                pulls = output.grad
                if pulls is not None:
                    call.add(pulls)
                elif is_alone:
                    output.register_hook(call.add)  # type: ignore[no-untyped-call]  # torch's own
            self._left_alone[name] = is_alone and self._left_alone.get(name, True)
        self._asked.clear()

    def layers(self, model: nn.Module, inputs: Tensor) -> list[LayerTrace] | None:
        """Traces of the linear layers of ``model``, with each example's output gradients summed over steps.

        None: training used other examples, or another network, and a separate pass is needed.
        """
        self.settle()
        order = self._numbers(inputs)
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        if order is None or self._lost or not self.calls.keys() <= linear.keys():
            return None
        traces = []
        everybody = _Rows.of(order, len(inputs))
        for name, layer in linear.items():
            # What the hooks noted during training stands for a pass of its own, if it was the same examples
            # in the same layers.
            taken = [call for call in self.calls.get(name, ()) if call.pulls is not None]
            steps = [call.step for call in taken]
            rows = everybody if steps == list(range(len(order))) else None
            if not taken:
                continue
            rows = rows or _Rows.of([order[step] for step in steps], len(inputs))
            # None | Inputs of the first layer are the examples; others changed from step to step, and the
            # last ones are taken.
            goals: Tensor | None = inputs.flatten(1)
            if all(call.inputs is not None for call in taken):
                goals = rows.last([call.inputs for call in taken if call.inputs is not None])
            pulls = rows.sums([call.pulls for call in taken if call.pulls is not None])
            if goals is None or pulls is None or (pulls.shape[1], goals.shape[1]) != layer.weight.shape:
                return None
            traces.append(LayerTrace(name=name, layer=layer, inputs=goals, pulls=pulls))
        return traces or None

    def _numbers(self, inputs: Tensor) -> list[Tensor] | None:
        """Indices in ``inputs`` of the examples of every step; None if one of them is not among them."""
        if len({t.shape[1:] for t in self.marks}) != 1:
            return None
        known, places = _number(_some_entries(inputs)).sort()
        seen = _number(torch.cat(self.marks))
        near = torch.searchsorted(known, seen - _NEAR).clamp_max_(len(known) - 1)
        if bool(((known[near] - seen).abs() > _NEAR).any()):
            return None
        return list(torch.split(places[near], [t.shape[0] for t in self.marks]))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Which example each row belongs to, for the concatenated rows of several steps of a layer.

    Attributes:
        who: example of each row, (r,).
        count: number of examples.
        places: the only row of each example, (count,); None if some have none, or several.
    """

    who: Tensor
    count: int
    places: Tensor | None

    @classmethod
    def of(cls, order: Sequence[Tensor], count: int) -> "_Rows":
        """From the indices of the examples in each step."""
        who = torch.cat(list(order))
        places = None
        if len(who) == count:
            rows = torch.arange(count, device=who.device)
            places = torch.full_like(who, -1).index_copy_(0, who, rows)
        if places is not None and bool((places < 0).any()):
            places = None
        return cls(who=who, count=count, places=places)

    def sums(self, parts: Sequence[Tensor]) -> Tensor | None:
        """The sum of each example's rows, (count, k); None: the layer changed its width."""
        rows = _cat(parts)
        if rows is None:
            return None
        if self.places is not None:
            return rows.index_select(0, self.places)
        return rows.new_zeros(self.count, rows.shape[1]).index_add_(0, self.who, rows)

    def last(self, parts: Sequence[Tensor]) -> Tensor | None:
        """The last row of each example, (count, n); None: the layer changed its width."""
        rows = _cat(parts)
        if rows is None:
            return None
        if self.places is not None:
            return rows.index_select(0, self.places)
        numbers = torch.arange(len(rows), device=rows.device)
        last = self.who.new_full((self.count,), -1).scatter_reduce_(0, self.who, numbers, "amax")
        return torch.where((last < 0)[:, None], 0, rows[last])


def _cat(parts: Sequence[Tensor]) -> Tensor | None:
    """All rows concatenated; None: their widths differ."""
    return torch.cat(list(parts)) if len({t.shape[1] for t in parts}) == 1 else None


def _retain(output: Tensor) -> bool:
    """Retain the gradient of ``output``; False inside ``torch.func`` transforms, where that is impossible."""
    try:
        output.retain_grad()
    except RuntimeError:
        return False
    return True


def _some_entries(inputs: Tensor) -> Tensor:
    """A few runs of adjacent entries of each example, (B, ...): adjacent entries are fast to read."""
    inputs = inputs.contiguous()
    width = math.prod(inputs.shape[1:])
    spacing = width // _RUNS
    if spacing < _RUN:
        return inputs.flatten(1)
    first = inputs.storage_offset() + (spacing - _RUN) // 2
    return inputs.as_strided((inputs.shape[0], _RUNS, _RUN), (width, spacing, 1), first)


def _number(entries: Tensor) -> Tensor:
    """A number that identifies each example, (B,)."""
    rows = entries.flatten(1).double()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.double, device=rows.device).sin()
    return rows @ weights


@contextmanager
def watch(model: nn.Module | None = None) -> Iterator[Watched]:
    """Record the training in this block, for :func:`~glasshouse.guard.preflight.preflight`.

    Args:
        model: the trained model; None: the first network with linear layers that runs in training mode.

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
        seen.settle()
        for handle in handles:
            handle.remove()

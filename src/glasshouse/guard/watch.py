"""What training itself shows of a client's examples; the check before sending then needs no pass of its own.

Every linear layer's inputs, and the pulls of the loss on its outputs, pass by while a client trains. Kept,
they say exactly what each example added to each row of the update, step by step; a pass afterwards costs a
third of an epoch, and knows only the models before and after.
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

from glasshouse.guard.behaviour.trace import LayerTrace

__all__ = ["Watched", "watch"]

_RUNS, _RUN = 3, 32  # of an example, by which it is known again, and entries of each: as wide as a digit
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

    def add(self, pulls: Tensor) -> None:
        """Called in every backward pass that reaches the layer: several losses may pull on one step."""
        pulls = pulls.detach() if pulls.requires_grad else pulls
        self.pulls = pulls if self.pulls is None else self.pulls + pulls


@final
@dataclass(kw_only=True)
class Watched:
    """The steps of one local training.

    Attributes:
        marks: some entries of the examples of every step, (b, ...) each.
        calls: of each linear layer, by its name.
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
            self.settle()
            entered = inputs[0]
            self._entered = entered
            self.marks.append(_some_entries(entered.detach()).clone())

    def _leave(self, model: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        del model, inputs, output
        if not torch.compiler.is_compiling():
            self._entered = None

    def _leave_layer(self, name: str, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what entered a linear layer, and ask for the pull on what came out."""
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
        """Whether what enters a layer is what entered the network; not asked again where it was not."""
        if seen.numel() != entered.numel() or not self._takes_inputs.get(name, True):
            return False
        self._takes_inputs[name] = bool((seen.flatten() == entered.flatten()).all())
        return self._takes_inputs[name]

    def settle(self) -> None:
        """Take the pulls of the last step that torch retained, and let go of its graph.

        That is cheaper than a hook, but what is overwritten afterwards (by a ReLU in place) retains the pull
        on what it became. So every layer is hooked at first, and only those whose outputs are left alone
        retain. Where no pull came yet (one backward pass of several steps), a hook waits for it; where one
        did, what pulls on the same step later is not seen.
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
        """What the examples did to the linear layers of ``model``, each example summed over its steps.

        None: training passed other examples, or another network, and a pass has to tell.
        """
        self.settle()
        order = self._numbers(inputs)
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        if order is None or self._lost or not self.calls.keys() <= linear.keys():
            return None
        traces = []
        everybody = _Rows.of(order, len(inputs))
        for name, layer in linear.items():
            taken = [call for call in self.calls.get(name, ()) if call.pulls is not None]
            steps = [call.step for call in taken]
            rows = everybody if steps == list(range(len(order))) else None
            if not taken:
                continue
            rows = rows or _Rows.of([order[step] for step in steps], len(inputs))
            goals: Tensor | None = inputs.flatten(1)
            if all(call.inputs is not None for call in taken):
                goals = rows.last([call.inputs for call in taken if call.inputs is not None])
            pulls = rows.sums([call.pulls for call in taken if call.pulls is not None])
            if goals is None or pulls is None or (pulls.shape[1], goals.shape[1]) != layer.weight.shape:
                return None
            traces.append(LayerTrace(name=name, layer=layer, inputs=goals, pulls=pulls))
        return traces or None

    def _numbers(self, inputs: Tensor) -> list[Tensor] | None:
        """Of the examples of every step among ``inputs``; None if one of them is not there."""
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
    """Whose rows those are that some steps passed through a layer, one step after the other.

    Attributes:
        who: of each row the example, (r,).
        count: of the examples.
        places: of each example its only row, (count,); None: some have none, or several.
    """

    who: Tensor
    count: int
    places: Tensor | None

    @classmethod
    def of(cls, order: Sequence[Tensor], count: int) -> "_Rows":
        """Of steps, each with the numbers of its examples."""
        who = torch.cat(list(order))
        places = None
        if len(who) == count:
            rows = torch.arange(count, device=who.device)
            places = torch.full_like(who, -1).index_copy_(0, who, rows)
        if places is not None and bool((places < 0).any()):
            places = None
        return cls(who=who, count=count, places=places)

    def sums(self, parts: Sequence[Tensor]) -> Tensor | None:
        """(count, k), of each example the sum of its rows; None: the layer changed its width."""
        rows = _cat(parts)
        if rows is None:
            return None
        if self.places is not None:
            return rows.index_select(0, self.places)
        return rows.new_zeros(self.count, rows.shape[1]).index_add_(0, self.who, rows)

    def last(self, parts: Sequence[Tensor]) -> Tensor | None:
        """(count, n), of each example the row that came last; None: the layer changed its width."""
        rows = _cat(parts)
        if rows is None:
            return None
        if self.places is not None:
            return rows.index_select(0, self.places)
        numbers = torch.arange(len(rows), device=rows.device)
        last = self.who.new_full((self.count,), -1).scatter_reduce_(0, self.who, numbers, "amax")
        return torch.where((last < 0)[:, None], 0, rows[last])


def _cat(parts: Sequence[Tensor]) -> Tensor | None:
    """All rows below each other; None: some are wider than others."""
    return torch.cat(list(parts)) if len({t.shape[1] for t in parts}) == 1 else None


def _retain(output: Tensor) -> bool:
    """Have the pull on it retained; inside of a transform of ``torch.func`` that cannot be."""
    try:
        output.retain_grad()
    except RuntimeError:
        return False
    return True


def _some_entries(inputs: Tensor) -> Tensor:
    """(B, ...), of each example a few runs: what stands side by side is read at once, by few calls."""
    inputs = inputs.contiguous()
    width = math.prod(inputs.shape[1:])
    apart = width // _RUNS
    if apart < _RUN:
        return inputs.flatten(1)
    first = inputs.storage_offset() + (apart - _RUN) // 2
    return inputs.as_strided((inputs.shape[0], _RUNS, _RUN), (width, apart, 1), first)


def _number(entries: Tensor) -> Tensor:
    """(B,), a number of each example."""
    rows = entries.flatten(1).double()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.double, device=rows.device).sin()
    return rows @ weights


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
        seen.settle()
        for handle in handles:
            handle.remove()

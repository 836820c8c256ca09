"""What a test client trained on, recorded in its own folder; nothing of it is sent.

An audit is scored against what really happened, and only a client knows that. One that is run for the audit,
on data that the auditor owns, records its batches in the order in which it trains on them: :func:`truth_mod`
sees what enters the network and the loss module, in training mode. A training loop whose loss is a function
(``F.cross_entropy``) says it by one call of :func:`used`. ``glasshouse collect`` fetches the folders.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from glasshouse.errors import BadValue
from glasshouse.integrations.flower.records import arrays_of, round_of, stage_of, tensors_of
from glasshouse.truth.recorded import Recorded, write_recorded
from glasshouse.wire import Batch

__all__ = ["truth_mod", "used"]

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def truth_mod(folder: str | Path) -> Mod:
    """A client mod that records the batches of every round of training below ``folder``.

    It goes last in ``mods``, so that it runs inside of what others do. Images are recorded as they enter the
    network: augmented and normalised.

    Args:
        folder: of the clients on this machine; each node has its own in it.
    """

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if stage_of(message) != "train" or not message.has_content() or not message.content.array_records:
            return call_next(message, context)
        number = round_of(message)
        if number is None:
            raise BadValue(
                "truth_mod",
                needs="the number of the round in the message: 'server-round' in its config",
                got="none",
                fix="use a strategy of Flower, or set it where the server makes its messages",
            )
        with watching() as steps:
            answer = call_next(message, context)
        arrays = arrays_of(answer.content) if answer.has_content() else None
        recorded = Recorded(
            node=context.node_id,
            round=number,
            steps=tuple(steps.told or steps.seen),
            pixels=steps.pixels,
            sent={} if arrays is None else tensors_of(arrays),
        )
        if recorded.steps:
            write_recorded(recorded, Path(folder).expanduser())
        return answer

    return mod


def used(inputs: Tensor, labels: Tensor) -> None:
    """Tell the mod that the client trains on this batch now; without the mod nothing happens.

    Args:
        inputs: (B, C, H, W), as they enter the network.
        labels: (B,).
    """
    steps = _CURRENT.get()
    if steps is not None:
        steps.told.append(_batch(inputs, labels))


@final
@dataclass(kw_only=True)
class _Steps:
    """The batches of one round.

    Attributes:
        seen: by hooks.
        told: by :func:`used`; where there are any, they are all that counts.
        pending: what entered the network and waits for its labels.
        pixels: the network normalises its images itself.
        depth: modules that are running inside of each other.
    """

    seen: list[Batch] = field(default_factory=list)
    told: list[Batch] = field(default_factory=list)
    pending: Tensor | None = None
    pixels: bool = False
    depth: int = 0

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Before a module runs: note what enters the outermost one that is trained."""
        self.depth += 1
        trained = module.training and torch.is_grad_enabled() and any(True for _ in module.parameters())
        if self.depth == 1 and trained and inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
            self.pending = inputs[0]
            self.pixels = "normalize" in dict(module.named_children())

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        """After a module ran: a loss has the labels of what entered the network before it."""
        del output
        self.depth -= 1
        if isinstance(module, _Loss) and self.pending is not None and len(inputs) > 1:
            self.seen.append(_batch(self.pending, inputs[1]))
            self.pending = None


_CURRENT: Final[ContextVar[_Steps | None]] = ContextVar("glasshouse_truth", default=None)


@contextmanager
def watching() -> Iterator[_Steps]:
    """Collect the steps of this thread while the client trains; who watches already shares them."""
    if (others := _CURRENT.get()) is not None:
        yield others
        return
    steps = _Steps()
    token = _CURRENT.set(steps)
    handles = [
        register_module_forward_pre_hook(_enter),
        register_module_forward_hook(_leave, always_call=True),
    ]
    try:
        yield steps
    finally:
        for handle in handles:
            handle.remove()
        _CURRENT.reset(token)


def _enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if (steps := _CURRENT.get()) is not None:
        steps.enter(module, inputs)


def _leave(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
    if (steps := _CURRENT.get()) is not None:
        steps.leave(module, inputs, output)


def _batch(inputs: Tensor, labels: Tensor) -> Batch:
    return Batch(inputs=inputs.detach().cpu().float().clone(), labels=labels.detach().cpu().long().clone())

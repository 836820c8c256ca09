"""Observation of a client's training without changes to its code.

Hooks on every module call, and on torch's losses of labels and of numbers, as modules or functions. Watchers
are called in order, in the thread that trains; modules inside a compiled one are not observed. Other losses
are reported by a call of :func:`used`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

_LOSSES: Final = (
    F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits,
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss,
)  # fmt: skip


class Watcher(Protocol):
    """Interface of observers of a training."""

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], *, depth: int) -> None:
        """Called before a module runs; ``depth``: number of modules that enclose it."""

    def loss(self, labels: Tensor) -> None:
        """Called when a loss was computed, on the last inputs of the network."""

    def told(self, inputs: Tensor, labels: Tensor) -> None:
        """Called when the training loop reports its batch by :func:`used`."""


@final
@dataclass(kw_only=True)
class _Session:
    watchers: list[Watcher]
    depth: int = 0


_CURRENT: Final[ContextVar[_Session | None]] = ContextVar("glasshouse_watching", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let ``watcher`` observe this thread's training, in addition to other watchers."""
    session = _CURRENT.get()
    with ExitStack() as stack:
        if session is None:
            session = _Session(watchers=[])
            stack.callback(_CURRENT.reset, _CURRENT.set(session))
            stack.enter_context(_HOOKS)
            stack.enter_context(_Losses())
        session.watchers.append(watcher)
        stack.callback(session.watchers.remove, watcher)
        yield


@contextmanager
def paused() -> Iterator[None]:
    """Suspend observation during a watcher's own computations."""
    token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Sequence[Watcher]:
    """The watchers of this thread."""
    session = _CURRENT.get()
    return () if session is None else session.watchers


def used(inputs: Any, labels: Any) -> None:
    """Report to whoever observes that the client trains on this batch; has no effect if nobody does.

    Args:
        inputs: (B, C, H, W), as they enter the network; of a table its numbers, (B, columns).
        labels: (B,), likewise.
    """
    for watcher in current():
        watcher.told(torch.as_tensor(inputs), torch.as_tensor(labels))


@final
class _Hooks:
    """Torch's hooks on every module call, once for all threads that are watched.

    Each thread counts its own depth. Were they registered by each, the calls of one thread would be counted
    by the hooks of all, and be out of balance as soon as another one ends in the middle of a call.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._stack = Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._stack.callback(register_module_forward_pre_hook(_enter).remove)
                self._stack.callback(register_module_forward_hook(_leave, always_call=True).remove)

    def __exit__(self, *reason: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._stack.close()


class _Losses(TorchFunctionMode):
    """Intercepts losses called as functions, which loss modules also call."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in _LOSSES and not torch.compiler.is_compiling():
            _lose(args[1] if len(args) > 1 else named["target"])
        return func(*args, **named)


def _lose(labels: object) -> None:
    if isinstance(labels, Tensor):
        for watcher in current():
            watcher.loss(labels)


def _enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if torch.compiler.is_compiling() or (session := _CURRENT.get()) is None:
        return
    session.depth += 1
    for watcher in session.watchers:
        watcher.enter(module, inputs, depth=session.depth - 1)


def _leave(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
    del output
    if torch.compiler.is_compiling() or (session := _CURRENT.get()) is None:
        return
    session.depth -= 1
    if isinstance(module, _Loss) and len(inputs) > 1:
        _lose(inputs[1])


_HOOKS: Final = _Hooks()

"""The batches that a client trains on, and how it steps, as its training is observed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from glasshouse.integrations.watching import watching
from glasshouse.settings import Optimizer
from glasshouse.wire import Batch

_NAMES: Final = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
"""Optimizers whose settings are terms, by the name of their class."""
EARLIER: Final = 8
"""Inputs of outermost modules that are held until the loss is known."""


@final
@dataclass(kw_only=True)
class Steps:
    """The batches of one round.

    Attributes:
        seen: observed by hooks.
        said: reported by :func:`~glasshouse.integrations.watching.used`; if there are any, only these count.
        pending: inputs of the network whose labels are not known yet.
        earlier: other inputs of outermost modules since the last loss, such as an encoder's.
        awaited: the outermost module was given its inputs by name.
        pixels: the network normalises its images itself.
        stepped: number of steps of an optimizer.
        stepping: how it stepped: ``optimizer``, ``learning_rate``, ``mode``; or ``unread``, why that is not
            known.
    """

    seen: list[Batch] = field(default_factory=list)
    said: list[Batch] = field(default_factory=list)
    pending: Tensor | None = None
    earlier: list[Tensor] = field(default_factory=list)
    awaited: bool = False
    pixels: bool = False
    stepped: int = 0
    stepping: dict[str, Any] = field(default_factory=dict)

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches to record, in order."""
        return tuple(self.said or self.seen)

    @property
    def read(self) -> dict[str, Any]:
        """How the client stepped; with ``accumulate``, if several batches make one step."""
        if self.seen and not self.stepped:
            return {**self.stepping, "unread": "no optimizer of torch.optim took its steps"}
        several = len(self.batches) // self.stepped if self.stepped else 1
        return {**self.stepping, "accumulate": several} if several > 1 else self.stepping

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], *, depth: int) -> None:
        """Store the inputs of the outermost trained module.

        Where that takes them by name, which hooks do not see, they are the first tokens that a layer gets.
        """
        given = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
        if depth == 0:
            trained = module.training and torch.is_grad_enabled() and any(True for _ in module.parameters())
            self.awaited = trained and given is None
            if not trained or given is None or given.ndim < 2:
                return
            self.pixels = "normalize" in dict(module.named_children())
        elif not self.awaited or given is None or given.ndim != 2 or given.is_floating_point():
            return
        if self.pending is not None:
            self.earlier = [*self.earlier, self.pending][-EARLIER:]
        self.pending, self.awaited = given, False
        self.stepping.setdefault("mode", "training")

    def loss(self, labels: Tensor) -> None:
        """Record the network's last inputs with the labels of the loss.

        Where the target of the loss is itself what an outermost module was given, as an autoencoder's encoder
        is, that is the batch.
        """
        if self.pending is None:
            return
        rebuilt = [given for given in self.earlier if given.shape == labels.shape and given.equal(labels)]
        self.seen.append(_batch(rebuilt[0] if rebuilt else self.pending, labels))
        self.pending, self.earlier = None, []

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note how the optimizer steps; a rate that changes within a round is a schedule, and not read."""
        self.stepped += 1
        now, before = _read_optimizer(optimizer), self.stepping
        if (
            "learning_rate" in before
            and now.get("learning_rate", before["learning_rate"]) != before["learning_rate"]
        ):
            now = {"unread": "its learning rate changes within a round"}
        self.stepping = {**now, **before} if "unread" not in now else {**before, **now}

    def told(self, inputs: Tensor, labels: Tensor) -> None:
        """Record a batch that the training loop reports."""
        self.said.append(_batch(inputs, labels))


@contextmanager
def observed(steps: Steps) -> Iterator[None]:
    """Let ``steps`` observe this thread's training, and the steps of its optimizers."""
    thread = threading.get_ident()

    def hook(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        if threading.get_ident() == thread:
            steps.step(optimizer)

    handle = register_optimizer_step_pre_hook(hook)
    try:
        with watching(steps):
            yield
    finally:
        handle.remove()


def _read_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``optimizer`` and ``learning_rate`` as terms state them, or why they are ``unread``."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if name not in _NAMES:
        return {"unread": f"its optimizer is {name}"}
    stated: dict[str, Any] = {
        k: groups[0][k] for k in ("momentum", "weight_decay", "betas", "eps", "nesterov") if k in groups[0]
    }
    if any(group[k] != groups[0][k] for group in groups for k in (*stated, "lr")):
        return {"unread": "groups of its parameters step differently"}
    unusual = [k for k in ("dampening", "amsgrad", "maximize") if groups[0].get(k)]
    if unusual:
        return {"unread": f"its optimizer has {unusual[0]}"}
    plain = {k: list(map(float, v)) if isinstance(v, tuple) else v for k, v in stated.items()}
    default = Optimizer(name=_NAMES[name]).model_dump(mode="json")  # type: ignore[arg-type]  # one of its literals
    kept = {k: v for k, v in plain.items() if v != default[k]}
    return {"optimizer": {"name": _NAMES[name], **kept}, "learning_rate": float(groups[0]["lr"])}


def _batch(inputs: Tensor, labels: Tensor) -> Batch:
    """Tokens stay whole numbers; labels that are not one per example (next tokens) become classes 0."""
    inputs, labels = inputs.detach().cpu().clone(), labels.detach().cpu().clone()
    if len(labels) != len(inputs):
        labels = torch.zeros(len(inputs), dtype=torch.int64)
    inputs, labels = (t.float() if t.is_floating_point() else t.long() for t in (inputs, labels))
    return Batch(inputs=inputs, labels=labels)

"""Detection of the network and the examples that a client's own code trains on, by observing it.

The network is the module that contains the received tensors when it is called with gradients enabled. It is
copied then, as received, before any training; its inputs, with the classes passed to the loss, are the
examples. So the guard gets both without any argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final
from weakref import WeakSet

import torch
from flwr.app import Message
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.integrations.flower.examiner import BATCH, Examiner, Examples
from glasshouse.integrations.watching import paused
from glasshouse.models import build as models
from glasshouse.models.handed_over import copied

ENOUGH: Final = 64
"""Number of observed examples from which on the model is tried."""
_ODD: Final = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""Errors raised when a network that is not a plain classifier of one tensor is copied or tried."""


class RefusedModel(Exception):
    """Stops the training; if caught, it is raised again, and the reply is a refusal in any case."""


@final
@dataclass(kw_only=True)
class Lookout:
    """Observes one round of training of one node.

    Attributes:
        node: id of the node.
        received: the tensors of the broadcast.
        examiner: of the model; None: it is not examined here.
        network: a copy of the trained network, as received; None: no module with the received tensors ran.
        findings: against the model.
        noted: findings that are only reported, as the node wishes.
        is_reported: findings do not stop the training.
        refusal: the reply, if the update is refused.
        unable: why the model could not be examined.
        tried: on which examples and when its behaviour was tried, in words; empty: not tried.
        fit: its fit to the client's examples, in words; empty: it was not tried, or not accepted.
        decided: another mod has already decided about the reply.
    """

    node: int
    received: Mapping[str, Tensor]
    examiner: Examiner | None = None
    network: nn.Module | None = None
    findings: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    is_reported: bool = False
    refusal: Message | None = None
    unable: str = "no module with the received parameters was trained"
    tried: str = ""
    fit: str = ""
    decided: bool = False
    _module: nn.Module | None = None
    _exact: bool = False
    _others: "WeakSet[nn.Module]" = field(default_factory=WeakSet)
    _pending: Tensor | None = None
    _batches: int = 0
    _gave_up: bool = False
    _rows: dict[bytes, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def examples(self) -> Examples | None:
        """The examples trained on, without duplicates; None: none were observed."""
        if not self._rows:
            return None
        inputs, labels = zip(*self._rows.values(), strict=True)
        return torch.stack(inputs), torch.stack(labels)

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], *, depth: int) -> None:
        """Recognise the network, and store its inputs."""
        if self.findings:
            raise RefusedModel("; ".join(self.findings))
        if not torch.is_grad_enabled():
            return
        seeks = not self._exact and (self._module is None or not self._batches)
        if seeks and module not in self._others:
            self._recognise(module, depth)
        if module is self._module and inputs and isinstance(inputs[0], Tensor):
            self._pending = inputs[0]

    def loss(self, labels: Tensor) -> None:
        """Record the classes of the network's last inputs."""
        if self._pending is not None:
            self.told(self._pending, labels)

    def told(self, inputs: Tensor, labels: Tensor) -> None:
        """Record one more batch, and try the model once there are enough examples."""
        self._pending = None
        self._batches += 1
        # One-hot labels are classes as well.
        classes = labels.argmax(1) if labels.is_floating_point() and labels.ndim == 2 else labels
        rows = inputs.detach().cpu().clone()
        rows = rows.float() if rows.is_floating_point() else rows
        first = next(iter(self._rows.values()))[0] if self._rows else rows[0]
        if classes.shape != rows.shape[:1] or rows[0].shape != first.shape:
            self._give_up(
                f"inputs {tuple(rows.shape)} with labels {tuple(classes.shape)} are no examples with a class"
            )
            return
        # By content: several epochs bring the same examples again.
        for row, label in zip(rows, classes.detach().cpu().long().clone(), strict=True):
            self._rows.setdefault(row.numpy().tobytes(), (row, label))
        if len(self._rows) >= ENOUGH:
            self._try("before the first step" if self._batches == 1 else f"after {self._batches - 1} batches")
            if self.findings:
                raise RefusedModel("; ".join(self.findings))

    def finish(self) -> None:
        """After the training, try the model now if there were too few examples before."""
        self._try("before sending")
        examples = self.examples
        if self.examiner is not None and examples is not None:
            self.examiner.kept.setdefault(self.node, (examples[0][:BATCH], examples[1][:BATCH]))

    @property
    def summary(self) -> str:
        """The checks that were made, in a sentence."""
        fit = f" It was {self.fit}." if self.fit else ""
        return f"The model's weights were checked, and its behaviour on {self.tried}.{fit}"

    def _recognise(self, module: nn.Module, depth: int) -> None:
        """Recognise the network by its tensors' names at any depth, or by their order if it is outermost."""
        own = module.state_dict()
        named = self.received
        exact = bool(named) and all(name in own and own[name].shape == t.shape for name, t in named.items())
        if not exact:
            try:
                named = models.name_tensors(named, module) if depth == 0 and named else {}
            except BadValue:
                named = {}
        if not named:
            self._others.add(module)
        elif (exact or self._module is None) and _stand_in(named, own):
            self._module, self._exact = module, exact
            self._copy(module)

    def _copy(self, module: nn.Module) -> None:
        """Copy the received network to the CPU, and examine its weights."""
        try:
            with paused():
                self.network = copied(getattr(module, "_orig_mod", module)).cpu().float()
        except _ODD as error:
            self.unable = f"the network cannot be copied: {error}"
            return
        self.unable = "no loss named the classes of what entered the network"
        if self.examiner is None:
            return
        self._find(self.examiner.examine_weights(self.network.state_dict()))
        kept = self.examiner.kept.get(self.node)
        if kept or len(self._rows) >= ENOUGH:
            self._try("before any training", kept)
        if self.findings:
            raise RefusedModel("; ".join(self.findings))

    def _try(self, when: str, given: Examples | None = None) -> None:
        examples = given or self.examples
        if self.examiner is None or self.network is None or examples is None:
            return
        if self.tried or self.findings or self._gave_up:
            return
        try:
            with paused():
                judged = self.examiner.examine_behaviour(self.node, self.network, examples)
                if judged.verdict != "refused":
                    self.fit = self.examiner.fit_of(self.node, self.network, examples)
        except _ODD as error:
            self._give_up(f"{type(error).__name__}: {error}".splitlines()[0])
            return
        self._find(list(judged.findings))
        if judged.is_in_doubt:  # what cannot be judged is as good as not examined
            self._give_up(judged.reason)
            return
        self.tried = f"{min(BATCH, len(examples[1]))} of your examples, {when} ({judged.summary})"

    def _find(self, findings: list[str]) -> None:
        (self.noted if self.is_reported else self.findings).extend(findings)

    def _give_up(self, why: str) -> None:
        self._gave_up, self.unable = True, why


def _stand_in(received: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Whether a module contains at least half of the received numbers (it may have its own statistics)."""
    total = sum(t.numel() for t in received.values())
    same = sum(
        t.numel()
        for name, t in received.items()
        if torch.allclose(own[name].cpu(), t.to(own[name].dtype), rtol=0, atol=0, equal_nan=True)
    )
    return 2 * same >= total > 0

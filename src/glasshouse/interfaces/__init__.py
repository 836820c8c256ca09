"""Interfaces of trainers, defences, client behaviours, client guards and recorders; traits of protocols."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, final

from torch import Tensor, nn

from glasshouse import registry
from glasshouse.rng import Rng
from glasshouse.settings import Training
from glasshouse.tasks.base import Reduction, Task
from glasshouse.tasks.classification import Classification
from glasshouse.wire import Aggregate, Batch, Broadcast, Crafted, Kind, Mechanism, Trained, Update, Value

__all__ = [
    "Behaviour",
    "ClientGuard",
    "Defense",
    "GradientDefense",
    "LocalDefense",
    "Recorder",
    "Start",
    "Tamper",
    "Trainer",
    "Traits",
    "UpdateDefense",
    "losses_of",
    "mean_loss",
    "stated_training",
    "task_of",
    "traits_if_known",
    "traits_of",
]

Start = Literal["model", "features"]


class Trainer(Protocol):
    """Local training of one client for one round: received model and own data → :class:`Trained`."""

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train by gradient descent, or with ``ascend`` by gradient ascent. May modify ``model``."""


class LocalDefense(Protocol):
    """Wraps client training (DP-SGD)."""

    @property
    def place(self) -> Literal["local"]: ...

    def describe(self) -> Mechanism: ...

    def local(self, train: Trainer) -> Trainer:
        """Return the private version of ``train``."""


class GradientDefense(Protocol):
    """Acts where gradients are computed, with access to the private batch and the model (Soteria)."""

    @property
    def place(self) -> Literal["gradient"]: ...

    def describe(self) -> Mechanism: ...

    def gradient(self, update: Update, batch: Batch, model: nn.Module, *, rng: Rng) -> Update:
        """A new update; the one passed in is left as it was."""


class UpdateDefense(Protocol):
    """Acts on what leaves the client (noise, clipping, pruning, quantising)."""

    @property
    def place(self) -> Literal["update"]: ...

    def describe(self) -> Mechanism: ...

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A new update; the one passed in is left as it was."""


Defense = LocalDefense | GradientDefense | UpdateDefense


class Behaviour(Protocol):
    """How a client deviates from honest training: wraps its trainer, round by round."""

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The trainer that a misbehaving client runs in ``round``; ``train`` itself for an honest round."""


class ClientGuard(Protocol):
    """How clients respond to suspicious models, and to updates that reveal too much."""

    def accepts(self, model: nn.Module, data: Batch, *, round: int, client: int) -> bool:
        """Whether ``client`` trains ``model`` as received; ``data`` are its own examples."""

    def release(self, update: Update, model: nn.Module, batch: Batch) -> Update | None:
        """What the client sends instead of ``update``, computed on ``batch``; None: nothing is sent."""


class Recorder(Protocol):
    """Receives all events of a simulation; the only component that sees both messages and ground truth."""

    def prepare(self, broadcast: Broadcast) -> None:
        """What the server is about to send in this round; a tamper may replace it before it is sent."""

    def broadcast(self, broadcast: Broadcast) -> None: ...

    def update(self, update: Update) -> None: ...

    def aggregate(self, aggregate: Aggregate) -> None: ...

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Tensors that only the server has (its model, its logits)."""

    def private(self, round: int, client: int, *, index: Tensor, trained: Trained, behaviour: str) -> None:
        """Ground truth: the rows of the private pool used, what the client computed, how it behaved."""


BARE: Final = Classification(classes=2)
"""The task of a bare module, such as a head that an attack trains: cross-entropy of whatever classes."""


def task_of(model: nn.Module) -> Task:
    """The task that ``model`` was built for; a bare module is a classifier."""
    task = getattr(model, "task", None)
    return task if isinstance(task, Task) else BARE


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    """Per-example losses whose mean training minimises, (B,), as the task of ``model`` says."""
    return task_of(model).losses(model(batch.inputs), batch.labels, batch.inputs)


def mean_loss(model: nn.Module, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
    """The mean of :func:`losses_of`, or their sum."""
    return task_of(model).loss(model(batch.inputs), batch.labels, batch.inputs, reduction=reduction)


Tamper = Callable[[int], Crafted | None]
"""Called with the number of each round before it: what the malicious server sends instead of its model."""


@final
@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a protocol declares in its class attribute ``traits``.

    Attributes:
        sends: kind of update, unless ``federation.sends`` says otherwise.
        allows: kinds that ``federation.sends`` may name; empty: ``sends`` alone.
        trained: prefix of the names of the parameters that clients train; empty: all parameters.
        start: what the server prepares before round 0: the whole ``model``, or frozen ``features`` with a
            new (or fitted) head, which is all that clients train.
        one_pass: clients make one pass over their data per round: ``federation.local_epochs`` must be 1, as
            wherever a gradient is sent.
        labels_public: clients know the labels of the public data; for protocols that share logits.
        like: the protocol whose attacks read these updates as well; empty: attacks name this one.
        terms: options that are terms of local training: option → key of ``federation.training``.
        averages: the server adds the mean change; False: its step cannot be undone from two models.
        advice: what to try first where nothing is defended, in words; empty: what suits the kind of update.
        controls: control variates travel, which correct every local step (SCAFFOLD).
        singly: the server must see single updates, to clip them or because they are late: no secure sum.
    """

    sends: Kind = "delta"
    allows: tuple[Kind, ...] = ()
    trained: str = ""
    start: Start = "model"
    one_pass: bool = False
    labels_public: bool = True
    like: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)
    averages: bool = True
    advice: str = ""
    controls: bool = False
    singly: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind of update that this protocol can send."""
        return self.allows or (self.sends,)


def traits_of(protocol: str) -> Traits:
    """The traits that the protocol registered under this name declares.

    Raises:
        UnknownName: no such protocol.
        BadValue: its class has no ``traits``.
    """
    return registry.require_declaration("protocols", protocol, "traits", Traits)


def traits_if_known(protocol: str) -> Traits:
    """As :func:`traits_of`; the defaults for one that is not registered, as a foreign file may name."""
    return traits_of(protocol) if protocol in registry.names("protocols") else Traits()


def stated_training(protocol: str, options: Mapping[str, Value], training: Training) -> Training:
    """``training`` with the terms that the protocol's options state, such as FedProx's proximal factor."""
    keys = traits_of(protocol).terms
    takes = registry.arguments(registry.load("protocols", protocol)) if keys else {}
    stated = {key: options.get(option, takes[option].default) for option, key in keys.items()}
    return Training.model_validate({**dict(training), **stated}) if stated else training

"""The interfaces of what acts on messages: training, defences, behaviours, recorders; traits of protocols."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, final, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse import registry
from glasshouse.rng import Rng
from glasshouse.wire import Aggregate, Batch, Broadcast, Crafted, Kind, Mechanism, Trained, Update

__all__ = [
    "Behaviour",
    "ClientGuard",
    "Defense",
    "GradientDefense",
    "HasLosses",
    "LocalDefense",
    "Recorder",
    "Start",
    "Tamper",
    "Trainer",
    "Traits",
    "UpdateDefense",
    "losses_of",
    "mean_loss",
    "traits_of",
]

Start = Literal["model", "features"]


class Trainer(Protocol):
    """Local training of one client for one round: model as received, own data → :class:`Trained`."""

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train (or, with ``ascend``, climb the loss). The model passed in may be changed."""
        ...


class LocalDefense(Protocol):
    """Wraps client training (DP-SGD)."""

    @property
    def place(self) -> Literal["local"]: ...

    def describe(self) -> Mechanism: ...

    def local(self, train: Trainer) -> Trainer:
        """A trainer that does the same, privately."""
        ...


class GradientDefense(Protocol):
    """Acts where gradients are computed, with the private batch and the model at hand (Soteria)."""

    @property
    def place(self) -> Literal["gradient"]: ...

    def describe(self) -> Mechanism: ...

    def gradient(self, update: Update, batch: Batch, model: nn.Module, *, rng: Rng) -> Update:
        """A new update; the one passed in is left as it was."""
        ...


class UpdateDefense(Protocol):
    """Acts on what leaves the client (noise, clipping, pruning, quantising)."""

    @property
    def place(self) -> Literal["update"]: ...

    def describe(self) -> Mechanism: ...

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A new update; the one passed in is left as it was."""
        ...


Defense = LocalDefense | GradientDefense | UpdateDefense


class Behaviour(Protocol):
    """How a client deviates: wraps its trainer, round by round."""

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The trainer that a misbehaving client runs in ``round``; ``train`` itself for an honest round."""
        ...


class ClientGuard(Protocol):
    """What clients do about models that they doubt, and about updates that show too much."""

    def accepts(self, model: nn.Module, data: Batch, *, round: int, client: int) -> bool:
        """Whether ``client`` trains on ``model``, as it received it; ``data`` are its own examples."""
        ...

    def release(self, update: Update, model: nn.Module, batch: Batch) -> Update | None:
        """What it sends instead of ``update``; None: nothing. ``batch`` are the examples behind it."""
        ...


class Recorder(Protocol):
    """Receives all that happens in a simulation; the only thing that sees both wire and truth."""

    def prepare(self, broadcast: Broadcast) -> None:
        """What the server would send in the coming round; a tamper may replace it before it is sent."""
        ...

    def broadcast(self, broadcast: Broadcast) -> None: ...

    def update(self, update: Update) -> None: ...

    def aggregate(self, aggregate: Aggregate) -> None: ...

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Tensors that only the server has (its model, its logits)."""
        ...

    def private(self, round: int, client: int, *, index: Tensor, trained: Trained, behaviour: str) -> None:
        """Truth: rows of the private pool that the client used, what it computed, and how it behaved."""
        ...


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    """What training minimises the mean of, (B,): the model's own ``losses``, else cross-entropy.

    A model of images has one label per image to get right; one of sentences may have every token.
    """
    if isinstance(model, HasLosses):
        return model.losses(batch.inputs, batch.labels)
    return F.cross_entropy(model(batch.inputs), batch.labels, reduction="none")


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean of :func:`losses_of`."""
    if isinstance(model, HasLosses):
        return model.losses(batch.inputs, batch.labels).mean()
    return F.cross_entropy(model(batch.inputs), batch.labels)


@runtime_checkable
class HasLosses(Protocol):
    """A model that says what it is trained for."""

    def losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every example, (B,)."""
        ...


Tamper = Callable[[int], Crafted | None]
"""Asked before every round, with its number, what the malicious server sends instead."""


@final
@dataclass(frozen=True, kw_only=True)
class Traits:
    """The attribute ``traits`` of a protocol's class.

    Attributes:
        sends: kind of update, unless ``federation.sends`` says otherwise.
        allows: kinds that ``federation.sends`` may name; empty: ``sends`` alone.
        trained: clients train the parameters whose names start with this; empty: all of them.
        start: what the server prepares before round 0: the whole ``model``, or frozen ``features`` whose head
            starts fresh (or fitted) and is all that clients train.
        one_pass: clients go through their data once per round: ``federation.local_epochs`` must be 1, as
            wherever a gradient is sent.
        labels_public: clients know the labels of the public data; of protocols that share logits.
    """

    sends: Kind = "delta"
    allows: tuple[Kind, ...] = ()
    trained: str = ""
    start: Start = "model"
    one_pass: bool = False
    labels_public: bool = True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind of update that this protocol can send."""
        return self.allows or (self.sends,)


def traits_of(protocol: str) -> Traits:
    """What the protocol registered under this name declares.

    Raises:
        UnknownName: no such protocol.
        BadValue: its class has no ``traits``.
    """
    return registry.require_declaration("protocols", protocol, "traits", Traits)

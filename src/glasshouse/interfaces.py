"""The interfaces of what acts on messages: training, defences, behaviours, recorders."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from torch import Tensor, nn

from glasshouse.rng import Rng
from glasshouse.wire import Aggregate, Batch, Broadcast, Crafted, Mechanism, Trained, Update

__all__ = [
    "Behaviour",
    "Defense",
    "GradientDefense",
    "LocalDefense",
    "Recorder",
    "Tamper",
    "Trainer",
    "UpdateDefense",
]


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


Tamper = Callable[[int], Crafted | None]
"""Asked before every round, with its number, what the malicious server sends instead."""

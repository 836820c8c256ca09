"""The recorder of a simulation: messages go to the transcript's log, ground truth is kept separately."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from glasshouse.audit.simulation.monitor import Accuracies, ModelMonitor
from glasshouse.transcript.record import Log
from glasshouse.truth.record import Used
from glasshouse.wire import Aggregate, Broadcast, Trained, Update


@final
@dataclass(kw_only=True)
class BothSides:
    """A :class:`glasshouse.interfaces.Recorder`.

    Args:
        log: receives the messages.
        rounds: whose step orders are recorded as ground truth; None: all.
        used: ground truth recorded so far, by (round, client).
        watch: measures every model of a logit protocol; None: not measured.
        accuracies: measures broadcast models; None: not measured.
    """

    log: Log
    rounds: frozenset[int] | None = None
    used: dict[tuple[int, int], Used] = field(default_factory=dict)
    watch: ModelMonitor | None = None
    accuracies: Accuracies | None = None

    def prepare(self, broadcast: Broadcast) -> None:
        """Pass the broadcast to the log."""
        self.log.prepare(broadcast)

    def broadcast(self, broadcast: Broadcast) -> None:
        """Record the broadcast; measure its accuracy if requested."""
        self.log.broadcast(broadcast)
        if self.accuracies is not None:
            self.accuracies.sent(broadcast)

    def update(self, update: Update) -> None:
        """Record the update."""
        self.log.update(update)

    def aggregate(self, aggregate: Aggregate) -> None:
        """Record the sum."""
        self.log.aggregate(aggregate)

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Record the server's own tensors; measure its model if requested."""
        self.log.own(round, tensors)
        if self.watch is not None:
            self.watch.server(round, tensors)

    def private(self, round: int, client: int, *, index: Tensor, trained: Trained, behaviour: str) -> None:
        """Record the ground truth, as rows of the private pool."""
        if self.rounds is None or round in self.rounds:
            steps = tuple(tuple(index[rows].tolist()) for rows in trained.order)
            self.used[round, client] = Used(steps=steps, behaviour=behaviour)
        if self.watch is not None:
            self.watch.client(round, client, trained)

"""Record a federation while it runs, and measure its models, with access to the ground truth.

Messages go to the transcript's log; ground truth is kept separately.

The models of clients in a logit protocol are never sent, so their accuracy cannot be computed from a
transcript afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from glasshouse.federation.setting import Setting
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.models.fit import predict, share_right
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task
from glasshouse.tensors import take_prefix
from glasshouse.transcript.record import Log
from glasshouse.truth.record import Used
from glasshouse.wire import CONTROL, Aggregate, Batch, Broadcast, Trained, Update

POINTS: Final = 12
"""Largest number of rounds in which the accuracy of the global model is measured, besides the end."""
SERVER: Final = -1
SHOWN: Final = 400
"""Largest number of entropies stored per histogram."""


@final
@dataclass(kw_only=True, eq=False)
class Accuracies:
    """Held-out accuracy of the models broadcast to all clients, in evenly spaced rounds.

    Args:
        setting: of the federation.
        heldout: the examples that accuracy is measured on.
        rounds: number of rounds of the federation.
        points: (round, accuracy) so far; models of another architecture than the agreed one are skipped.
    """

    setting: Setting
    heldout: Batch
    rounds: int
    points: list[tuple[int, float]] = field(default_factory=list)
    _known: dict[str, Tensor] = field(default_factory=dict)

    def sent(self, broadcast: Broadcast) -> None:
        """Measure one broadcast; tensors missing from it keep their previous values."""
        agreed = self.setting.terms.architecture
        if broadcast.client is not None or broadcast.architecture != agreed:
            return
        # Control variates travel beside the model and are no part of it.
        self._known |= {n: t for n, t in broadcast.tensors.items() if not n.startswith(CONTROL)}
        if broadcast.round % -(-self.rounds // POINTS):
            return
        model = self.setting.build(agreed)
        model.load_state_dict({**self.setting.start, **self._known})
        self.points.append((broadcast.round, float(share_right(model, self.heldout).mean())))


def utility_row(
    right: NDArray[np.float64], heldout: Batch, task: Task, images: NDArray[np.int64] | None = None
) -> dict[str, float]:
    """Utility with its interval, and ``chance``, that of the best constant answer; ``images``: the units."""
    chance = task.constant(heldout.labels, heldout.inputs)
    if task.shares:
        interval = share_interval(right, images)
    else:
        interval = mean_interval(right, rng=Rng.root(0, salt="utility"))
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {**ends, "n": len(heldout), "chance": chance}


@final
@dataclass(kw_only=True, eq=False)
class ModelMonitor:
    """Logit protocols: accuracy of every party per round, on classes that it knows, and its latest entropies.

    Args:
        setting: the federation.
        heldout: private-domain images of no client, or None.
        public: the public images with their true labels, which the protocol may not announce (dsfl); or None.
        right: per (round, party, dataset) 0 or 1 per image, filled during training.
        entropies: of the latest predictions, by party and dataset.
    """

    setting: Setting
    heldout: Batch | None
    public: Batch | None
    right: dict[tuple[int, int, str], NDArray[np.float64]] = field(default_factory=dict)
    entropies: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    def client(self, round: int, client: int, trained: Trained) -> None:
        """Measure a client's model after its private training."""
        self._look(round, client, trained.tensors, self.setting.shard(client))

    def server(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Measure the server's model, as recorded by the protocol."""
        if model := take_prefix(tensors, "model."):
            self._look(round, SERVER, model, self.setting.private)

    def _look(self, round: int, party: int, tensors: Mapping[str, Tensor], own: Batch) -> None:
        terms = self.setting.terms
        model = self.setting.build(self.setting.architectures.get(party, terms.architecture))
        model.load_state_dict(dict(tensors))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        sets = {"private": own, "held-out": self.heldout, "public": self.public}
        for name, data in sets.items():
            if data is None or not len(data):
                continue
            logits = predict(model, data.inputs)
            log = F.log_softmax(logits.double(), 1)
            self.entropies[party, name] = -(log.exp() * log).sum(1)
            # dsfl: the models know only the private classes
            labelled = data.labels < terms.architecture.classes
            right = logits.argmax(1)[labelled] == data.labels[labelled]
            if len(right):
                self.right[round, party, name] = right.double().numpy()

    def curve(self) -> list[dict[str, Any]]:
        """One row per round, kind of party and dataset: the mean accuracy of those parties."""
        rows: dict[tuple[int, str, str], list[float]] = {}
        for (number, party, name), right in self.right.items():
            who = "server" if party == SERVER else "clients"
            rows.setdefault((number, who, name), []).append(float(right.mean()))
        return [
            {"round": r, "who": w, "on": n, "accuracy": float(np.mean(v))}
            for (r, w, n), v in sorted(rows.items())
        ]

    def utility(self) -> dict[str, float] | None:
        """Held-out accuracy of the clients' last models, averaged over clients; images are the units."""
        if self.heldout is None or not self.right:
            return None
        last = max(number for number, _, _ in self.right)
        looks = [v for (r, p, n), v in self.right.items() if r == last and p != SERVER and n == "held-out"]
        images = np.tile(np.arange(len(self.heldout)), len(looks))
        task = self.setting.terms.architecture.task
        return utility_row(np.concatenate(looks), self.heldout, task, images)

    def histograms(self) -> dict[str, list[float]]:
        """Entropies in nats by "party on dataset", at most ``SHOWN`` of each."""
        by_party: dict[str, list[float]] = {}
        for (party, name), values in sorted(self.entropies.items()):
            who = "server" if party == SERVER else "clients"
            by_party.setdefault(f"{who} on {name} data", []).extend(values.tolist())
        return {name: _thinned(values) for name, values in by_party.items()}


def _thinned(values: list[float]) -> list[float]:
    keep = np.linspace(0, len(values) - 1, min(SHOWN, len(values))).astype(int)
    return [round(values[i], 5) for i in keep]


@final
@dataclass(kw_only=True)
class BothSides:
    """A :class:`glasshouse.interfaces.Recorder`.

    Args:
        log: receives the messages.
        rounds: whose step orders are recorded as ground truth; None: all.
        used: ground truth recorded so far, by (round, client).
        arrived: the clients of every round, in the order in which their updates came in.
        watch: measures every model of a logit protocol; None: not measured.
        accuracies: measures broadcast models; None: not measured.
    """

    log: Log
    rounds: frozenset[int] | None = None
    used: dict[tuple[int, int], Used] = field(default_factory=dict)
    arrived: dict[int, tuple[int, ...]] = field(default_factory=dict)
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
        """Record the update, and who sent it."""
        self.log.update(update)
        self.arrived[update.round] = (*self.arrived.get(update.round, ()), update.client)

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

"""Recording of a server's view of a federation, written to disk as it happens."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Final, final

from flwr.app import ArrayRecord, Message
from torch import Tensor, nn

from glasshouse.integrations.flower import records
from glasshouse.models.build import name_tensors
from glasshouse.outside import limits
from glasshouse.settings import covers
from glasshouse.store import write_json
from glasshouse.tensors import finite_fault
from glasshouse.transcript.files import TranscriptWriter
from glasshouse.transcript.record import Keep
from glasshouse.transcript.record import Message as WireMessage
from glasshouse.wire import Aggregate, Broadcast, ClientMetrics, Dropout, Stage, Terms, Update

NODES: Final = "nodes.json"
"""The file beside the transcript that maps nodes to clients."""
_LOG = logging.getLogger(__name__)


@final
@dataclass(kw_only=True)
class _Round:
    """State of a round in progress.

    Attributes:
        sent: arrays of the broadcast to all, for comparison with what each client is sent.
        asked: clients that received an instruction.
        missing: clients with no stored answer yet, with the error that they returned instead.
        secure: single updates are masked.
    """

    sent: list[bytes] | None = None
    asked: dict[int, None] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    secure: bool = False


@final
@dataclass(kw_only=True)
class Recording:
    """Converts Flower's messages to a transcript. Masked vectors are ignored.

    Args:
        folder: of the capture.
        terms: as declared; observable ones (clients, cohort, secure sums) are kept up to date.
        network: provides the names of tensors.
        keep: what to store.
        most_bytes: maximum size of stored tensors; nothing is recorded after that.
    """

    folder: Path
    terms: Terms
    network: nn.Module
    keep: Keep
    most_bytes: int
    _writer: TranscriptWriter = field(init=False)
    _full: bool = False
    _clients: dict[int, int] = field(default_factory=dict)
    _nodes: set[int] = field(default_factory=set)
    _rounds: dict[int, _Round] = field(default_factory=dict)
    _asked: dict[tuple[int, Stage], int] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._writer = TranscriptWriter(folder=self.folder / "transcript", durable=True)

    def available(self, nodes: Iterable[int]) -> None:
        """Record which nodes take part in the federation."""
        with self._lock:
            self._nodes |= set(nodes)

    def asked(self, messages: Iterable[Message]) -> None:
        """Record what the server sends: one broadcast to all, and one to each client sent something else."""
        with self._lock:
            for message in messages:
                stage, node = records.stage_of(message), message.metadata.dst_node_id
                if stage is None:
                    continue
                number = self._number_of(message, stage)
                self._asked[node, stage] = number
                if stage == "train":
                    self._broadcast(number, self._client(node), message)

    def answered(self, messages: Iterable[Message]) -> None:
        """Record the clients' replies."""
        with self._lock:
            for message in messages:
                node, stage = message.metadata.src_node_id, records.stage_of(message)
                if stage is not None and (number := self._asked.get((node, stage))) is not None:
                    self._answer(number, self._client(node), stage, message)

    def summed(self, number: int, examples: Mapping[int, int], mean: ArrayRecord) -> None:
        """Record the sum that secure aggregation reveals; does nothing for other rounds.

        Args:
            number: of the round, from 0.
            examples: number of examples of each node in the sum.
            mean: of their parameters, weighted by examples.
        """
        with self._lock:
            this = self._rounds.get(number)
            if this is None or not this.secure or not examples:
                return
            weight = float(sum(examples.values()))
            clients = [self._client(node) for node in examples]
            self._store(
                Aggregate(
                    round=number,
                    kind="parameters",
                    tensors={name: t.double() * weight for name, t in self._tensors(mean).items()},
                    weight=weight,
                    selected=tuple(sorted(this.asked)),
                    dropped=tuple(sorted(this.asked.keys() - set(clients))),
                    examples=int(weight),
                    steps=max(map(self._steps, examples.values())),
                )
            )

    def close(self) -> None:
        """Record the dropouts of the last round."""
        with self._lock:
            self._close_before(math.inf)

    def _number_of(self, message: Message, stage: Stage) -> int:
        """The round stated in the message; else the last one, or the next if the client was already asked."""
        stated = records.round_of(message)
        if stated is not None:
            return stated
        last = max(self._rounds, default=0)
        clients = self._rounds[last].asked if self._rounds else {}
        asked_again = stage == "train" and self._client(message.metadata.dst_node_id) in clients
        return last + 1 if asked_again else last

    def _client(self, node: int) -> int:
        if node not in self._clients:
            self._clients[node] = len(self._clients)
            self._nodes.add(node)
            write_json(self.folder / NODES, {str(n): c for n, c in self._clients.items()})
        return self._clients[node]

    def _tensors(self, record: ArrayRecord) -> dict[str, Tensor]:
        return name_tensors(records.tensors_of(record), self.network, apart=self._apart)

    @property
    def _apart(self) -> tuple[str, ...]:
        """Patterns of the names of what does not travel."""
        return (*self.terms.training.personal, *self.terms.training.fixed)

    def _steps(self, examples: int) -> int:
        return self.terms.local_epochs * max(1, math.ceil(examples / self.terms.batch_size))

    def _broadcast(self, number: int, client: int, message: Message) -> None:
        self._close_before(number)
        this = self._rounds.setdefault(number, _Round())
        this.secure = this.secure or records.is_secure(message)
        if client not in this.asked:
            this.asked[client], this.missing[client] = None, ""
        self._update_terms(this)
        arrays = records.arrays_of(message.content)
        if arrays is None:
            return
        raw = [array.data for array in arrays.values()]
        if raw == this.sent:
            return
        start = {n: t for n, t in self.network.state_dict().items() if covers(self._apart, n)}
        tensors = {**start, **self._tensors(arrays)}  # what does not travel is known as it started
        addressed = None if this.sent is None else client
        this.sent = this.sent or raw
        architecture = self.terms.architecture
        self._store(Broadcast(round=number, architecture=architecture, tensors=tensors, client=addressed))

    def _answer(self, number: int, client: int, stage: Stage, message: Message) -> None:
        this = self._rounds.get(number)
        if message.has_error():
            if stage == "train" and this is not None and client in this.missing:
                reason = message.error.reason or f"error {message.error.code}"
                this.missing[client] = reason[: limits.TEXT]
            return
        values = records.values_of(message.content)
        if values:
            self._store(ClientMetrics(round=number, client=client, stage=stage, values=values))
        if stage == "evaluate" or this is None:
            return
        arrays, examples = records.arrays_of(message.content), records.examples_of(values)
        if arrays is not None and not this.secure:
            tensors = self._tensors(arrays)
            if reason := finite_fault(tensors):  # like a dropout: the others' updates are still audited
                this.missing[client] = f"sent an update that is not finite: {reason}"[: limits.TEXT]
                _LOG.warning("capture: client %d, round %d, %s", client, number, this.missing[client])
                return
            trained, fixed = dict(self.network.named_parameters()), self.terms.training.fixed
            self._store(
                Update(
                    round=number,
                    client=client,
                    kind="parameters",
                    tensors={n: t for n, t in tensors.items() if n in trained and not covers(fixed, n)},
                    examples=examples,
                    steps=self._steps(examples),
                    buffers={name: t for name, t in tensors.items() if name not in trained},
                )
            )
        if arrays is not None or values:
            this.missing.pop(client, None)

    def _close_before(self, number: float) -> None:
        for open_ in [n for n in self._rounds if n < number]:
            this = self._rounds[open_]
            for client, reason in this.missing.items():
                self._store(Dropout(round=open_, client=client, reason=reason))
            this.missing.clear()
            this.sent = None  # frees memory of the model's size

    def _update_terms(self, this: _Round) -> None:
        """Rewrite the terms if the observed ones have changed."""
        terms = replace(
            self.terms,
            clients=max(self.terms.clients, len(self._nodes)),
            cohort=max(self.terms.cohort, len(this.asked)),
            secure_sum=self.terms.secure_sum or this.secure,
        )
        if vars(terms) != vars(self.terms) or not self._writer.written:
            self.terms = terms
            self._writer.terms(terms)

    def _store(self, message: WireMessage) -> None:
        stored = None if self._full else self.keep.cut(message)
        if stored is not None:
            self._writer.append(stored)
        if not self._full and self._writer.written >= self.most_bytes:
            self._full = True
            _LOG.warning("capture: %d bytes are stored, nothing more is recorded", self._writer.written)

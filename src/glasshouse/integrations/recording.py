"""Recording of a server's view of a federation, written to disk as it happens.

No framework is known here: an adapter turns its messages into :class:`Instruction` and :class:`Reply`.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Final, final

from torch import Tensor, nn

from glasshouse.audit.captured.origins import ASSUMED, with_values
from glasshouse.audit.captured.origins import NAME as ORIGINS
from glasshouse.errors import BadValue
from glasshouse.integrations.layout import Layout
from glasshouse.models.build import name_tensors
from glasshouse.outside import limits
from glasshouse.settings import covers
from glasshouse.store import write_json
from glasshouse.tensors import finite_fault
from glasshouse.transcript.files import TranscriptWriter
from glasshouse.transcript.record import Keep
from glasshouse.transcript.record import Message as WireMessage
from glasshouse.wire import Aggregate, Broadcast, ClientMetrics, Dropout, Kind, Stage, Terms, Update, Value

NODES: Final = "nodes.json"
"""The file beside the transcript that maps nodes to clients."""
_LOG = logging.getLogger(__name__)
_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "batch_size": ("batch-size",),
    "local_epochs": ("local-epochs", "epochs", "num-epochs"),
    "learning_rate": ("learning-rate", "lr"),
    "optimizer.name": ("optimizer",),
    "optimizer.momentum": ("momentum",),
    "optimizer.weight_decay": ("weight-decay",),
    "training.proximal": ("proximal-mu",),
}
"""Terms, and the names under which apps configure them; also with underscores."""

Node = int | str
"""A client as its framework names it."""
Load = Callable[[], Mapping[str, Tensor]]
"""Reads a message's tensors, by the framework's names or numbers; called only if they are stored."""


def terms_in(config: Mapping[str, object], where: str) -> dict[str, tuple[Value, str]]:
    """Terms that a configuration states, by dotted key: the value, and in words where it stands.

    Examples:
        >>> terms_in({"lr": 0.01, "batch_size": 8, "epochs": "many"}, "message")
        {'batch_size': (8, "message, 'batch_size'"), 'learning_rate': (0.01, "message, 'lr'")}
    """
    found: dict[str, tuple[Value, str]] = {}
    for key, names in _SETTINGS.items():
        for name in (form for dashed in names for form in (dashed, dashed.replace("-", "_"))):
            value = _as_term(key, config.get(name))
            if value is not None and key not in found:
                found[key] = value, f"{where}, '{name}'"
    return found


def _as_term(key: str, value: object) -> Value | None:
    """A configured value as its term has it; None: it is none."""
    if isinstance(value, bool):
        return None
    if key == "optimizer.name":
        return value.lower() if isinstance(value, str) and value.lower() in ("sgd", "adam", "adamw") else None
    if key in ("batch_size", "local_epochs"):
        return value if isinstance(value, int) and value >= 1 else None
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    fits = value > 0 if key == "learning_rate" else value < 1 if key == "optimizer.momentum" else True
    return float(value) if fits else None


@final
@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What a server sends to one client.

    Attributes:
        node: the client.
        stage: what it is asked to do.
        round: from 0, as stated; None: not stated.
        load: of the model; None: the message has none.
        content: equal for two messages with equal tensors; compared so that a broadcast is stored once.
        secure: the answers will be masked.
        config: settings that the server sends beside the model.
    """

    node: Node
    stage: Stage
    round: int | None
    load: Load | None = None
    content: object = None
    secure: bool = False
    config: Mapping[str, Value] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a client answers.

    Attributes:
        node: the client.
        stage: what it was asked to do.
        values: numbers and texts beside the tensors.
        load: of the tensors; None: there are none.
        kind: what they are: new ``parameters``, or their change (``delta``).
        examples: number behind the update; 0: not stated.
        steps: local steps behind the update; None: computed from terms and examples.
        error: the reason in place of an answer; None: it is an answer.
    """

    node: Node
    stage: Stage
    values: Mapping[str, Value] = field(default_factory=dict)
    load: Load | None = None
    kind: Kind = "parameters"
    examples: int = 0
    steps: int | None = None
    error: str | None = None


@final
@dataclass(kw_only=True)
class _Round:
    """State of a round in progress.

    Attributes:
        sent: content of the broadcast to all, for comparison with what each client is sent.
        buffers: of the broadcast to all: the untrained tensors, to which changes are added.
        stored: tensors of the broadcast to all and of those to single clients, read from the disk.
        asked: clients that received an instruction.
        missing: clients with no stored answer yet, with the error that they returned instead.
        secure: single updates are masked.
    """

    sent: object = None
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    stored: dict[int | None, Mapping[str, Tensor]] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    secure: bool = False


@final
@dataclass(kw_only=True)
class Recording:
    """Writes instructions and replies to a transcript. Masked vectors are ignored.

    Args:
        folder: of the capture.
        terms: as declared; observable ones (clients, cohort, secure sums) are kept up to date.
        origins: where each term about local training comes from; assumed ones are read from messages.
        network: provides the names of tensors.
        keep: what to store.
        most_bytes: maximum size of stored tensors; a message that would exceed it ends the recording,
            unless it is the first.
        carrying: the stages whose messages hold the model and the updates.
        layout: of arrays of another framework; None: they are torch's.
    """

    folder: Path
    terms: Terms
    origins: dict[str, str]
    network: nn.Module
    keep: Keep
    most_bytes: int
    carrying: frozenset[Stage] = frozenset({"train"})
    layout: Layout | None = None
    _writer: TranscriptWriter = field(init=False)
    _full: bool = False
    _shift: int = 0
    _sent: bool = False
    _clients: dict[Node, int] = field(default_factory=dict)
    _nodes: set[Node] = field(default_factory=set)
    _rounds: dict[int, _Round] = field(default_factory=dict)
    _asked: dict[tuple[Node, Stage], int] = field(default_factory=dict)
    _usual: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._writer = TranscriptWriter(folder=self.folder / "transcript", durable=True, keep=self.keep)

    def available(self, nodes: Iterable[Node]) -> None:
        """Record which nodes take part in the federation."""
        with self._lock:
            self._nodes |= set(nodes)

    def asked(self, instructions: Iterable[Instruction]) -> None:
        """Record what the server sends: one broadcast to all, and one to each client sent something else."""
        with self._lock:
            for one in instructions:
                number = self._number_of(one)
                self._asked[one.node, one.stage] = number
                if one.stage in self.carrying:
                    self._read(one.config)
                    self._broadcast(number, self._client(one.node), one)

    def answered(self, replies: Iterable[Reply]) -> None:
        """Record the clients' replies."""
        with self._lock:
            replies = list(replies)
            self._usual |= self._names_of_most(replies)
            for reply in replies:
                if (number := self._asked.get((reply.node, reply.stage))) is not None:
                    self._answer(number, self._client(reply.node), reply)

    def _names_of_most(self, replies: Sequence[Reply]) -> set[str]:
        """Names that more than half of the first replies carry: who is heard first may be the broken one."""
        if self._usual or self.terms.secure_sum:
            return set()
        loads = [reply.load for reply in replies if reply.load is not None and reply.stage in self.carrying]
        counts = Counter(name for load in loads for name in self._known(load()))
        return {name for name, count in counts.items() if 2 * count > len(loads)}

    def _known(self, sent: Mapping[str, Tensor]) -> Iterable[str]:
        try:
            return self._named(sent)
        except BadValue:  # of another model
            return ()

    def summed(self, number: int, examples: Mapping[Node, int], mean: Mapping[str, Tensor]) -> None:
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
            # The server sees a weighted mean; the transcript holds sums, from which it follows.
            weight = float(sum(examples.values()))
            clients = [self._client(node) for node in examples]
            self._store(
                Aggregate(
                    round=number,
                    kind="parameters",
                    tensors={name: t.double() * weight for name, t in self._named(mean).items()},
                    weight=weight,
                    selected=tuple(sorted(this.asked)),
                    dropped=tuple(sorted(this.asked.keys() - set(clients))),
                    examples=int(weight),
                    steps=max(map(self._steps, examples.values())),
                )
            )

    def close(self) -> None:
        """Record the dropouts of the last round, and say what was assumed."""
        with self._lock:
            self._close_before(math.inf)
        if assumed := [key for key, origin in self.origins.items() if origin == ASSUMED]:
            _LOG.warning(
                "capture: assumed: %s; a test client shows what is right, or: glasshouse terms %s --set ...",
                ", ".join(assumed), self.folder,
            )  # fmt: skip

    def _read(self, config: Mapping[str, Value]) -> None:
        """Take terms that were assumed so far from what the server sends."""
        if self.terms.sends == "document":
            return
        read = {k: one for k, one in terms_in(config, "message").items() if self._open(k)}
        if read:
            self.terms = with_values(self.terms, {key: value for key, (value, _) in read.items()})
            self.origins |= {key: origin for key, (_, origin) in read.items()}
            if self._writer.written:
                self._write_terms()

    def _open(self, key: str) -> bool:
        return self.origins.get(key, ASSUMED) == ASSUMED

    def _number_of(self, one: Instruction) -> int:
        """The round stated in the message; else the last one, or the next if the client was already asked."""
        if one.round is not None:
            here, client = self._rounds.get(one.round + self._shift), self._client(one.node)
            done = here is not None and client in here.asked and client not in here.missing
            if done and one.stage in self.carrying and self.terms.sends == "document" and not self._shift:
                self._shift = 1  # this app's rounds count from 0, not from 1
            return one.round + self._shift
        last = max(self._rounds, default=0)
        clients = self._rounds[last].asked if self._rounds else {}
        asked_again = one.stage in self.carrying and self._client(one.node) in clients
        return last + 1 if asked_again else last

    def _client(self, node: Node) -> int:
        if node not in self._clients:
            self._clients[node] = len(self._clients)
            self._nodes.add(node)
            write_json(self.folder / NODES, {str(n): c for n, c in self._clients.items()})
        return self._clients[node]

    def _named(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sent = tensors if self.layout is None else self.layout(tensors)
        return name_tensors(sent, self.network, apart=self._apart)

    @property
    def _apart(self) -> tuple[str, ...]:
        """Patterns of the names of what does not travel."""
        return (*self.terms.training.personal, *self.terms.training.fixed)

    def _steps(self, examples: int) -> int:
        return max(1, self.terms.steps(examples))

    def _broadcast(self, number: int, client: int, one: Instruction) -> None:
        self._close_before(number)
        this = self._rounds.setdefault(number, _Round())
        this.secure = this.secure or one.secure
        if client not in this.asked:
            this.asked[client], this.missing[client] = None, ""
        self._update_terms(this)
        if one.load is None or (this.sent is not None and one.content == this.sent):
            return
        tensors = self._named(one.load())
        if not self._sent:  # what does not travel is known as it started: stored once
            tensors = {**self._resting(), **tensors}
        addressed = None if this.sent is None else client
        if addressed is None:
            trained = dict(self.network.named_parameters())
            this.sent = one.content
            this.buffers = {name: t for name, t in tensors.items() if name not in trained}
        architecture = self.terms.architecture
        sent = Broadcast(round=number, architecture=architecture, tensors=tensors, client=addressed)
        if isinstance(stored := self._store(sent, partial=self._sent), Broadcast):
            self._sent = True
            this.stored[addressed] = stored.tensors

    def _resting(self) -> dict[str, Tensor]:
        return {n: t for n, t in self.network.state_dict().items() if covers(self._apart, n)}

    def _answer(self, number: int, client: int, reply: Reply) -> None:
        this = self._rounds.get(number)
        if reply.error is not None:
            if reply.stage in self.carrying and this is not None and client in this.missing:
                this.missing[client] = reply.error[: limits.TEXT]
            return
        if reply.values:
            stage, values = reply.stage, reply.values
            self._store(ClientMetrics(round=number, client=client, stage=stage, values=values))
        if reply.stage not in self.carrying or this is None:
            return
        if reply.load is not None and not this.secure:
            tensors, fault = self._received(reply.load())
            if fault:  # like a dropout: the others' updates are still audited
                this.missing[client] = fault[: limits.TEXT]
                _LOG.warning("capture: client %d, round %d, %s", client, number, this.missing[client])
                return
            self._update(number, client, reply, tensors, this)
        if reply.load is not None or reply.values:
            this.missing.pop(client, None)

    def _received(self, sent: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], str]:
        """What a client sent, by the model's names, and what is wrong with it; empty: nothing."""
        try:
            tensors = self._named(sent)
        except BadValue as error:
            return {}, f"sent an update of another model: {error.got}"
        if reason := finite_fault(tensors):
            return {}, f"sent an update that is not finite: {reason}"
        if lacking := sorted(self._usual - tensors.keys()):
            return (
                {},
                f"sent a part of what the others do: '{lacking[0]}' and {len(lacking) - 1} more are missing",
            )
        self._usual |= tensors.keys()
        return tensors, ""

    def _update(
        self, number: int, client: int, reply: Reply, tensors: Mapping[str, Tensor], this: _Round
    ) -> None:
        """Store an update; a change of buffers is stored as the buffers after it."""
        trained, fixed = dict(self.network.named_parameters()), self.terms.training.fixed
        buffers = {name: t for name, t in tensors.items() if name not in trained}
        if reply.kind == "delta":
            buffers = {name: this.buffers[name] + t for name, t in buffers.items() if name in this.buffers}
        if reply.kind == "document":  # a buffer of the model that carries it, which no client trains
            buffers = {}
        kind: Kind = reply.kind
        if kind == "parameters" and self.keep.deltas and this.stored:
            kind = "delta"
        if kind != self.terms.sends:
            self.terms = replace(self.terms, sends=kind)
            self._writer.terms(self.terms)
        self._store(
            Update(
                round=number,
                client=client,
                kind=reply.kind,
                tensors={
                    n: t
                    for n, t in tensors.items()
                    if reply.kind == "document" or (n in trained and not covers(fixed, n))
                },
                examples=reply.examples,
                steps=self._steps(reply.examples) if reply.steps is None else reply.steps,
                buffers=buffers,
            ),
            this.stored.get(client, this.stored.get(None)),
        )

    def _close_before(self, number: float) -> None:
        for open_ in [n for n in self._rounds if n < number]:
            this = self._rounds[open_]
            for client, reason in this.missing.items():
                self._store(Dropout(round=open_, client=client, reason=reason))
            this.missing.clear()
            this.sent, this.buffers, this.stored = None, {}, {}  # frees memory of the model's size

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
            self._write_terms()

    def _write_terms(self) -> None:
        self._writer.terms(self.terms)
        write_json(self.folder / ORIGINS, self.origins)

    def _store(
        self, message: WireMessage, received: Mapping[str, Tensor] | None = None, *, partial: bool = False
    ) -> WireMessage | None:
        """Write what is kept of a message; return it as it is read from the disk. None: nothing was kept."""
        kept = None if self._full else self.keep.cut(message, received)
        if kept is None:
            return None
        size = (
            0 if isinstance(kept, ClientMetrics | Dropout) else sum(t.nbytes for t in kept.tensors.values())
        )
        if self._writer.written and self._writer.written + size > self.most_bytes:
            self._full = True
            _LOG.warning(
                "capture: %d bytes are stored, and nothing more is recorded: most_bytes, or %s, allows %d",
                self._writer.written, limits.CAPTURE, self.most_bytes,
            )  # fmt: skip
            return None
        return self._writer.append(kept, partial=partial)

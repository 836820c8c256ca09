"""Everything on the wire, in memory, and the policy of what is kept of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from glasshouse.wire import Aggregate, Broadcast, ClientMetrics, Dropout, Terms, Update

Message = Broadcast | Update | Aggregate | ClientMetrics | Dropout


@final
@dataclass(frozen=True, kw_only=True)
class Keep:
    """What a transcript stores. Broadcasts and sums of every round are small; updates are not.

    Attributes:
        updates: rounds whose single updates are kept; None: all.
        broadcasts: rounds whose broadcasts are kept; None: all. Kept broadcasts are completed with the
            last value of every name, so that each can be read alone.
        clients: clients whose single updates are kept; None: all.
        tensors: what the names of an update's tensors that are kept start with; an empty text: all.
    """

    updates: frozenset[int] | None = None
    broadcasts: frozenset[int] | None = None
    clients: frozenset[int] | None = None
    tensors: tuple[str, ...] = ("",)

    def cut(self, message: Message) -> Message | None:
        """What is stored of ``message``; None: nothing. Sums, metrics and dropouts always are."""
        if isinstance(message, Broadcast):
            return message if self.broadcasts is None or message.round in self.broadcasts else None
        if not isinstance(message, Update):
            return message
        if (self.updates is not None and message.round not in self.updates) or (
            self.clients is not None and message.client not in self.clients
        ):
            return None
        if self.tensors == ("",):
            return message
        tensors = {n: t for n, t in message.tensors.items() if n.startswith(self.tensors)}
        return replace(message, tensors=tensors, buffers={})


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RoundRecord:
    """One round on the wire: broadcasts (to everybody, and addressed ones), updates or their sum.

    Attributes:
        round: from 0.
        broadcasts: to everybody, and addressed ones.
        updates: of single clients.
        aggregate: their sum, where the server sees no more.
        metrics: what clients sent in clear beside them.
        dropouts: clients that were asked and sent no update.
    """

    round: int
    broadcasts: tuple[Broadcast, ...] = ()
    updates: tuple[Update, ...] = ()
    aggregate: Aggregate | None = None
    metrics: tuple[ClientMetrics, ...] = ()
    dropouts: tuple[Dropout, ...] = ()

    def with_message(self, message: Message) -> "RoundRecord":
        """The same with one message more; a second sum replaces the first."""
        match message:
            case Broadcast():
                return replace(self, broadcasts=(*self.broadcasts, message))
            case Update():
                return replace(self, updates=(*self.updates, message))
            case Aggregate():
                return replace(self, aggregate=message)
            case ClientMetrics():
                return replace(self, metrics=(*self.metrics, message))
            case Dropout():
                return replace(self, dropouts=(*self.dropouts, message))

    def received_by(self, client: int | None) -> Broadcast | None:
        """What ``client`` (None: whoever was not addressed) trained on; None where that was not kept."""
        by_client = {b.client: b for b in self.broadcasts}
        return by_client.get(client, by_client.get(None))

    def messages(self) -> tuple[Message, ...]:
        """All messages, kind by kind."""
        sums = () if self.aggregate is None else (self.aggregate,)
        return (*self.broadcasts, *self.updates, *sums, *self.metrics, *self.dropouts)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """Terms and rounds, in order; what may be handed to a stranger."""

    terms: Terms
    rounds: tuple[RoundRecord, ...]


@final
@dataclass(kw_only=True)
class Sent:
    """The last value of every name that was sent so far, to everybody and to single clients."""

    _last: dict[int | None, dict[str, Tensor]] = field(default_factory=dict)

    def complete(self, broadcast: Broadcast) -> Broadcast:
        """``broadcast`` with the last value of every name that it leaves out; it is the last from now on."""
        tensors = {**self._last.get(None, {}), **self._last.get(broadcast.client, {}), **broadcast.tensors}
        self._last[broadcast.client] = tensors
        return replace(broadcast, tensors=tensors)


def complete_broadcasts(rounds: Iterable[RoundRecord]) -> Iterator[RoundRecord]:
    """``rounds``, in order, with broadcasts that can each be read alone."""
    sent = Sent()
    for one in rounds:
        yield replace(one, broadcasts=tuple(sent.complete(b) for b in one.broadcasts))


@final
@dataclass(kw_only=True)
class Log:
    """Collects what happens into a transcript and the server's own tensors, under a keep policy.

    Args:
        terms: of the federation.
        keep: what to store.
        rounds: what was filed so far.
        servers: what was filed so far.
        pending: what was filed so far.
    """

    terms: Terms
    keep: Keep = field(default_factory=Keep)
    rounds: dict[int, RoundRecord] = field(default_factory=dict)
    servers: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    pending: Broadcast | None = None
    _sent: Sent = field(default_factory=Sent)
    _honest: dict[str, Tensor] = field(default_factory=dict)

    def broadcast(self, broadcast: Broadcast) -> None:
        """Complete the broadcast with what was sent before, and file it."""
        self._file(self._sent.complete(broadcast))

    def update(self, update: Update) -> None:
        """File one client's update."""
        self._file(update)

    def aggregate(self, aggregate: Aggregate) -> None:
        """File a round's sum."""
        self._file(aggregate)

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """File what only the server has."""
        self.servers[round] = dict(tensors)

    def prepare(self, broadcast: Broadcast) -> None:
        """Remember the broadcast that a tamper may replace, completed with the last value of every name."""
        self._honest |= broadcast.tensors
        self.pending = replace(broadcast, tensors=dict(self._honest))

    def transcript(self) -> Transcript:
        """What was kept, in order of rounds."""
        return Transcript(terms=self.terms, rounds=tuple(self.rounds[r] for r in sorted(self.rounds)))

    def _file(self, message: Message) -> None:
        if (stored := self.keep.cut(message)) is not None:
            record = self.rounds.get(stored.round, RoundRecord(round=stored.round))
            self.rounds[stored.round] = record.with_message(stored)

"""All messages of a federation in memory, and the policy for which of them are recorded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

from torch import Tensor

from glasshouse.tensors import derive
from glasshouse.wire import CONTROL, Aggregate, Broadcast, ClientMetrics, Dropout, Terms, Update

Message = Broadcast | Update | Aggregate | ClientMetrics | Dropout


@final
@dataclass(frozen=True, kw_only=True)
class Keep:
    """What a transcript stores. Broadcasts and sums of every round are small; updates are not.

    Attributes:
        updates: rounds whose single updates are stored; None: all.
        broadcasts: rounds whose broadcasts are stored; None: all. A stored broadcast is completed with the
            last value of every tensor, so that it can be read alone.
        clients: clients whose single updates are stored; None: all.
        tensors: prefixes of the names of an update's tensors that are stored; an empty string: all.
        deltas: updates that are new parameters are stored as their change, where the broadcast is known.
        rounded: floating-point type in which float32 tensors of updates are stored, in half the space;
            empty: as they are. An attack then sees what rounding left.
        base: a safetensors file of a frozen base model, which a first broadcast that holds all its tensors
            names by its hash instead of storing them; None: there is none.
    """

    updates: frozenset[int] | None = None
    broadcasts: frozenset[int] | None = None
    clients: frozenset[int] | None = None
    tensors: tuple[str, ...] = ("",)
    deltas: bool = False
    rounded: Literal["", "float16", "bfloat16"] = ""
    base: Path | None = None

    def cut(self, message: Message, received: Mapping[str, Tensor] | None = None) -> Message | None:
        """The part of ``message`` to store; None: nothing. Sums, metrics and dropouts are always stored.

        Args:
            message: as it was sent.
            received: the tensors that the client of an update trained on; None: not known.
        """
        if isinstance(message, Broadcast):
            return message if self.broadcasts is None or message.round in self.broadcasts else None
        if not isinstance(message, Update):
            return message
        if (self.updates is not None and message.round not in self.updates) or (
            self.clients is not None and message.client not in self.clients
        ):
            return None
        if self.tensors != ("",):
            kept = derive(message.tensors, lambda _, t: t, keep=lambda name: name.startswith(self.tensors))
            message = replace(message, tensors=kept, buffers={})
        if self.deltas and message.kind == "parameters" and received is not None:
            change = derive(message.tensors, lambda name, t: t - received[name].to(t.dtype))
            message = replace(message, kind="delta", tensors=change)
        return message


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RoundRecord:
    """The messages of one round: broadcasts (to everybody, and addressed ones), updates or their sum.

    Attributes:
        round: from 0.
        broadcasts: to everybody, and addressed ones.
        updates: of single clients.
        aggregate: their sum, under ``secure_sum``.
        metrics: sent by clients in clear beside the updates.
        dropouts: clients that were asked and sent no update.
    """

    round: int
    broadcasts: tuple[Broadcast, ...] = ()
    updates: tuple[Update, ...] = ()
    aggregate: Aggregate | None = None
    metrics: tuple[ClientMetrics, ...] = ()
    dropouts: tuple[Dropout, ...] = ()

    @classmethod
    def of(cls, number: int, messages: Iterable[Message]) -> "RoundRecord":
        """The record of round ``number`` with these messages, in their order; of several sums the last."""
        kinds: dict[type[Message], list[Any]] = {}
        for message in messages:
            kinds.setdefault(type(message), []).append(message)
        return cls(
            round=number,
            broadcasts=tuple(kinds.get(Broadcast, ())),
            updates=tuple(kinds.get(Update, ())),
            aggregate=kinds[Aggregate][-1] if Aggregate in kinds else None,
            metrics=tuple(kinds.get(ClientMetrics, ())),
            dropouts=tuple(kinds.get(Dropout, ())),
        )

    def received_by(self, client: int | None) -> Broadcast | None:
        """The broadcast that ``client`` (None: any that was not addressed) trained on; None if not stored."""
        by_client = {b.client: b for b in self.broadcasts}
        return by_client.get(client, by_client.get(None))

    def messages(self) -> tuple[Message, ...]:
        """All messages, kind by kind."""
        sums = () if self.aggregate is None else (self.aggregate,)
        return (*self.broadcasts, *self.updates, *sums, *self.metrics, *self.dropouts)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """Terms and rounds, in order; contains nothing private and may be shared."""

    terms: Terms
    rounds: tuple[RoundRecord, ...]


@final
@dataclass(kw_only=True)
class Sent:
    """The last value of every tensor sent so far, to everybody and to single clients."""

    _last: dict[int | None, dict[str, Tensor]] = field(default_factory=dict)

    def complete(self, broadcast: Broadcast) -> Broadcast:
        """Fill ``broadcast`` with the last value of every missing tensor, and remember the result."""
        tensors = {**self._last.get(None, {}), **self._last.get(broadcast.client, {}), **broadcast.tensors}
        self._last[broadcast.client] = tensors
        return replace(broadcast, tensors=tensors)


def complete_broadcasts(rounds: Iterable[RoundRecord]) -> Iterator[RoundRecord]:
    """Yield ``rounds``, in order, with complete broadcasts, each of which can be read alone."""
    sent = Sent()
    for one in rounds:
        yield replace(one, broadcasts=tuple(sent.complete(b) for b in one.broadcasts))


@final
@dataclass(kw_only=True)
class Log:
    """Records messages into a transcript and the server's own tensors, under a keep policy.

    Args:
        terms: of the federation.
        keep: what to store.
        store: writes what is kept of a message to the disk, and returns it as it is read from there; None:
            messages stay in memory.
        servers: the server's own tensors recorded so far, by round.
        pending: the last broadcast that was prepared.
    """

    terms: Terms
    keep: Keep = field(default_factory=Keep)
    store: Callable[[Message], Message] | None = None
    servers: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    pending: Broadcast | None = None
    _messages: dict[int, list[Message]] = field(default_factory=dict)
    _records: dict[int, RoundRecord] = field(default_factory=dict)
    _sent: Sent = field(default_factory=Sent)
    _honest: dict[str, Tensor] = field(default_factory=dict)

    def broadcast(self, broadcast: Broadcast) -> None:
        """Complete the broadcast with the tensors sent before, and record it."""
        self.record(self._sent.complete(broadcast))

    def update(self, update: Update) -> None:
        """Record one client's update."""
        self.record(update)

    def aggregate(self, aggregate: Aggregate) -> None:
        """Record a round's sum."""
        self.record(aggregate)

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Record tensors that only the server has; control variates only where updates are kept."""
        kept = self.keep.updates is None or round in self.keep.updates
        self.servers[round] = {n: t for n, t in tensors.items() if kept or not n.startswith(CONTROL)}

    def prepare(self, broadcast: Broadcast) -> None:
        """Remember the broadcast that a tamper may replace, completed with the last value of every tensor."""
        self._honest |= broadcast.tensors
        self.pending = replace(broadcast, tensors=dict(self._honest))

    def transcript(self) -> Transcript:
        """The recorded transcript, in order of rounds."""
        for number in self._messages.keys() - self._records.keys():
            self._records[number] = RoundRecord.of(number, self._messages[number])
        return Transcript(terms=self.terms, rounds=tuple(self._records[r] for r in sorted(self._records)))

    def record(self, message: Message) -> None:
        """Record what the keep policy leaves of a message, as it is."""
        if (stored := self.keep.cut(message)) is not None:
            kept = stored if self.store is None else self.store(stored)
            self._messages.setdefault(kept.round, []).append(kept)
            self._records.pop(stored.round, None)  # no longer complete

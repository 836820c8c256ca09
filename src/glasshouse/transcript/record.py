"""Everything on the wire, in memory, and the policy of what is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from glasshouse.wire import Aggregate, Broadcast, Terms, Update


@final
@dataclass(frozen=True, kw_only=True)
class Keep:
    """What a transcript stores. Broadcasts and sums of every round are small; updates are not.

    Attributes:
        updates: rounds whose single updates are kept; None: all.
        broadcasts: rounds whose broadcasts are kept; None: all. Kept broadcasts are completed with the
            last value of every name, so that each can be read alone.
        clients: clients whose single updates are kept; None: all.
    """

    updates: frozenset[int] | None = None
    broadcasts: frozenset[int] | None = None
    clients: frozenset[int] | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RoundRecord:
    """One round on the wire: broadcasts (to everybody, and addressed ones), updates or their sum."""

    round: int
    broadcasts: tuple[Broadcast, ...]
    updates: tuple[Update, ...] = ()
    aggregate: Aggregate | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """Terms and rounds, in order; what may be handed to a stranger."""

    terms: Terms
    rounds: tuple[RoundRecord, ...]


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
    _sent: dict[int | None, dict[str, Tensor]] = field(default_factory=dict)
    _honest: dict[str, Tensor] = field(default_factory=dict)

    def broadcast(self, broadcast: Broadcast) -> None:
        """Complete the broadcast with what was sent before, and file it."""
        known = {**self._sent.get(None, {}), **self._sent.get(broadcast.client, {}), **broadcast.tensors}
        self._sent[broadcast.client] = known
        if self.keep.broadcasts is None or broadcast.round in self.keep.broadcasts:
            whole = Broadcast(
                round=broadcast.round,
                architecture=broadcast.architecture,
                tensors=known,
                client=broadcast.client,
            )
            record = self._round(broadcast.round)
            self._file(record, broadcasts=(*record.broadcasts, whole))

    def update(self, update: Update) -> None:
        """File one client's update."""
        rounds, clients = self.keep.updates, self.keep.clients
        if (rounds is None or update.round in rounds) and (clients is None or update.client in clients):
            record = self._round(update.round)
            self._file(record, updates=(*record.updates, update))

    def aggregate(self, aggregate: Aggregate) -> None:
        """File a round's sum."""
        self._file(self._round(aggregate.round), aggregate=aggregate)

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

    def _round(self, number: int) -> RoundRecord:
        return self.rounds.get(number, RoundRecord(round=number, broadcasts=()))

    def _file(
        self,
        record: RoundRecord,
        *,
        broadcasts: tuple[Broadcast, ...] | None = None,
        updates: tuple[Update, ...] | None = None,
        aggregate: Aggregate | None = None,
    ) -> None:
        self.rounds[record.round] = RoundRecord(
            round=record.round,
            broadcasts=record.broadcasts if broadcasts is None else broadcasts,
            updates=record.updates if updates is None else updates,
            aggregate=aggregate or record.aggregate,
        )

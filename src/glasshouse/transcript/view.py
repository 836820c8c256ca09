"""The part of a transcript that one adversary sees: the only input of an attack.

A view carries no seed, no path, no scenario name, and no defence unless that is granted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from glasshouse.errors import Inapplicable
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Aggregate, Broadcast, ClientMetrics, Dropout, Terms, Update

__all__ = ["RoundView", "View"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RoundView:
    """One round as the adversary saw it. Parameters that were sent are shown as what changed, kind ``delta``.

    Attributes:
        round: from 0.
        broadcast: what went to everybody, completed with the last value of every name sent before.
        addressed: what went to single clients instead, by id, completed likewise.
        updates: by client; empty under ``secure_sum`` or when the adversary does not see them.
        aggregate: under ``secure_sum``, else None.
        metrics: what clients sent in clear beside the tensors; empty where the adversary receives nothing.
        dropouts: clients that were asked and sent no update; likewise.
    """

    round: int
    broadcast: Broadcast
    addressed: Mapping[int, Broadcast] = field(default_factory=dict)
    updates: Mapping[int, Update] = field(default_factory=dict)
    aggregate: Aggregate | None = None
    metrics: tuple[ClientMetrics, ...] = ()
    dropouts: tuple[Dropout, ...] = ()

    def received_by(self, client: int) -> Broadcast:
        """The broadcast that ``client`` trained on."""
        return self.addressed.get(client, self.broadcast)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Transcript + own + grants, cut to one threat.

    Attributes:
        terms: what the protocol makes public.
        threat: who is looking.
        rounds: in order; the scope of the attack decides how many.
        own: what the adversary itself knows, per round (server: its model and logits).
        grants: side knowledge.
        memory: what the attack's own ``craft`` filed before, by name.
    """

    terms: Terms
    threat: Threat
    rounds: tuple[RoundView, ...]
    own: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    grants: Grants = field(default_factory=Grants)
    memory: Mapping[str, Tensor] = field(default_factory=dict)

    def single(self, *, subject: str) -> tuple[Broadcast, Update]:
        """The one update that a view of scope ``update`` holds, and the broadcast behind it.

        Raises:
            Inapplicable: the view holds no update, or several.
        """
        updates = [u for r in self.rounds for u in r.updates.values()]
        if len(updates) != 1:
            raise Inapplicable(
                subject,
                needs="a view of exactly one client's update",
                got=f"{len(updates)} updates" + (" (secure_sum hides them)" if self.terms.secure_sum else ""),
                fix="set federation.secure_sum = false, or use an attack on sums (glasshouse list attacks)",
            )
        update = updates[0]
        return next(r for r in self.rounds if r.round == update.round).received_by(update.client), update

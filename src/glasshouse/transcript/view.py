"""The part of a transcript that one adversary sees: the only input of an attack.

A view contains no seed, path or scenario name, and no defence unless that is granted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    """One round as the adversary saw it. Updates of kind ``parameters`` are converted to ``delta``.

    Attributes:
        round: from 0.
        broadcast: to all clients, completed with the last value of every tensor sent before.
        addressed: broadcasts to single clients instead, by id, completed in the same way.
        updates: by client; empty under ``secure_sum`` or when the adversary does not see them.
        aggregate: under ``secure_sum``, else None.
        metrics: sent by clients in clear beside the tensors; empty where the adversary receives nothing.
        dropouts: clients that were asked and sent no update; empty in the same case.
        sent: what the adversary itself sent in this round, where it is a client; None: nothing that was kept.
    """

    round: int
    broadcast: Broadcast
    addressed: Mapping[int, Broadcast] = field(default_factory=dict)
    updates: Mapping[int, Update] = field(default_factory=dict)
    aggregate: Aggregate | None = None
    metrics: tuple[ClientMetrics, ...] = ()
    dropouts: tuple[Dropout, ...] = ()
    sent: Update | None = None

    def received_by(self, client: int) -> Broadcast:
        """The broadcast that ``client`` trained on."""
        return self.addressed.get(client, self.broadcast)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Transcript, own tensors and grants, restricted to one threat.

    Attributes:
        terms: the public settings of the protocol.
        threat: the threat model of the adversary.
        rounds: in order; the scope of the attack decides how many.
        own: the adversary's own tensors, per round (server: its model and logits).
        grants: side knowledge.
        memory: tensors that the attack's own ``craft`` stored before, by name.
    """

    terms: Terms
    threat: Threat
    rounds: tuple[RoundView, ...]
    own: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    grants: Grants = field(default_factory=Grants)
    memory: Mapping[str, Tensor] = field(default_factory=dict)

    def single(self, *, subject: str) -> tuple[Broadcast, Update]:
        """The single update in a view of scope ``update``, and the broadcast that it answers.

        Raises:
            Inapplicable: the view has no update, or several.
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

    def without_updates(self) -> "View | None":
        """This view with the adversary's own predictions in the place of every upload and of the consensus.

        What an attack still claims from it, the adversary had without what clients sent in these rounds; its
        own model has learnt from earlier ones. Only rounds in which it made predictions of its own are left.

        Returns:
            None where it has no such predictions, as where clients send gradients or weights.
        """
        rounds = []
        for one in self.rounds:
            own = self.own.get(one.round, {})
            sent = {name for update in one.updates.values() for name in update.tensors}
            shared = all(update.kind == "logits" for update in one.updates.values())
            if not (sent and shared and sent <= set(own)):
                continue
            stand_in = {name: own[name] for name in sent}
            rounds.append(
                RoundView(
                    round=one.round,
                    broadcast=replace(one.broadcast, tensors=stand_in),
                    updates={c: replace(update, tensors=stand_in) for c, update in one.updates.items()},
                )
            )
        return replace(self, rounds=tuple(rounds)) if rounds else None

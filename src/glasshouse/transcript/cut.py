"""Restrict a transcript to what one adversary sees of the rounds and the client under attack.

A client never sees other clients' updates. But the server's step is public, so the difference of two
successive global models reveals the weighted sum of the round between them; with the ids of the cohort
(a grant) that is as much as the server sees under ``secure_sum``, for every round but the last.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 1 (the client who observes the common models).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from glasshouse.errors import Undefined
from glasshouse.interfaces import traits_if_known
from glasshouse.tensors import Lazy, derive
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Aggregate, Broadcast, Terms, Update

M = TypeVar("M", Update, Aggregate)


def cut(
    transcript: Transcript,
    *,
    threat: Threat,
    grants: Grants,
    own: Mapping[int, Mapping[str, Tensor]],
    memory: Mapping[str, Tensor],
    rounds: Iterable[int] | None = None,
    client: int | None = None,
) -> View:
    """The view of ``threat`` on ``rounds`` (None: all) and, where given, on one client's update.

    Raises:
        Undefined: a round was not recorded, or the client did not answer in it.
    """
    numbers = None if rounds is None else set(rounds)
    records = [r for r in _complete(transcript) if (numbers is None or r.round in numbers) and r.broadcasts]
    missing = (numbers or set()) - {r.round for r in records}
    answered = client is None or all(any(u.client == client for u in r.updates) for r in records)
    if missing or not records or ("update" in threat.sees and not answered):
        raise Undefined(
            "view of a transcript",
            needs=f"rounds {sorted(numbers) if numbers is not None else 'of any number'}"
            + ("" if client is None else f" with an update of client {client}"),
            got=f"kept rounds {[r.round for r in transcript.rounds]}",
            fix="keep those rounds: federation.keep, audit.rounds",
        )
    numbers_seen = {r.round for r in records}
    terms = transcript.terms
    views = tuple(_round(r, threat, client) for r in records)
    if threat.role != "server" and grants.cohorts and traits_if_known(terms.protocol).averages:
        views = _with_sums(views, grants, terms)
    return View(
        terms=replace(terms, sends="delta") if terms.sends == "parameters" else terms,
        threat=threat,
        rounds=views,
        own={n: t for n, t in own.items() if n in numbers_seen} if "own" in threat.sees else {},
        grants=_cut_grants(grants, numbers_seen, client),
        memory=memory,
    )


def _complete(transcript: Transcript) -> list[RoundRecord]:
    """Rounds in order; one with updates but no broadcast (a last upload) gets the previous broadcasts."""
    records: list[RoundRecord] = []
    for record in transcript.rounds:
        last = records[-1].broadcasts if records and record.updates else ()
        records.append(record if record.broadcasts else replace(record, broadcasts=last))
    return records


def _round(record: RoundRecord, threat: Threat, client: int | None) -> RoundView:
    mine = threat.client if threat.role == "client" else None
    everybody = [b for b in record.broadcasts if b.client is None]
    addressed = {b.client: b for b in record.broadcasts if b.client is not None}
    if threat.role != "server":
        addressed = {c: b for c, b in addressed.items() if c == mine}
    updates = [u for u in record.updates if "update" in threat.sees and client in (None, u.client)]
    receives = bool(threat.sees & {"update", "aggregate"})
    broadcast = everybody[0] if everybody else next(iter(addressed.values()))
    sent = next((u for u in record.updates if u.client == mine), None)
    total = record.aggregate if "aggregate" in threat.sees else None
    return RoundView(
        round=record.round,
        broadcast=broadcast,
        addressed=addressed,
        updates={u.client: as_change(u, addressed.get(u.client, broadcast)) for u in updates},
        aggregate=None if total is None else as_change(total, broadcast, total.weight),
        metrics=tuple(m for m in record.metrics if receives and client in (None, m.client)),
        dropouts=tuple(d for d in record.dropouts if receives and client in (None, d.client)),
        sent=None if sent is None else as_change(sent, addressed.get(sent.client, broadcast)),
    )


def as_change(message: M, received: Broadcast, weight: float = 1.0) -> M:
    """Convert new parameters, or their sum with this weight, to a delta, which holds the same information."""
    if message.kind != "parameters":
        return message
    before = received.tensors
    changes = derive(
        message.tensors, lambda name, t: t - weight * before[name].to(t.dtype), keep=before.__contains__
    )
    return replace(message, kind="delta", tensors=changes)


def _cut_grants(grants: Grants, rounds: set[int], client: int | None) -> Grants:
    def mine(key: tuple[int, int]) -> bool:
        return key[0] in rounds and client in (None, key[1])

    return replace(
        grants,
        labels={k: v for k, v in grants.labels.items() if mine(k)},
        batch_norm={k: v for k, v in grants.batch_norm.items() if mine(k)},
        cohorts={number: c for number, c in grants.cohorts.items() if number in rounds},
    )


def _with_sums(rounds: Sequence[RoundView], grants: Grants, terms: Terms) -> tuple[RoundView, ...]:
    """Add the aggregate to each round whose cohort was granted and whose next round was observed."""
    sums = {
        this.round: _sum(this, after, grants.cohorts[this.round], terms)
        for this, after in pairwise(rounds)
        if after.round == this.round + 1 and this.round in grants.cohorts
    }
    return tuple(replace(r, aggregate=sums.get(r.round)) for r in rounds)


def _sum(this: RoundView, after: RoundView, cohort: Cohort, terms: Terms) -> Aggregate:
    """Invert the server's step; a parameter that was not sent, or is not floating point, has no sum.

    Raises:
        Undefined: the server takes no step, or no parameter is in both broadcasts.
    """
    step = terms.server_rate * (-terms.rate(this.round) if terms.sends == "gradient" else 1.0)
    before, now = this.broadcast.tensors, after.broadcast.tensors
    shared = [name for name in before if name in now and before[name].is_floating_point()]
    if not step or not shared:
        raise Undefined(
            f"sum of round {this.round} from successive models",
            needs="a server that steps, and parameters in both broadcasts",
            got=f"server rate {terms.server_rate}, {len(shared)} shared parameters",
            fix="watch as the server, or attack other rounds",
        )
    answered = len(cohort.selected) - len(cohort.dropped)

    def made(name: str) -> Tensor:
        return (now[name].double() - before[name].double()) * (answered / step)

    change = Lazy(lambda: shared, made, lambda: sum(2 * before[name].nbytes for name in shared))
    return Aggregate(
        round=this.round,
        kind="gradient" if terms.sends == "gradient" else "delta",
        tensors=change if isinstance(before, Lazy) else dict(change),
        weight=float(answered),
        **vars(cohort),
    )

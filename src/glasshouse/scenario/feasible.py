"""Check a scenario without axes for numbers that overflow or contradict each other."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from glasshouse import registry
from glasshouse.errors import Problem
from glasshouse.interfaces import traits_of
from glasshouse.limits import LARGEST
from glasshouse.scenario.axes import plain
from glasshouse.scenario.problems import dotted_path
from glasshouse.scenario.spec import Scenario

MOST = 2**31 - 1
"""Largest integer, except for seeds."""
SEEDS = ("seed", "attack_seed", "seeds")


def feasibility_problems(scenario: Scenario) -> Iterator[Problem]:
    """Overflowing numbers and infeasible participants, rounds and members."""
    yield from _overflowing((), plain(scenario))
    yield from _takers(scenario)
    yield from _rounds(scenario)
    yield from _members(scenario)


def _overflowing(path: tuple[str | int, ...], value: Any) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in SEEDS:
                yield from _overflowing((*path, key), inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _overflowing((*path, i), inner)
    elif isinstance(value, float) and abs(value) > LARGEST:
        yield Problem(
            path=dotted_path(path), needs=f"a number up to {LARGEST:g}, which float32 holds", got=str(value)
        )
    elif isinstance(value, int) and abs(value) > MOST:
        yield Problem(path=dotted_path(path), needs=f"a whole number up to {MOST:,}", got=f"{value:,}")


def _takers(scenario: Scenario) -> Iterator[Problem]:
    """Contradictions between participation in a round and what the server observes."""
    federation, threat = scenario.federation, scenario.threat
    # an unknown protocol is reported elsewhere
    registered = federation.protocol in registry.names("protocols")
    if registered and traits_of(federation.protocol).sends == "logits":
        wrong = {
            "federation.cohort": (federation.cohort_size < federation.clients, "1.0", str(federation.cohort)),
            "federation.dropout": (federation.dropout > 0, "0", str(federation.dropout)),
            "federation.secure_sum": (federation.secure_sum, "false", "true"),
            "threat.changes": (bool(threat.changes), "[]", str(list(threat.changes))),
            "guard.models": (scenario.guard.models != "trusted", "trusted", scenario.guard.models),
            "guard.updates": (scenario.guard.updates != "sent", "sent", scenario.guard.updates),
        }
        for path, (bad, needs, got) in wrong.items():
            if bad:
                words = f"{needs} under {federation.protocol}: every client shares its logits with the server"
                yield Problem(path=path, needs=words, got=got)
        return
    if registered and scenario.guard.updates == "mitigated" and federation.kind == "parameters":
        yield Problem(
            path="guard.updates",
            needs="gradients or changes of parameters on the wire",
            got='"mitigated" where clients send their parameters',
            hint='set federation.sends = "delta", or guard.updates = "sent"',
        )
    if federation.secure_sum and federation.cohort_size == 1:
        yield Problem(
            path="federation.secure_sum",
            needs="at least 2 clients per round: the sum of one is that client's update",
            got=f"{federation.clients} clients, cohort = {federation.cohort}",
            hint="raise federation.clients or cohort, or set secure_sum = false",
        )
    if federation.dropout and federation.cohort_size * (1 - federation.dropout) < 1:
        yield Problem(
            path="federation.dropout",
            needs=f"at least one of {federation.cohort_size} clients per round that answers, on average",
            got=str(federation.dropout),
            hint="lower it, or select more clients",
        )


def _rounds(scenario: Scenario) -> Iterator[Problem]:
    """Duplicate audit rounds, or none."""
    total = scenario.federation.rounds
    inside = [r for r in scenario.audit.rounds if -total <= r < total]
    twice = [r for r, count in Counter(r % total for r in inside).items() if count > 1]
    if twice or not scenario.audit.rounds:
        yield Problem(
            path="audit.rounds",
            needs=f"different rounds from {-total} to {total - 1}, at least one",
            got=f"round {twice[0]} twice" if twice else "none",
        )


def _members(scenario: Scenario) -> Iterator[Problem]:
    data, clients = scenario.data, scenario.federation.clients
    if data.members > clients:
        yield Problem(
            path="data.members", needs=f"at most federation.clients = {clients}", got=str(data.members)
        )
    if scenario.grants.challenge and not data.members:
        yield Problem(
            path="grants.challenge",
            needs="data.members >= 1: somebody must hold the example",
            got="data.members = 0",
            hint="set data.members, or grants.challenge = false",
        )

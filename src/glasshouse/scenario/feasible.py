"""Check a scenario without axes for numbers that overflow or contradict each other."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from glasshouse import registry
from glasshouse.errors import Problem
from glasshouse.interfaces import Traits, traits_if_known
from glasshouse.limits import LARGEST
from glasshouse.scenario.axes import plain
from glasshouse.scenario.problems import dotted_path, unmet
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


def protocol_traits(scenario: Scenario) -> Traits:
    """Traits of the protocol; the defaults for an unknown one, which is reported elsewhere."""
    return traits_if_known(scenario.federation.protocol)


def _overflowing(path: tuple[str | int, ...], value: Any) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in SEEDS:
                yield from _overflowing((*path, key), inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _overflowing((*path, i), inner)
    elif isinstance(value, float) and abs(value) > LARGEST:
        yield unmet(dotted_path(path), f"a number up to {LARGEST:g}, which float32 holds", got=str(value))
    elif isinstance(value, int) and abs(value) > MOST:
        yield unmet(dotted_path(path), f"a whole number up to {MOST:,}", got=f"{value:,}")


def _takers(scenario: Scenario) -> Iterator[Problem]:
    """Contradictions between participation in a round and what the server observes."""
    federation, threat, guard = scenario.federation, scenario.threat, scenario.guard
    # Logits are asked of everybody, and there is no update that a sum or the guard could be about.
    if protocol_traits(scenario).sends == "logits":
        required = {
            "federation.cohort": (federation.cohort_size == federation.clients, "1.0"),
            "federation.dropout": (not federation.dropout, "0"),
            "federation.secure_sum": (not federation.secure_sum, "false"),
            "threat.changes": (not threat.changes, "[]"),
            "guard.models": (guard.models == "trusted", "trusted"),
            "guard.updates": (guard.updates == "sent", "sent"),
        }
        for path, (met, value) in required.items():
            if not met:
                why = "every client shares its logits with the server"
                yield unmet(path, f"{value} under {federation.protocol}: {why}")
        return
    # What is unknown is named elsewhere; of known protocols some send what mitigation cannot change.
    registered = federation.protocol in registry.names("protocols")
    if registered and guard.updates == "mitigated" and federation.kind == "parameters":
        yield unmet(
            "guard.updates",
            "gradients or changes of parameters on the wire",
            got='"mitigated" where clients send their parameters',
            hint='set federation.sends = "delta", or guard.updates = "sent"',
        )
    if federation.secure_sum and federation.cohort_size == 1:
        yield unmet(
            "federation.secure_sum",
            "at least 2 clients per round: the sum of one is that client's update",
            got=f"{federation.clients} clients, cohort = {federation.cohort}",
            hint="raise federation.clients or cohort, or set secure_sum = false",
        )
    if federation.dropout and federation.cohort_size * (1 - federation.dropout) < 1:
        needs = f"at least one of {federation.cohort_size} clients per round that answers, on average"
        yield unmet("federation.dropout", needs, hint="lower it, or select more clients")


def _rounds(scenario: Scenario) -> Iterator[Problem]:
    """Duplicate audit rounds, or none."""
    total = scenario.federation.rounds
    inside = [r for r in scenario.audit.rounds if -total <= r < total]
    twice = [r for r, count in Counter(r % total for r in inside).items() if count > 1]
    if twice or not scenario.audit.rounds:
        needs = f"different rounds from {-total} to {total - 1}, at least one"
        yield unmet("audit.rounds", needs, got=f"round {twice[0]} twice" if twice else "none")


def _members(scenario: Scenario) -> Iterator[Problem]:
    data, clients = scenario.data, scenario.federation.clients
    if data.members > clients:
        yield unmet("data.members", f"at most federation.clients = {clients}")
    if scenario.grants.challenge and not data.members:
        yield unmet(
            "grants.challenge",
            "data.members >= 1: somebody must hold the example",
            got="data.members = 0",
            hint="set data.members, or grants.challenge = false",
        )

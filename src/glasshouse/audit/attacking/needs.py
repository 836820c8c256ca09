"""Which attack is meant, and why a setting rules it out before it runs."""

from collections.abc import Mapping
from typing import Any

from glasshouse.attacks.base import Attack
from glasshouse.errors import GlasshouseError
from glasshouse.registry import create, load
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Refusal


def attack_of(name: str, arguments: Mapping[str, Any]) -> Attack:
    """The attack with its settings."""
    attack: Attack = create(load("attacks", name), arguments)
    return attack


def refused(attack: Attack, name: str, threat: Threat, grants: Grants, protocol: str) -> Refusal | None:
    """Why the threat, the grants or the protocol rule this attack out before it runs; None: they do not."""
    needs, subject = attack.needs, f"attack '{name}'"
    if protocol not in needs.protocols:
        return Refusal(
            subject=subject,
            needs=f"protocol {' or '.join(sorted(needs.protocols))}",
            got=protocol,
            fix="choose an attack on this protocol: glasshouse list attacks",
        )
    derived = {"aggregate"} if grants.cohorts and threat.role != "server" else set()  # from successive models
    if unseen := sorted(needs.sees - threat.sees - derived):
        return Refusal(
            subject=subject,
            needs=f"an adversary who sees {', '.join(sorted(needs.sees))}",
            got=f"{threat.role} who sees {', '.join(sorted(threat.sees)) or 'nothing'}",
            fix=f"add {', '.join(unseen)} to threat.sees if the adversary sees it (secure_sum hides updates)",
        )
    if fixed := sorted(needs.changes - threat.changes):
        return Refusal(
            subject=subject,
            needs=f"a server that changes {', '.join(sorted(needs.changes))}",
            got=f"changes = {sorted(threat.changes)}",
            fix=f"add {', '.join(fixed)} to threat.changes to audit a malicious server",
        )
    if missing := sorted(needs.grants - set(grants.given())):
        return Refusal(
            subject=subject,
            needs=f"side knowledge: {', '.join(sorted(needs.grants))}",
            got=f"given: {', '.join(grants.given()) or 'nothing'}",
            fix=f"set grants.{missing[0]} = true (and data.auxiliary for auxiliary data), or drop the attack",
        )
    return None


def refusal_of(error: GlasshouseError) -> Refusal:
    """An error of ours as a refusal."""
    return Refusal(subject=error.subject, needs=error.needs, got=error.got, fix=error.fix)

"""Create attacks, count their calls, and explain why a setting rules one out: for ``run`` and ``check``."""

import json
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final, cast

from glasshouse.attacks.base import Attack, Claim, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.data.partition import BELONGS
from glasshouse.errors import GlasshouseError
from glasshouse.interfaces import traits_if_known
from glasshouse.models.derivatives import second_derivative_fault
from glasshouse.registry import card, create, load
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.settings import Optimizer, Training
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Architecture, Kind, Refusal, Terms

DATA_OF: Final = {"auxiliary": " (and data.auxiliary)", "challenge": " (and data.members)"}
"""The settings of data without which a grant is empty, in words."""


def attack_of(plugin: Plugin) -> Attack:
    """The attack with its settings."""
    attack: Attack = create(load("attacks", plugin.name), plugin.arguments)
    return attack


def threat_of(scenario: Scenario) -> Threat:
    """The scenario's threat model, completed with what its role sees."""
    return Threat(
        role=scenario.threat.role,
        sees=scenario.sees,
        changes=frozenset(scenario.threat.changes),
        client=scenario.threat.client,
    )


def find_refusal(attack: Attack, name: str, threat: Threat, grants: Grants, terms: Terms) -> Refusal | None:
    """Why the threat, the grants or the terms rule this attack out; None: it can run."""
    refusal = first_unmet_need(
        attack.needs,
        f"attack '{name}'",
        threat=threat,
        granted=grants.names(),
        protocol=terms.protocol,
        targets=terms.targets,
        stepping=stepping_of(terms.sends, terms.optimizer, terms.training),
    )
    if refusal is None:
        refusal = unmet_by_examples(attack.needs, f"attack '{name}'", terms.architecture, grants.names())
    return refusal


def unmet_by_examples(
    needs: Needs, subject: str, architecture: Architecture, granted: Collection[str]
) -> Refusal | None:
    """Why the kind of examples or of targets rules an attack out; None: it does not."""
    inputs, task = architecture.inputs, architecture.task
    other = "choose an attack on these data: glasshouse list attacks"
    if needs.modalities and inputs.name not in needs.modalities:
        asked = " or ".join(sorted(needs.modalities))
        return Refusal(subject=subject, needs=f"data of modality {asked}", got=inputs.nouns, fix=other)
    if needs.continuous and not inputs.continuous:
        return Refusal(subject=subject, needs="examples made of numbers", got=inputs.nouns, fix=other)
    if needs.one_label and not task.one_label:
        return Refusal(
            subject=subject,
            needs="a task with one class per example",
            got=f"task '{task.name}'",
            fix=f"{other}; classes are integers, one for each example (of one-hot ones the argmax)",
        )
    if "labels" in needs.uses and task.unknown == "told" and "labels" not in granted:
        return Refusal(
            subject=subject,
            needs=f"the targets, which nothing infers under task '{task.name}'",
            got="no grant labels",
            fix=", or ".join(
                filter(None, ("set grants.labels = true", task.instead, "choose an attack without targets"))
            ),
        )
    if needs.twice and (fault := second_derivative_fault(architecture)) is not None:
        return Refusal(subject=subject, needs=fault[0], got=fault[1], fix=f"{fault[2]}, or {other}")
    return None


def federation_of(scenario: Scenario, position: int) -> int | None:
    """Federation of a cell that an attack reads: an active attack its own, by position; None: the shared one.

    A capture has only the federation that ran.
    """
    alone = not scenario.captured and declared(scenario.attacks[position])[0].changes
    return position if alone else None


def declared(attack: Plugin) -> tuple[Needs, Budget | None]:
    """The needs and budget of an attack with its settings; cached: findings and estimates ask often."""
    return _declared(load("attacks", attack.name), json.dumps(attack.arguments, sort_keys=True))


@lru_cache(maxsize=256)
def _declared(factory: Callable[..., Attack], arguments: str) -> tuple[Needs, Budget | None]:
    attack: Attack = create(factory, json.loads(arguments))
    return attack.needs, attack.budget


def stepping_of(sends: Kind, optimizer: Optimizer, training: Training) -> frozenset[str]:
    """Traits of the steps that produced an update; a gradient is one step without an optimizer."""
    if sends in ("delta", "parameters"):
        return optimizer.traits | training.traits
    return training.traits & {"clip_norm"} if sends == "gradient" else frozenset()


def foresee_refusal(scenario: Scenario, attack: Plugin) -> Refusal | None:
    """As :func:`find_refusal`, from a scenario without axes, before anything is simulated."""
    needs, subject = declared(attack)[0], f"attack '{attack.label or attack.name}'"
    refusal = first_unmet_need(
        needs,
        subject,
        threat=threat_of(scenario),
        granted=promised_grants(scenario),
        protocol=scenario.federation.protocol,
        targets=scenario.data.domains.targets,
        stepping=stepping_of(
            scenario.federation.kind, scenario.federation.optimizer, scenario.federation.local
        ),
    )
    if refusal is None and needs.alone and (behind := fewest_behind(scenario)) > 1:
        return Refusal(
            subject=subject,
            needs="an update computed from exactly 1 example",
            got=f"updates of {behind} examples",
            fix="set federation.batch_size = 1, or use inverting_gradients",
        )
    return refusal


def fewest_behind(scenario: Scenario) -> int:
    """Smallest number of examples behind an update; 1 where messages or a partition decide it."""
    federation, data = scenario.federation, scenario.data
    if scenario.captured or data.partition in BELONGS.values():
        return 1
    return min(federation.batch_size, data.examples) if federation.kind == "gradient" else data.examples


def promised_grants(scenario: Scenario) -> tuple[str, ...]:
    """Names of the grants that the simulation will give: switched on, and with data."""
    data = scenario.data
    empty = {
        "auxiliary": not data.auxiliary or bool(data.domains.targets),
        "challenge": not data.members,
    }
    return tuple(name for name, granted in scenario.grants if granted and not empty.get(name, False))


def first_unmet_need(
    needs: Needs,
    subject: str,
    *,
    threat: Threat,
    granted: Collection[str],
    protocol: str,
    targets: int,
    stepping: Collection[str],
) -> Refusal | None:
    """The first requirement of an attack that is not met; None: all are met."""
    traits = traits_if_known(protocol)
    if not {protocol, traits.like} & needs.protocols:
        return Refusal(
            subject=subject,
            needs=f"protocol {' or '.join(sorted(needs.protocols))}",
            got=protocol,
            fix="choose an attack on this protocol: glasshouse list attacks",
        )
    if needs.targets and not targets:
        return Refusal(
            subject=subject,
            needs="classes that the federation names as private",
            got="data.domains.targets = 0",
            fix="set data.domains, or choose another attack: glasshouse list attacks",
        )
    stepping = {*stepping, *(("control",) if traits.controls else ())}
    if ignored := sorted(stepping - needs.optimizers):
        return Refusal(
            subject=subject,
            needs=f"clients that step by an optimizer it accounts for: {', '.join(sorted(needs.optimizers))}",
            got=f"federation.optimizer with {', '.join(ignored)}",
            fix="choose an attack that repeats the clients' steps (inverting_gradients), or plain sgd",
        )
    # With known cohorts, a client or bystander can compute the sums from successive models.
    derives = traits.averages and "cohorts" in granted and threat.role != "server"
    derived = {"aggregate"} if derives else set()
    if refusal := _missing_sight(needs, subject, threat, threat.sees | derived):
        return refusal
    if fixed := sorted(needs.changes - threat.changes):
        return Refusal(
            subject=subject,
            needs=f"a server that changes {', '.join(sorted(needs.changes))}",
            got=f"changes = {sorted(threat.changes)}",
            fix=f"add {', '.join(fixed)} to threat.changes to audit a malicious server",
        )
    if missing := sorted(needs.grants - set(granted)):
        return Refusal(
            subject=subject,
            needs=f"side knowledge: {', '.join(sorted(needs.grants))}",
            got=f"given: {', '.join(granted) or 'nothing'}",
            fix=f"set grants.{missing[0]} = true{DATA_OF.get(missing[0], '')}, or drop the attack",
        )
    return None


def _missing_sight(needs: Needs, subject: str, threat: Threat, sees: frozenset[str]) -> Refusal | None:
    lacking = [str(kind) for kind in sorted(needs.sees - sees)]
    if needs.any_of and not needs.any_of & sees:
        lacking.append(" or ".join(sorted(needs.any_of)))
    if not lacking:
        return None
    sights = [*sorted(needs.sees), *([" or ".join(sorted(needs.any_of))] if needs.any_of else [])]
    return Refusal(
        subject=subject,
        needs=f"an adversary who sees {', '.join(sights)}",
        got=f"{threat.role} who sees {', '.join(sorted(threat.sees)) or 'nothing'}",
        fix=f"add {', '.join(lacking)} to threat.sees if the adversary sees it (secure_sum hides updates)",
    )


def refusal_of(error: GlasshouseError) -> Refusal:
    """Convert an error of this package to a refusal."""
    return Refusal(subject=error.subject, needs=error.needs, got=error.got, fix=error.fix)


def images_of(scenario: Scenario, budget: Budget) -> int:
    """Largest number of images to search for in one run: the examples of the attacked rounds."""
    federation = scenario.federation
    behind = federation.batch_size if federation.kind == "gradient" else scenario.data.examples
    cohort = federation.cohort_size
    clients_seen, together = (1, cohort) if federation.secure_sum else (cohort, 1)
    return len(scenario.audit.rounds) * clients_seen * min(budget.images, behind * together)


def calls_of(scenario: Scenario, plugin: Plugin) -> int:
    """Number of calls over all draws of a cell; 0 if the setting rules the attack out."""
    if foresee_refusal(scenario, plugin) is not None:
        return 0
    rounds, draws = len(scenario.audit.rounds), scenario.draws
    most = rounds * scenario.federation.cohort_size
    updates = sum(min(draw.victims, most) for draw in draws)
    calls = {"run": len(draws), "round": rounds * len(draws), "update": updates}
    return calls[declared(plugin)[0].scope]


def plays_of(scenario: Scenario, plugin: Plugin) -> int:
    """How often a call is played: once more, without uploads, for claims about classes from predictions."""
    claims = [cast("type[Claim]", load("claims", kind)) for kind in card("attacks", plugin.name).claims]
    reads_logits = traits_if_known(scenario.federation.protocol).sends == "logits"
    return 2 if reads_logits and any(claim.paired == "classes" for claim in claims) else 1

"""Who sees what, what was given, and which limits were broken: one card per scenario, in words."""

from collections.abc import Sequence

from glasshouse.attacks.base import Attack
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.scoring.settle import Settled
from glasshouse.results.records import Finding, ThreatCard, Utility
from glasshouse.scenario.spec import Scenario

SEES = {
    "broadcast": "what the server sends",
    "update": "every client's own update",
    "aggregate": "the sum of the cohort's updates",
    "own": "the server's own model",
}
CHANGES = {
    "parameters": "parameter values",
    "architecture": "the architecture (a client can see that)",
    "addressing": "what single clients are sent",
}


def threat_card(scenario: Scenario, cells: Sequence[Settled]) -> ThreatCard:
    """The card of one scenario, with the limits of its policy that its findings broke."""
    facts = cells[0].facts if cells else None
    attacks = [attack_of(a.name, a.arguments) for a in scenario.attacks]
    findings = [f for c in cells for f in c.findings]
    utility = [u for c in cells for u in c.utility]
    return ThreatCard(
        scenario=scenario.name,
        summary=scenario.summary,
        federation=_federation(scenario),
        adversary=_adversary(scenario),
        sees=tuple(SEES[s] for s in sorted(scenario.sees)),
        changes=tuple(CHANGES[c] for c in scenario.threat.changes),
        given=tuple(name for name, on in scenario.grants.model_dump().items() if on),
        data=facts.data if facts else scenario.data.source,
        data_public=bool(facts and facts.public),
        model=facts.model if facts else scenario.model.name,
        structural=any(_structural(a) for a in attacks),
        limits=dict(scenario.policy.max_gain),
        broken=tuple(_broken(scenario, findings, utility)),
        notes=_notes(scenario),
    )


def _structural(attack: Attack) -> bool:
    return "architecture" in attack.needs.changes


def _federation(scenario: Scenario) -> str:
    f = scenario.federation
    steps = (
        f"{f.local_epochs} local epochs of batches of {f.batch_size}"
        if f.kind != "gradient"
        else f"one batch of {f.batch_size}"
    )
    hidden = ", secure aggregation" if f.secure_sum else ""
    return (
        f"{f.protocol}: {f.clients} clients, {f.cohort_size} a round, "
        f"{f.rounds} round{'s' if f.rounds > 1 else ''}; "
        f"each works on {steps} at learning rate {f.learning_rate:g} and sends its {f.kind}{hidden}"
    )


def _adversary(scenario: Scenario) -> str:
    active = "a malicious" if scenario.threat.changes else "an honest-but-curious"
    return f"{active} {scenario.threat.role}"


def _broken(scenario: Scenario, findings: Sequence[Finding], utility: Sequence[Utility]) -> list[str]:
    """Limits that were broken: a gain counts when its whole interval lies above the limit."""
    said = []
    for f in findings:
        limit = scenario.policy.max_gain.get(f.metric)
        if limit is not None and f.gain_low > limit:
            under = " + ".join(f.defenses) or "no defence"
            said.append(
                f"{f.attack}, {under}: the gain in {f.metric} is {f.gain:.3g} (at least {f.gain_low:.3g}); "
                f"tolerated: {limit:g}"
            )
    least = scenario.policy.min_accuracy
    for u in utility:
        if least is not None and u.high < least:
            under = " + ".join(u.defenses) or "no defence"
            said.append(
                f"{under}: held-out accuracy is {u.value:.3f} (at most {u.high:.3f}), required {least:g}"
            )
    return said


def _notes(scenario: Scenario) -> tuple[str, ...]:
    if not scenario.tuning.source:
        return ()
    on = f"{scenario.tuning.source} {scenario.tuning.split}".strip()
    return (f"Defaults were tuned on {on}; other data judge here. {scenario.tuning.note}".strip(),)

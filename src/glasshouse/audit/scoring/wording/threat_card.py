"""Threat cards: who sees what, and which grants were given, in words, one card per scenario."""

from collections.abc import Sequence

from glasshouse import registry
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.scoring.tasks import CellResult
from glasshouse.results.cards import ThreatCard
from glasshouse.results.vocabulary import CHANGES, SEES
from glasshouse.scenario.axes import cells as expand
from glasshouse.scenario.spec import Scenario
from glasshouse.settings import Optimizer


def threat_card(scenario: Scenario, cells: Sequence[CellResult]) -> ThreatCard:
    """The card of one scenario; the states of its policy's limits are reported separately (``policy``)."""
    facts = cells[0].facts if cells else None
    attacks = [attack_of(a.name, a.arguments) for a in scenario.attacks]
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
        structural=any("architecture" in a.needs.changes for a in attacks),
        limits=dict(scenario.policy.max_gain),
        notes=(*(facts.notes if facts else ()), *_notes(scenario)),
        setup=_setup(scenario),
        defenses=_defenses(scenario),
        advice=_advice(scenario),
    )


def _federation(scenario: Scenario) -> str:
    f = scenario.federation
    steps = (
        f"{_count_of(f.local_epochs, 'local epoch')} in batches of {_count_of(f.batch_size, 'example')}"
        if f.kind != "gradient"
        else f"one batch of {_count_of(f.batch_size, 'example')}"
    )
    hidden = "; secure aggregation hides single updates from the server" if f.secure_sum else ""
    return (
        f"{f.protocol}: {_count_of(f.clients, 'client')}, {f.cohort_size} per round, "
        f"{_count_of(f.rounds, 'round')}; each client works on {steps} at learning rate {f.learning_rate:g}"
        f"{_optimizer(f.optimizer)} and sends its {f.kind}{hidden}"
    )


def _optimizer(how: Optimizer) -> str:
    parts = [
        f"momentum {how.momentum:g}" if how.momentum else "",
        f"weight decay {how.weight_decay:g}" if how.weight_decay else "",
        f"a {how.schedule} schedule over {how.over}" if how.period else "",
    ]
    more = " and ".join(filter(None, parts))
    name = "" if how.name == "sgd" and not more else f" by {how.name}"
    return f"{name} with {more}" if more else name


def _count_of(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _adversary(scenario: Scenario) -> str:
    if scenario.threat.changes:
        return f"a {scenario.threat.role} that manipulates what it sends (malicious)"
    return f"a {scenario.threat.role} that only reads (honest-but-curious)"


def _setup(scenario: Scenario) -> str:
    """The federation's size and what is visible of its messages, in a few plain words."""
    f = scenario.federation
    visibility = (
        "only the sum of their messages is seen" if f.secure_sum else "each client's messages are seen"
    )
    return f"{_count_of(f.clients, 'client')}, {_count_of(f.rounds, 'round')}; {visibility}"


def _defenses(scenario: Scenario) -> dict[str, str]:
    """What each defence of the scenario does, including those of other packages."""
    names = dict.fromkeys(d.name for cell in expand(scenario) for d in cell.scenario.defenses)
    return {name: registry.card("defenses", name).summary for name in names}


def _advice(scenario: Scenario) -> str:
    """The defence to try first in a scenario without one: it has a proof for what the clients send."""
    advice = {
        "logits": "label_only, which sends the most likely class alone",
        "parameters": "dp_sgd, which clips and adds noise while a client trains",
    }
    usual = "gaussian_mechanism, which limits each update's size and adds noise"
    return advice.get(scenario.federation.kind, usual)


def _notes(scenario: Scenario) -> tuple[str, ...]:
    if not scenario.tuning.source:
        return ()
    on = f"{scenario.tuning.source} {scenario.tuning.split}".strip()
    return (f"Defaults were tuned on {on}; other data judge here. {scenario.tuning.note}".strip(),)

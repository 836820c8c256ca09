"""Words for the report: cards of attacks and metrics, threat cards, how numbers were chosen."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from glasshouse.audit import guarded
from glasshouse.audit.attacking.needs import attack_of, declared
from glasshouse.audit.scoring.tasks import CellResult
from glasshouse.audit.sealed import is_foreign
from glasshouse.errors import BadValue
from glasshouse.interfaces import traits_if_known
from glasshouse.metrics.base import Metric, Wording
from glasshouse.metrics.landmarks import landmarks
from glasshouse.registry import card, create, load
from glasshouse.results.cards import AttackCard, MetricCard, ThreatCard
from glasshouse.results.vocabulary import CHANGES, SEES
from glasshouse.scenario.axes import Cell, label_of
from glasshouse.scenario.axes import cells as expand
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.settings import Optimizer
from glasshouse.wire import Refusal


def attack_cards(scenarios: Iterable[Scenario]) -> tuple[AttackCard, ...]:
    """The attacks of all scenarios, each label once.

    Args:
        scenarios: with their axes expanded.
    """
    cards = {(a.label or a.name): _attack_card(a) for s in scenarios for a in s.attacks}
    return tuple(cards.values())


def metric_cards(scenarios: Iterable[Scenario]) -> tuple[MetricCard, ...]:
    """The metrics of all scenarios and of the controls of their attacks, each name once.

    Args:
        scenarios: with their axes expanded.

    Raises:
        BadValue: a metric has no description.
    """
    cards: dict[str, MetricCard] = {}
    for scenario in scenarios:
        for plugin in _metrics_of(scenario):
            label = plugin.label or plugin.name
            if label not in cards:
                cards[label] = _metric_card(plugin)
    return tuple(cards.values())


def _metrics_of(scenario: Scenario) -> Iterator[Plugin]:
    yield from scenario.audit.metrics
    for attack in scenario.attacks:
        own = card("attacks", attack.name)
        if own.control:
            yield Plugin(name=own.control_metric)


def _attack_card(attack: Plugin) -> AttackCard:
    own = card("attacks", attack.name)
    return AttackCard(
        label=attack.label or attack.name,
        name=attack.name,
        title=own.title or attack.name,
        summary=own.summary,
        source=own.source,
    )


def _metric_card(plugin: Plugin) -> MetricCard:
    """The card of a metric; with a label of its own, its arguments stand beside its name."""
    metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
    if not isinstance(getattr(metric, "wording", None), Wording):
        raise BadValue(
            f"metric '{plugin.name}'",
            needs="a subclass of glasshouse.metrics.base.Metric with the attribute 'wording'",
            got=type(metric).__name__,
            fix="say how a report shows the number: docs/plugins/metric.md has an example",
        )
    wording = metric.wording
    low, high = wording.range
    # Landmarks run the metric's own code: where that fails, the card does without them.
    pictures = guarded.call("metric", plugin.name, partial(landmarks, metric), about="on example pictures")
    settings = ", ".join(f"{name} = {value}" for name, value in plugin.arguments.items())
    return MetricCard(
        name=plugin.label or plugin.name,
        label=f"{wording.label} ({settings})" if plugin.label and settings else wording.label,
        sentence=wording.sentence,
        explanation=wording.explanation,
        display=wording.display,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        higher_leaks=wording.higher_leaks,
        unit=wording.unit,
        severity=wording.severity,
        order=wording.order,
        note=wording.note,
        private=wording.private,
        headline=wording.headline,
        landmarks=() if isinstance(pictures, Refusal) else tuple(pictures),
    )


def threat_card(scenario: Scenario, cells: Sequence[CellResult]) -> ThreatCard:
    """The card of one scenario; the states of its policy's limits are reported separately (``policy``)."""
    # Facts are of the data that were read; where no cell got so far, the scenario's words stand in.
    facts = cells[0].facts if cells else None
    attacks = [attack_of(a) for a in scenario.attacks]
    malicious = "manipulates what it sends (malicious)"
    conduct = malicious if scenario.threat.changes else "only reads (honest-but-curious)"
    return ThreatCard(
        scenario=scenario.name,
        summary=scenario.summary,
        federation=_federation(scenario),
        adversary=f"a {scenario.threat.role} that {conduct}",
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
        things=facts.things if facts else "",
    )


def _federation(scenario: Scenario) -> str:
    f = scenario.federation
    batch = _count_of(f.batch_size, "example")
    epochs = f"{_count_of(f.local_epochs, 'local epoch')} in batches of {batch}"
    own = {"passes": f.training.epochs_by_client, "batch sizes": f.training.batch_sizes_by_client}
    differ = [f"{noun} {', '.join(map(str, sizes))}" for noun, sizes in own.items() if sizes]
    epochs += f" (of their own, in turn: {'; '.join(differ)})" if differ else ""
    if f.training.local_steps is not None:
        epochs = f"{_count_of(f.training.local_steps, 'local step')} of {batch}"
    steps = f"one batch of {batch}" if f.kind == "gradient" else epochs
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


def _setup(scenario: Scenario) -> str:
    """The federation's size and what is visible of its messages, in a few plain words."""
    f = scenario.federation
    visibility = (
        "only the sum of their messages is seen" if f.secure_sum else "each client's messages are seen"
    )
    return f"{_count_of(f.clients, 'client')}, {_count_of(f.rounds, 'round')}; {visibility}"


def _defenses(scenario: Scenario) -> dict[str, str]:
    """What each defence of the scenario does; what those of other packages say is quoted as their words."""
    names = dict.fromkeys(d.name for cell in expand(scenario) for d in cell.scenario.defenses)
    return {name: _said(card("defenses", name).summary, load("defenses", name)) for name in names}


def _said(summary: str, kind: object) -> str:
    return f"says of itself “{summary.replace(';', ',')}”" if is_foreign(kind) else summary


def _advice(scenario: Scenario) -> str:
    """What to try first without a defence, its name behind it: it has a proof for what clients send."""
    advice = {
        "logits": "send the most likely class alone (label_only)",
        "parameters": "clip and add noise while a client trains (dp_sgd)",
    }
    usual = "limit each update's size and add noise (gaussian_mechanism)"
    own = traits_if_known(scenario.federation.protocol).advice
    return own or advice.get(scenario.federation.kind, usual)


def _notes(scenario: Scenario) -> tuple[str, ...]:
    if not scenario.tuning.source:
        return scenario.audit.auto
    on = f"{scenario.tuning.source} {scenario.tuning.split}".strip()
    tuned = f"Defaults were tuned on {on}; other data judge here. {scenario.tuning.note}".strip()
    return (tuned, *scenario.audit.auto)


def chosen_words(attack: Plugin) -> str:
    """How the number was chosen, in words."""
    _, budget = declared(attack)
    restarts = 1 if budget is None else budget.restarts
    if restarts > 1:
        return f"best of {restarts} restarts, chosen by the attack's own loss"
    return "a single run"


def given_words(scenario: Scenario, attack: Plugin) -> tuple[str, ...]:
    """The grants of the scenario that this attack uses."""
    needs, _ = declared(attack)
    grants = [name for name, value in scenario.grants.model_dump().items() if value]
    derives_sums = scenario.threat.role != "server" and "aggregate" in needs.sees | needs.any_of
    derived = {"cohorts"} if derives_sums else set()
    return tuple(name for name in grants if name in needs.grants | needs.uses | derived)


def place_of(cell: Cell) -> dict[str, Any]:
    """The cell that a result belongs to, in the fields of its record."""
    return {
        "scenario": cell.scenario.name,
        "cell": cell.hash,
        "axes": dict(cell.axes),
        "defenses": defense_labels(cell.scenario),
    }


def defense_labels(scenario: Scenario) -> tuple[str, ...]:
    """The defences in words, in order."""
    return tuple(d.label or str(label_of({"name": d.name, **d.arguments})) for d in scenario.defenses)

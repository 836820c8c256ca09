"""Descriptions of the attacks and metrics of a run, for the report."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from glasshouse.errors import BadValue
from glasshouse.metrics.base import Metric
from glasshouse.metrics.landmarks import landmarks
from glasshouse.registry import card, create, load
from glasshouse.results.cards import AttackCard, MetricCard
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin


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
        for name, arguments in _metrics_of(scenario):
            if name not in cards:
                cards[name] = _metric_card(name, create(load("metrics", name), arguments))
    return tuple(cards.values())


def _metrics_of(scenario: Scenario) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((m.name, m.arguments) for m in scenario.audit.metrics)
    for attack in scenario.attacks:
        own = card("attacks", attack.name)
        if own.control:
            yield own.control_metric, {}


def _attack_card(attack: Plugin) -> AttackCard:
    own = card("attacks", attack.name)
    return AttackCard(
        label=attack.label or attack.name,
        name=attack.name,
        title=own.title or attack.name,
        summary=own.summary,
        source=own.source,
    )


def _metric_card(name: str, metric: Metric) -> MetricCard:
    try:
        wording, (low, high) = metric.wording, metric.range
    except AttributeError as error:
        raise BadValue(
            f"metric '{name}'",
            needs="the class attributes 'wording', of type glasshouse.metrics.base.Wording, and 'range'",
            got=str(error),
            fix="say how a report shows the number: docs/plugins.md has an example",
        ) from error
    return MetricCard(
        name=name,
        label=wording.label,
        sentence=wording.sentence,
        explanation=wording.explanation,
        display=wording.display,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        higher_leaks=metric.higher_leaks,
        unit=metric.unit,
        severity=wording.severity,
        order=wording.order,
        note=wording.note,
        private=wording.private,
        landmarks=tuple(landmarks(metric)),
    )

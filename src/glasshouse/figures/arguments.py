"""Charts of a metric against a numeric argument of an attack or a defence, if the argument was varied.

A line joins findings that differ only in this argument: attacks of one scenario, or cells of an axis such as
``attacks.*.prior_weight``, ``defenses.0.std`` or ``defenses``. A chart of an attack has one line per
combination of its other arguments, a chart of a defence one line per attack.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.figures.base import AttackEvidence, CellEvidence, PluginSettings
from glasshouse.metrics.base import Metric
from glasshouse.registry import Card
from glasshouse.results.exhibits import Place, Series, line, lines
from glasshouse.results.records import Exhibit, Finding

FEWEST: Final = 3
"""Minimal number of argument values for a line."""


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """One finding with the settings of its attack.

    Attributes:
        attack: registered name and all arguments.
        axes: axes of the cell, without those inside ``attacks``.
        finding: the finding.
        own: score of the attack's own prior image without any update; None without one.
        defenses: defences of the cell, in order.
    """

    attack: PluginSettings
    axes: Mapping[str, Any]
    finding: Finding
    own: float | None
    defenses: tuple[PluginSettings, ...] = ()


Family = dict[float, Point]
"""Points by the value of the varied argument."""
Variation = tuple[str, str, float, str, str, Point]
"""A plug-in, a numeric argument, its value; texts of what a chart's and a line's points share; a point."""


@final
@dataclass(frozen=True, kw_only=True)
class Arguments:
    """One chart per plug-in, argument, metric and setting with at least one line of enough points."""

    card: ClassVar[Card] = Card(summary="a metric against an argument that was varied")
    reads: ClassVar[frozenset[type]] = frozenset({object})  # claims of any type

    def collect(self, cell: CellEvidence) -> Iterator[Point]:
        for attack in cell.attacks:
            for finding in attack.findings:
                yield Point(
                    attack=attack.settings,
                    axes=_without("attacks", cell.place.axes),
                    finding=finding,
                    own=_own(cell.metrics[finding.metric], attack),
                    defenses=cell.defenses,
                )

    def draw_run(self, collected: Sequence[Point]) -> Iterator[Exhibit]:
        for attack, name, long in _charts(v for point in collected for v in _of_attack(point)):
            point = _any(long[0])
            where = [] if "defenses" in point.axes else list(point.finding.defenses)
            yield _chart(attack, name, dict(zip(_names(attack, long), long, strict=True)), where)
        for varied, name, long in _charts(v for point in collected for v in _of_defenses(point)):
            where = [d.name for d in _any(long[0]).defenses if d.name != varied]
            yield _chart(varied, name, _label_families(long), where)


def _own(metric: Metric, attack: AttackEvidence) -> float | None:
    """Score of the attack's own prior images: mean over classes and federations; None without any."""
    if metric.claim != "class_representatives" or metric.reads != "inputs":
        return None
    scores: list[float] = []
    for group in attack.groups:
        for claim in group.longest(ClassRepresentatives):
            if group.prior_samples is not None:
                images = group.prior_samples.inputs[claim.labels]
                scores += metric.score(images, claim.labels, context=group.context).tolist()
    return float(np.mean(scores)) if scores else None


def _of_attack(point: Point) -> Iterator[Variation]:
    for name, value, rest in _numbers(point.attack.arguments):
        setting = _text({**point.axes, "defenses": point.finding.defenses})
        yield point.attack.name, name, value, setting, _text(rest), point


def _of_defenses(point: Point) -> Iterator[Variation]:
    axes, attack = _without("defenses", point.axes), _text([point.finding.attack, point.attack.arguments])
    for position, defense in enumerate(point.defenses):
        others = [(d.name, d.arguments) for i, d in enumerate(point.defenses) if i != position]
        for name, value, rest in _numbers(defense.arguments):
            setting = _text([axes, position, others, rest])
            yield defense.name, name, value, setting, attack, replace(point, axes=axes)


def _charts(variations: Iterable[Variation]) -> Iterator[tuple[str, str, list[Family]]]:
    """Plug-in, argument, and lines of enough points, of every chart that has one."""
    charts: dict[tuple[str, ...], dict[str, Family]] = {}
    for plugin, name, value, setting, family, point in variations:
        of = (point.finding.scenario, plugin, name, point.finding.metric, setting)
        charts.setdefault(of, {}).setdefault(family, {}).setdefault(value, point)
    for (_, plugin, name, _, _), families in charts.items():
        long = [family for family in families.values() if len(family) >= FEWEST]
        if long:
            yield plugin, name, long


def _chart(plugin: str, argument: str, families: Mapping[str, Family], where: Sequence[str]) -> Exhibit:
    series: list[Series] = []
    beside: list[Series] = []
    for number, (name, family) in enumerate(families.items()):
        xs = sorted(family)
        findings, own = [family[x].finding for x in xs], [family[x].own for x in xs]
        band = ([f.low for f in findings], [f.high for f in findings])
        series.append(line(name, xs, [f.value for f in findings], band=band))
        before = [f.baseline_value if o is None else o for f, o in zip(findings, own, strict=True)]
        source = "the null" if None in own else "its prior image alone"
        beside.append(line(f"{name}: {source}", xs, before, of=number))
    first = _any(next(iter(families.values())))
    metric = _words(first.finding.metric).replace("ssim", "SSIM")
    axes = Place(scenario=first.finding.scenario, axes=first.axes).words
    setting = ", ".join([axes, *where] if axes else where)
    return lines(
        Place(scenario=first.finding.scenario),
        f"{plugin}: {metric} against {_words(argument)}" + (f" ({setting})" if setting else ""),
        "All else is held fixed; bands are 95 % intervals; the values stand at equal distances. "
        "Dotted: what the attacker had before it read an upload.",
        labels=(_words(argument), metric),
        series=series + beside,
        spacing="even",
    )


def _any(family: Family) -> Point:
    return next(iter(family.values()))


def _label_families(families: Sequence[Family]) -> dict[str, Family]:
    """Lines by the label of their attack, extended by differing arguments if labels repeat."""
    groups: dict[str, list[Family]] = {}
    for family in families:
        groups.setdefault(_any(family).finding.attack, []).append(family)
    by_name = {}
    for label, same in groups.items():
        for name, family in zip(_names(label, same), same, strict=True):
            by_name[name if len(same) == 1 else f"{label}, {name}"] = family
    return by_name


def _names(attack: str, families: Sequence[Family]) -> list[str]:
    """Names from the first argument that distinguishes all lines, or from all that differ if none does."""
    if len(families) == 1:
        return [attack]
    settings = [_any(family).attack.arguments for family in families]
    values = {k: len({_text(s[k]) for s in settings}) for k in settings[0]}
    differing = [k for k, number in values.items() if number > 1]
    single = [k for k, number in values.items() if number == len(settings)]
    keys = single[:1] or differing
    return [_described(s, keys) for s in settings]


def _described(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{_words(key)} = {settings[key]}" for key in keys)


def _numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Name and value of every numeric argument, and the other arguments."""
    for name, value in settings.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value), {k: v for k, v in settings.items() if k != name}


def _without(part: str, axes: Mapping[str, Any]) -> dict[str, Any]:
    """The axes outside ``part`` of the scenario."""
    return {path: value for path, value in axes.items() if path.split(".")[0] != part}


def _text(value: object) -> str:
    """Canonical text of a setting, so that equal settings compare equal (also 1 and 1.0)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(float(value))
    if isinstance(value, Mapping):
        return json.dumps({str(k): _text(v) for k, v in value.items()}, sort_keys=True)
    if isinstance(value, (list, tuple)):
        return json.dumps([_text(v) for v in value])
    return repr(value)


def _words(name: str) -> str:
    return name.replace("_", " ")

"""Charts of a metric against a numeric argument of an attack or of a defence, drawn where it was varied.

A line joins findings that differ in this argument alone: attacks of one scenario, or cells of an axis such
as ``attacks.*.prior_weight``, ``defenses.0.std`` or ``defenses``. A chart of an attack has a line per other
setting of it, a chart of a defence a line per attack.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.judge import Judge
from glasshouse.audit.scoring.score import judged
from glasshouse.metrics.base import Metric
from glasshouse.registry import arguments, load
from glasshouse.results.records import Exhibit, Finding
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin

FEWEST: Final = 3
"""Values of an argument that make a line."""


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """One finding with the settings of its attack.

    Attributes:
        attack: registered name. arguments: all of them, defaults included.
        axes: of the cell, without those inside ``attacks``. finding: the number.
        own: what the prior image that the attack filed scores by itself, None without one.
        defenses: those of the cell, in order.
    """

    attack: str
    arguments: Mapping[str, Any]
    axes: Mapping[str, Any]
    finding: Finding
    own: float | None
    defenses: Sequence[Plugin] = ()


Family = dict[float, Point]
"""Points by the value of the argument that is varied."""


def points(
    cell: Cell,
    attack: Plugin,
    findings: Sequence[Finding],
    outcomes: Mapping[str, Sequence[Outcome]],
    judges: Mapping[str, Judge],
) -> Iterator[Point]:
    """The findings of one attack in one cell; ``outcomes`` and ``judges`` by folder."""
    settings = _settings("attacks", attack)
    axes = _without("attacks", cell.axes)
    metrics = {plugin.name: plugin for plugin in cell.scenario.audit.metrics}
    for finding in findings:
        plugin = metrics[finding.metric]
        yield Point(
            attack=attack.name,
            arguments=settings,
            axes=axes,
            finding=finding,
            own=_own(load("metrics", plugin.name)(**plugin.arguments), outcomes, judges),
            defenses=cell.scenario.defenses,
        )


def _own(
    metric: Metric, outcomes: Mapping[str, Sequence[Outcome]], judges: Mapping[str, Judge]
) -> float | None:
    """Mean over classes and folders."""
    if metric.claim != "class_representatives" or metric.reads != "inputs":
        return None
    found: list[float] = []
    for folder, every in outcomes.items():
        judge = judges[folder]
        for claim in (c for o in every for c in judged(o.claims) if isinstance(c, ClassRepresentatives)):
            if judge.draws is not None:
                shown = judge.draws.inputs[claim.labels]
                found += metric.score(shown, claim.labels, context=judge.context).tolist()
    return float(np.mean(found)) if found else None


def argument_exhibits(every: Sequence[Point]) -> list[Exhibit]:
    """One chart per plugin, argument, metric and setting in which some line has enough points."""
    return [*_of_attacks(every), *_of_defenses(every)]


def _of_attacks(every: Sequence[Point]) -> Iterator[Exhibit]:
    charts: dict[tuple[str, ...], dict[str, Family]] = {}
    for point in every:
        for name, value in _numbers(point.arguments):
            f = point.finding
            setting = _text({**point.axes, "defenses": f.defenses})
            families = charts.setdefault((f.scenario, point.attack, name, f.metric, setting), {})
            rest = _text({k: v for k, v in point.arguments.items() if k != name})
            families.setdefault(rest, {}).setdefault(value, point)
    for (_, attack, name, _, _), families in charts.items():
        lines = [family for family in families.values() if len(family) >= FEWEST]
        if lines:
            point = _any(lines[0])
            where = [] if "defenses" in point.axes else list(point.finding.defenses)
            yield _chart(attack, name, dict(zip(_names(attack, lines), lines, strict=True)), where)


def _of_defenses(every: Sequence[Point]) -> Iterator[Exhibit]:
    charts: dict[tuple[str, ...], dict[str, Family]] = {}
    for point in every:
        axes = _without("defenses", point.axes)
        for position, defense in enumerate(point.defenses):
            settings = _settings("defenses", defense)
            others = [(d.name, d.arguments) for i, d in enumerate(point.defenses) if i != position]
            for name, value in _numbers(settings):
                f = point.finding
                rest = {k: v for k, v in settings.items() if k != name}
                setting = _text([axes, position, others, rest])
                families = charts.setdefault((f.scenario, defense.name, name, f.metric, setting), {})
                line = _text([f.attack, point.arguments])
                families.setdefault(line, {}).setdefault(value, dataclasses.replace(point, axes=axes))
    for (_, varied, name, _, _), families in charts.items():
        lines = [family for family in families.values() if len(family) >= FEWEST]
        if lines:
            where = [d.name for d in _any(lines[0]).defenses if d.name != varied]
            yield _chart(varied, name, _labelled(lines), where)


def _chart(plugin: str, argument: str, lines: Mapping[str, Family], where: Sequence[str]) -> Exhibit:
    series: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for number, (name, family) in enumerate(lines.items()):
        xs = sorted(family)
        found, own = [family[x].finding for x in xs], [family[x].own for x in xs]
        low, high = [f.low for f in found], [f.high for f in found]
        series.append({"name": name, "x": xs, "y": [f.value for f in found], "low": low, "high": high})
        before = [f.baseline_value if o is None else o for f, o in zip(found, own, strict=True)]
        said = "the null" if None in own else "its prior image alone"
        beside.append({"name": f"{name}: {said}", "x": xs, "y": before, "of": number})
    first = _any(next(iter(lines.values())))
    metric = _words(first.finding.metric).replace("ssim", "SSIM")
    where = [f"{path.split('.')[-1]} = {value}" for path, value in first.axes.items()] + list(where)
    return Exhibit(
        kind="lines",
        scenario=first.finding.scenario,
        title=f"{plugin}: {metric} against {_words(argument)}" + (f" ({', '.join(where)})" if where else ""),
        caption="All else is held fixed; bands are 95 % intervals; the values stand at equal distances. "
        "Dotted: what the attacker had before it read an upload.",
        data={"x_label": _words(argument), "y_label": metric, "x_even": True, "series": series + beside},
    )


def _any(family: Family) -> Point:
    return next(iter(family.values()))


def _labelled(lines: Sequence[Family]) -> dict[str, Family]:
    """Lines by the label of their attack, and by what differs where several have the same."""
    groups: dict[str, list[Family]] = {}
    for line in lines:
        groups.setdefault(_any(line).finding.attack, []).append(line)
    named = {}
    for label, same in groups.items():
        for name, line in zip(_names(label, same), same, strict=True):
            named[name if len(same) == 1 else f"{label}, {name}"] = line
    return named


def _names(attack: str, families: Sequence[Family]) -> list[str]:
    """The first argument that tells all lines apart; all that differ, where no single one does."""
    if len(families) == 1:
        return [attack]
    settings = [_any(family).arguments for family in families]
    differing = [k for k in settings[0] if len({_text(s[k]) for s in settings}) > 1]
    single = [k for k in differing if len({_text(s[k]) for s in settings}) == len(settings)]
    shown = single[:1] or differing
    return [", ".join(f"{_words(k)} = {s[k]}" for k in shown) for s in settings]


def _settings(group: str, plugin: Plugin) -> dict[str, Any]:
    """All arguments of a plugin, defaults included."""
    defaults = {name: p.default for name, p in arguments(load(group, plugin.name)).items()}
    return defaults | plugin.arguments


def _numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in settings.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value)


def _without(part: str, axes: Mapping[str, Any]) -> dict[str, Any]:
    """The axes that do not lie inside ``part`` of the scenario."""
    return {path: value for path, value in axes.items() if path.split(".")[0] != part}


def _text(value: object) -> str:
    """Equal settings as equal text: 1 and 1.0 are the same."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(float(value))
    if isinstance(value, Mapping):
        return json.dumps({str(k): _text(v) for k, v in value.items()}, sort_keys=True)
    if isinstance(value, (list, tuple)):
        return json.dumps([_text(v) for v in value])
    return repr(value)


def _words(name: str) -> str:
    return name.replace("_", " ")

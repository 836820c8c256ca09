"""The two figures of every audit: leakage by defence, and utility against leakage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from markupsafe import Markup

from glasshouse.report import numbers, svg, words
from glasshouse.report.readings import Reading, UtilityReading
from glasshouse.results.cards import MetricCard
from glasshouse.results.judgement import OUT, expected_by_luck
from glasshouse.results.records import Verdict
from glasshouse.results.rows import grouped

NO_GUARANTEE = "no guarantee covers this: only the attacks that were tried limit what came out"


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One finding as a row of a figure: its label, its marker on the axis, its numbers."""

    label: str
    notes: str
    track: Markup
    reading: Reading
    verdict: Verdict


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """The rows of one defence; ``cost``: its description and the remaining utility, in words."""

    defense: str
    cost: str
    rows: tuple[Row, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """Leakage by defence for one metric in one setting.

    Attributes:
        card: the metric.
        setting: values of the axes; empty if there are none.
        direction: which direction is worse.
        unit: of the values and the axis.
        common: notes that hold for every row.
        axis: tick labels.
        groups: the rows by defence.
        leaks: number of rows that leak.
        total: number of rows.
    """

    card: MetricCard
    setting: str
    direction: str
    unit: str
    common: str
    axis: Markup
    groups: tuple[Group, ...]
    leaks: int
    total: int


def panels(readings: Sequence[Reading], utility: Sequence[UtilityReading]) -> list[Panel]:
    """One panel per metric and setting of a scenario; the metrics that sentences quote come first.

    Panels of the same metric share an axis.
    """
    sets = grouped(readings, lambda r: (r.quoted, r.axes, r.finding.protocol))
    several = len({protocol for _, _, protocol in sets}) > 1
    costs: dict[str, str] = {}
    for u in utility:
        costs.setdefault(u.utility.cell, f"{u.utility.metric} {u.text}")
    drawn = []
    for (metric, _, protocol), rows in sorted(sets.items(), key=lambda item: item[0][0]):
        alike = [r for r in readings if r.quoted == metric]
        drawn.append(_panel(rows, alike, costs, protocol if several else ""))
    return drawn


def _panel(
    readings: Sequence[Reading], alike: Sequence[Reading], costs: Mapping[str, str], protocol: str
) -> Panel:
    """One panel.

    Args:
        readings: its rows.
        alike: all of the metric, whose axis the panel shares.
        costs: what the model of a cell is worth, in words.
        protocol: its name; empty: there is one.
    """
    first, notes = readings[0], {id(r): _notes(r) for r in readings}
    # What every row would say stands once, above them.
    common = [note for note in notes[id(first)] if all(note in own for own in notes.values())]
    apart = {}
    for key, own_notes in notes.items():
        apart[key] = "; ".join(note for note in own_notes if note not in common)
    scale, groups = svg.scale_of([r.finding for r in alike], first.card), []
    for defenses in sorted(dict.fromkeys(r.finding.defenses for r in readings), key=bool):
        own = [r for r in readings if r.finding.defenses == defenses]
        head = own[0]
        # The defences' description stands beside the heading if that is only a label.
        parts = [
            "" if head.described == head.protection else head.described,
            costs.get(head.finding.cell, ""),
        ]
        rows = [
            Row(
                label=r.attack,
                notes=apart[id(r)],
                track=svg.track(r.finding, scale),
                reading=r,
                verdict=r.finding.verdict,
            )
            for r in own
        ]
        cost = "; ".join(part for part in parts if part)
        groups.append(Group(defense=head.protection, cost=cost, rows=tuple(rows)))
    return Panel(
        card=first.card,
        setting=", ".join(part for part in (protocol, first.axes) if part),
        direction="further right is worse" if first.finding.higher_leaks else "further left is worse",
        unit=numbers.unit(first.card, first.finding.unit_of_value).strip(),
        common="; ".join(common),
        axis=svg.axis(scale, labels=svg.tick_names(scale, first.card)),
        groups=tuple(groups),
        leaks=sum(r.finding.verdict in OUT for r in readings),
        total=len(readings),
    )


def _notes(r: Reading) -> list[str]:
    """The caveats shown next to a number: sample size, selection, grants, null baseline, subject."""
    f, bound = r.finding, NO_GUARANTEE
    if f.bound is not None:
        word_of = f", by the word of {words.join_words(f.bound.word_of)}" if f.bound.word_of else ""
        bound = f"red line: the most that any attack could get under ε = {f.bound.epsilon:.3g}{word_of}"
    notes = [
        r.sample,
        f.chosen,
        f"given {r.given}" if r.given else "",
        f"compared with {r.guess}",
        f"about {f.about}" if f.about else "",
        "would be expected by luck among this many findings" if expected_by_luck(f) else "",
        bound,
    ]
    return [note for note in notes if note]


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """One cell in the utility–leakage plane, numbered as in the figure.

    ``remark``: "at chance" if the model is of no use, else empty.
    """

    number: int
    name: str
    utility: str
    remark: str
    epsilon: str
    attack: str
    gain: str
    verdict: Verdict


@final
@dataclass(frozen=True, kw_only=True)
class Trade:
    """Utility against leakage: the figure and its legend. ``x``, ``y``: axis labels."""

    x: str
    y: str
    plot: Markup
    points: tuple[Point, ...]


def trade(readings: Sequence[Reading], utility: Sequence[UtilityReading]) -> Trade | None:
    """Utility against the gain of the strongest attack, per cell; None if either is missing.

    One metric is shown: the first in quoting order among those measured in cells that also have a utility.
    Attacks without power are ignored when choosing the strongest.
    """
    measured = {u.utility.cell for u in utility}
    usable = [
        r
        for r in readings
        if r.finding.cell in measured and r.finding.verdict != "no power" and r.card.private
    ]
    if not usable:
        return None
    # One axis can carry one metric.
    metric = min(r.quoted for r in usable)
    pairs = []
    for u in sorted(utility, key=lambda u: -u.utility.value):
        rows = [r for r in usable if r.finding.cell == u.utility.cell and r.quoted == metric]
        if rows:
            pairs.append((u, max(rows, key=lambda r: r.finding.gain)))
    card, points = pairs[0][1].card, [_point(i, u, r) for i, (u, r) in enumerate(pairs, start=1)]
    return Trade(
        x=f"held-out {pairs[0][0].utility.metric}",
        y=f"gain in {card.label} of the strongest attack over guessing without the update",
        plot=svg.scatter([(u.utility, r.finding) for u, r in pairs], card),
        points=tuple(points),
    )


def _point(number: int, u: UtilityReading, r: Reading) -> Point:
    epsilon, delta = u.utility.epsilon, u.utility.delta
    guarantee = "" if epsilon is None else f"ε = {numbers.plain(epsilon)}"
    if epsilon is not None and delta is not None:
        guarantee += f", δ = {delta:g}"
    return Point(
        number=number,
        name=u.protection + (f" ({u.axes})" if u.axes else ""),
        utility=u.text,
        remark="at chance" if u.at_chance else "",
        epsilon=guarantee,
        attack=r.attack,
        gain=f"{r.gain} {r.gain_interval}",
        verdict=r.finding.verdict,
    )

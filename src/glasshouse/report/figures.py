"""The two figures of every audit: leakage by defence, and utility against leakage."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from markupsafe import Markup

from glasshouse.report import numbers, readings, svg, words
from glasshouse.report.cards import ACCURACY, Cards
from glasshouse.report.verdicts import strength
from glasshouse.results.cards import MetricCard
from glasshouse.results.judgement import OUT, expected_by_luck
from glasshouse.results.records import Finding, Utility, Verdict
from glasshouse.results.rows import grouped

ROW = 30.0  # height of a row, pixels
DISC = 9.0  # radius of a numbered disc, pixels


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One finding as a row of a figure: its label, its marker on the axis, its numbers."""

    label: str
    notes: str
    track: Markup
    reading: readings.Reading
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


def panels(findings: Sequence[Finding], utility: Sequence[Utility], cards: Cards) -> list[Panel]:
    """One panel per metric and setting of a scenario; the metrics that sentences quote come first.

    Panels of the same metric share an axis.
    """
    sets = grouped(findings, lambda f: (cards.rank(f.metric), words.setting(f.axes), f.protocol))
    several = len({f.protocol for f in findings}) > 1
    scales = {
        rank: scale_of([f for f in findings if f.metric == rank[-1]], cards.metric(rank[-1]))
        for rank, _, _ in sets
    }
    order = sorted(sets, key=lambda key: key[0])
    return [_panel(sets[k], utility, scales[k[0]], k[2] if several else "", cards) for k in order]


def _panel(
    findings: Sequence[Finding], utility: Sequence[Utility], scale: svg.Scale, protocol: str, cards: Cards
) -> Panel:
    first, card = findings[0], cards.metric(findings[0].metric)
    common = _common(findings)

    def row(finding: Finding) -> Row:
        return Row(
            label=cards.attack(finding.attack),
            notes="; ".join(note for note in _notes(finding) if note not in common),
            track=track(finding, scale),
            reading=readings.read(finding, cards),
            verdict=finding.verdict,
        )

    bare_first = sorted(findings, key=lambda f: bool(f.defenses))
    groups = tuple(
        Group(
            defense=words.protection(defenses, own[0].axes),
            cost=_cost(own[0], utility),
            rows=tuple(map(row, own)),
        )
        for defenses, own in grouped(bare_first, lambda f: f.defenses).items()
    )
    return Panel(
        card=card,
        setting=", ".join(part for part in (protocol, words.setting(first.axes)) if part),
        direction="further right is worse" if first.higher_leaks else "further left is worse",
        unit=numbers.unit(card, first.unit_of_value).strip(),
        common="; ".join(common),
        axis=svg.axis(scale, labels=tick_names(scale, card)),
        groups=groups,
        leaks=sum(f.verdict in OUT for f in findings),
        total=len(findings),
    )


def _notes(f: Finding) -> list[str]:
    """The caveats shown next to a number: sample size, selection, grants, null baseline, subject."""
    grants = f"given {words.grants(f.given)}" if f.given else ""
    null = f"compared with {words.null(f.baseline)}"
    luck = "would be expected by luck among this many findings" if expected_by_luck(f) else ""
    about = f"about {f.about}" if f.about else ""
    return [
        n for n in (words.count(f.n, f.unit), f.chosen, grants, null, about, luck, strength.brief(f)) if n
    ]


def _common(findings: Sequence[Finding]) -> list[str]:
    """Notes shared by all rows; they are shown once, above the rows."""
    rest = [set(_notes(f)) for f in findings]
    return [note for note in _notes(findings[0]) if all(note in other for other in rest)]


def scale_of(findings: Sequence[Finding], card: MetricCard) -> svg.Scale:
    """A scale from 0 to the metric's upper limit, even if an interval exceeds it; else fitted to the data."""
    values = [v for f in findings for v in (f.value, f.low, f.high, f.baseline_value)]
    values += [f.bound.value for f in findings if f.bound is not None]
    if card.high is not None:
        return svg.scale([min(v, card.high) for v in values], include=(0.0, card.high), count=4)
    return svg.scale(values, count=4)


def track(f: Finding, scale: svg.Scale) -> Markup:
    """The null's line, the confidence interval and the marker of one finding."""
    middle = ROW / 2
    null, value = svg.percent(scale(f.baseline_value)), svg.percent(scale(f.value))
    low, high = svg.percent(scale(f.low)), svg.percent(scale(f.high))
    return svg.tag(
        "svg",
        *svg.rules(scale, height=ROW),
        svg.tag("line", class_="null", x1=null, x2=null, y1=0, y2=ROW),
        *strength.bound_line(f, scale, height=ROW),
        svg.tag("line", class_="whisker", x1=low, x2=high, y1=middle, y2=middle),
        svg.tag("svg", svg.mark(f.verdict), class_="at", x=value, y=middle),
        class_=f"track {svg.slug(f.verdict)}",
        width="100%",
        height=ROW,
        aria_hidden="true",
    )


def _cost(f: Finding, utility: Iterable[Utility]) -> str:
    """The defence's description, if the heading is only a label, and the remaining utility."""
    own = words.under(f.defenses)
    parts = [own] if own != words.protection(f.defenses, f.axes) else []
    parts += [f"{u.metric} {readings.utility(u)}" for u in utility if u.cell == f.cell][:1]
    return "; ".join(parts)


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


def trade(findings: Sequence[Finding], utility: Sequence[Utility], cards: Cards) -> Trade | None:
    """Utility against the gain of the strongest attack, per cell; None if either is missing.

    One metric is shown: the first in quoting order among those measured in cells that also have a utility.
    Attacks without power are ignored when choosing the strongest.
    """
    names = {u.cell for u in utility}
    usable = [
        f for f in findings if f.cell in names and f.verdict != "no power" and cards.metric(f.metric).private
    ]
    if not usable:
        return None
    metric = min({f.metric for f in usable}, key=cards.rank)
    candidates = [(u, [f for f in usable if f.cell == u.cell and f.metric == metric]) for u in utility]
    pairs = [(u, max(fs, key=lambda f: f.gain)) for u, fs in candidates if fs]
    pairs.sort(key=lambda pair: -pair[0].value)
    points = tuple(_point(i, u, f, cards) for i, (u, f) in enumerate(pairs, start=1))
    card = cards.metric(metric)
    return Trade(
        x=f"held-out {pairs[0][0].metric}",
        y=f"gain in {card.label} of the strongest attack over guessing without the update",
        plot=_scatter(pairs, card),
        points=points,
    )


def _point(number: int, u: Utility, f: Finding, cards: Cards) -> Point:
    guarantee = "" if u.epsilon is None else f"ε = {numbers.plain(u.epsilon)}"
    if u.epsilon is not None and u.delta is not None:
        guarantee += f", δ = {u.delta:g}"
    axes, reading = words.setting(u.axes), readings.read(f, cards)
    return Point(
        number=number,
        name=words.protection(u.defenses, u.axes) + (f" ({axes})" if axes else ""),
        utility=readings.utility(u),
        remark="at chance" if readings.at_chance(u) else "",
        epsilon=guarantee,
        attack=cards.attack(f.attack),
        gain=f"{reading.gain} {reading.gain_interval}",
        verdict=f.verdict,
    )


def _scatter(pairs: Sequence[tuple[Utility, Finding]], card: MetricCard) -> Markup:
    across = svg.scale([v for u, _ in pairs for v in (u.low, u.high)], count=4)
    up = svg.scale([v for _, f in pairs for v in (f.gain_low, f.gain_high)], include=(0.0,), count=4)
    zero = svg.short(svg.down(up(0.0)))
    places = _dodge([(across(u.value), svg.down(up(f.gain))) for u, f in pairs])
    return svg.chart(
        across,
        up,
        svg.tag("line", class_="null", x1=0, x2="100%", y1=zero, y2=zero),
        *(_cross(u, f, across, up) for u, f in pairs),
        *(_disc(i, p, f.verdict) for i, (p, (_, f)) in enumerate(zip(places, pairs, strict=True), start=1)),
        label=f"Utility against gain in {card.label}: {len(pairs)} settings, listed in the following table.",
        x_labels=tick_names(across, ACCURACY),
        y_labels=tick_names(up, card),
    )


def _cross(u: Utility, f: Finding, across: svg.Scale, up: svg.Scale) -> Markup:
    """Error bars of a point: the intervals of utility and gain."""
    x, y = svg.percent(across(u.value)), svg.short(svg.down(up(f.gain)))
    low, high = svg.short(svg.down(up(f.gain_low))), svg.short(svg.down(up(f.gain_high)))
    left, right = svg.percent(across(u.low)), svg.percent(across(u.high))
    return svg.tag(
        "g",
        svg.tag("line", class_="whisker", x1=left, x2=right, y1=y, y2=y),
        svg.tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high),
        class_=svg.slug(f.verdict),
    )


def _dodge(places: Sequence[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """Shift overlapping discs sideways: (share of the width, pixels down, pixels to the right).

    The width is not known here; at 600 pixels or more, no disc covers another.
    """
    discs: list[tuple[float, float, float]] = []
    for x, y in places:
        shift = 0.0
        while any(math.hypot(600 * (x - a) + shift - c, y - b) < 2 * DISC - 1 for a, b, c in discs):
            shift += DISC
        discs.append((x, y, shift))
    return discs


def _disc(number: int, place: tuple[float, float, float], kind: str) -> Markup:
    x, y, aside = svg.percent(place[0]), place[1], place[2]
    return svg.tag(
        "g",
        svg.tag("circle", class_="disc", cx=x, cy=svg.short(y), r=DISC),
        svg.tag("text", str(number), class_="number", x=x, y=svg.short(y + 4), text_anchor="middle"),
        class_=svg.slug(kind),
        transform=f"translate({svg.short(aside)} 0)",
    )


def tick_names(scale: svg.Scale, card: MetricCard) -> list[str]:
    """The labels of a scale's ticks; rates in percent."""
    return [f"{100 * t:g}" if card.display == "rate" else svg.tick(t, scale) for t in scale.ticks]

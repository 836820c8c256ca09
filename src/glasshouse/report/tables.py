"""Rows of the report's tables: victims, refusals, controls, findings, contrasts, manifest."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from glasshouse.report import numbers, readings, words
from glasshouse.report.cards import Cards
from glasshouse.results.records import (
    Contrast,
    Control,
    Finding,
    Refused,
    Utility,
)


@final
@dataclass(frozen=True, kw_only=True)
class VictimSheet:
    """Per-victim verdicts of one finding, as text; ``leaks``: number of victims whose data leaked."""

    attack: str
    setting: str
    metric: str
    leaks: int
    rows: tuple[tuple[str, str, str, str, bool], ...]

    @property
    def head(self) -> str:
        total = words.count(len(self.rows), "victims")
        return f"{self.attack}, {self.setting}: {self.leaks} of {total} came out"


@final
@dataclass(frozen=True, kw_only=True)
class RefusalRow:
    """A refusal in its four parts, and the settings in which it occurred."""

    subject: str
    needs: str
    got: str
    fix: str
    settings: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class ControlRow:
    """A control of one attack: it must gain in an easy setting, and must not from an unrelated update."""

    attack: str
    name: str
    setting: str
    positive: str
    negative: str
    n: str
    passed: bool


@final
@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """Everything about one finding, as text."""

    finding: Finding
    reading: readings.Reading
    attack: str
    setting: str
    metric: str
    n: str
    baseline: str
    given: str
    seconds: str
    exchange: str
    p: str


@final
@dataclass(frozen=True, kw_only=True)
class ContrastRow:
    """One paired difference between two attacks, as text; ``clear``: its interval excludes 0."""

    attack: str
    other: str
    setting: str
    metric: str
    difference: str
    interval: str
    n: str
    clear: bool


def victim_sheets(findings: Iterable[Finding], cards: Cards) -> list[VictimSheet]:
    """Sheets of the findings with per-victim verdicts; those with the most leaking victims first."""
    sheets = [_victims(f, cards) for f in findings if f.victims]
    return sorted(sheets, key=lambda sheet: -sheet.leaks)


def refusals(rows: Iterable[Refused]) -> list[RefusalRow]:
    """Refusals; a refusal repeated in several cells becomes one row."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for r in rows:
        merged.setdefault((r.subject, r.needs, r.got, r.fix), []).append(setting(r))
    return [
        RefusalRow(subject=key[0], needs=key[1], got=key[2], fix=key[3], settings=tuple(dict.fromkeys(where)))
        for key, where in merged.items()
    ]


def controls(findings: Iterable[Finding], cards: Cards) -> list[tuple[str, list[ControlRow]]]:
    """Controls without duplicates, grouped by easy setting, failed ones first."""
    control_rows: dict[tuple[str, Control], ControlRow] = {}
    for f in findings:
        if f.control and (key := (f.attack, f.control)) not in control_rows:
            control_rows[key] = _control(f, f.control, cards)
    groups: dict[str, list[ControlRow]] = {}
    for row in sorted(control_rows.values(), key=lambda row: row.passed):
        groups.setdefault(row.setting, []).append(row)
    return list(groups.items())


def attacks_without_control(findings: Iterable[Finding], cards: Cards) -> list[str]:
    """Attacks without any control, so that nothing shows that they work even in an easy setting."""
    rows = list(findings)
    controlled = {f.attack for f in rows if f.control}
    return list(dict.fromkeys(cards.attack(f.attack) for f in rows if f.attack not in controlled))


def findings(rows: Iterable[Finding], cards: Cards) -> list[FindingRow]:
    """Every finding, in the order of the audit."""
    return [_finding(f, cards) for f in rows]


def contrasts(rows: Iterable[Contrast], cards: Cards) -> list[ContrastRow]:
    """Comparisons of two attacks on the same victims."""
    return [
        ContrastRow(
            attack=cards.attack(r.attack),
            other=cards.attack(r.other),
            setting=setting(r),
            metric=cards.metric(r.metric).label,
            difference=numbers.plain(r.difference),
            interval=numbers.plain_ends(r.low, r.high),
            n=f"{r.n} {r.unit}",
            clear=r.low > 0 or r.high < 0,
        )
        for r in rows
    ]


def setting(row: Finding | Refused | Utility | Contrast) -> str:
    """Defences and axes of a row: ``clip 4, batch = 4``."""
    parts = (words.protection(row.defenses, row.axes), words.setting(row.axes))
    return ", ".join(part for part in parts if part)


def manifest(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The manifest as titled groups of rows: scalar entries first, then each table under its name."""
    single = [(words.plain(k), _text(v)) for k, v in settings.items() if not isinstance(v, Mapping)]
    groups = [("", single)] if single else []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            groups.append((words.plain(key), list(_flat(value))))
    return groups


def _finding(f: Finding, cards: Cards) -> FindingRow:
    reading = readings.read(f, cards)
    return FindingRow(
        finding=f,
        reading=reading,
        attack=cards.attack(f.attack),
        setting=setting(f),
        metric=cards.metric(f.metric).label,
        n=words.count(f.n, f.unit),
        baseline=_baseline(f, reading, cards),
        given=words.grants(f.given) or "nothing",
        seconds=numbers.seconds(f.seconds),
        exchange=_exchange(f, cards),
        p=_p(f),
    )


def _victims(f: Finding, cards: Cards) -> VictimSheet:
    card = cards.metric(f.metric)
    rows = tuple(
        (
            v.name,
            numbers.value(v.value, card, f.unit_of_value),
            f"{v.rank:,} of {v.compared:,}",
            f"{numbers.probability(v.p)} ({numbers.probability(v.p_adjusted)})",
            v.leaks,
        )
        for v in sorted(f.victims, key=lambda v: (not v.leaks, v.p_adjusted))
    )
    return VictimSheet(
        attack=cards.attack(f.attack),
        setting=setting(f),
        metric=card.label,
        leaks=sum(v.leaks for v in f.victims),
        rows=rows,
    )


def _control(f: Finding, c: Control, cards: Cards) -> ControlRow:
    card = cards.metric(c.metric)

    def at_least(gain: float | None, low: float | None) -> str:
        if gain is None or low is None:
            return "no claim"
        text = numbers.with_sign(gain, card) + numbers.unit(card)
        return f"{text}, at least {numbers.bare(low, card)}"

    return ControlRow(
        attack=cards.attack(f.attack),
        name=card.label or "–",
        setting=c.setting,
        positive=at_least(c.positive, c.positive_low),
        negative=at_least(c.negative, c.negative_low),
        n=words.count(c.n, f.unit),
        passed=c.passed,
    )


def _baseline(f: Finding, reading: readings.Reading, cards: Cards) -> str:
    text = f"{words.null(f.baseline)}: {reading.baseline}"
    if f.chance is None:
        return text
    return f"{text}; chance {numbers.value(f.chance, cards.metric(f.metric), f.unit_of_value)}"


def _exchange(f: Finding, cards: Cards) -> str:
    if f.exchange is None:
        return "–"
    return numbers.value(f.exchange.value, cards.metric(f.metric), f.unit_of_value)


def _p(f: Finding) -> str:
    if f.p is None:
        return "–"
    own = numbers.probability(f.p)
    return own if f.p_adjusted is None else f"{own} ({numbers.probability(f.p_adjusted)})"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: object) -> str:
    if isinstance(value, float):
        numbers.finite(value, "a number in the manifest")
    return "–" if value is None else words.plain_value(value) or "–"

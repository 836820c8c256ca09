"""Rows of the tables in the report: policy, refusals, controls, findings, utility, manifest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from glasshouse.report import numbers, readings, words
from glasshouse.results.records import (
    Contrast,
    Control,
    Finding,
    Refused,
    Result,
    ThreatCard,
    Utility,
    Verdict,
)


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of the policy and the largest gain measured against it, with the attack behind it."""

    scenario: str
    metric: str
    limit: str
    measured: str
    by: str


@final
@dataclass(frozen=True, kw_only=True)
class Policy:
    """The policy's outcome over all scenarios; ``state`` is ``broken``, ``holds`` or ``none``."""

    state: str
    broken: tuple[str, ...]
    limits: tuple[Limit, ...]
    gaps: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class RefusalRow:
    """A refusal in its four parts, and every setting in which it came up."""

    subject: str
    needs: str
    got: str
    fix: str
    settings: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class ControlRow:
    """A control of one attack: the easy setting, where it must gain, and the unrelated update, where not."""

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

    attack: str
    setting: str
    metric: str
    value: str
    interval: str
    median: str
    n: str
    baseline: str
    gain: str
    gain_interval: str
    verdict: Verdict
    given: str
    chosen: str
    about: str
    seconds: str


@final
@dataclass(frozen=True, kw_only=True)
class ContrastRow:
    """One paired difference between two attacks, as text; ``clear``: its interval lies on one side of 0."""

    attack: str
    other: str
    setting: str
    metric: str
    difference: str
    interval: str
    n: str
    clear: bool


def policy(result: Result) -> Policy:
    """What the policy tolerated, what was measured, and what was broken.

    A limit on a metric without a usable finding is a gap: it neither holds nor is broken.
    """
    limits, gaps = [], []
    for card in result.threats:
        for name, limit in card.limits.items():
            row = _limit(card, name, limit, result.findings)
            limits.append(row)
            if not row.by:
                gaps.append(f"{card.scenario}: no finding with power for {words.metric(name).label}")
    broken = tuple(
        f"{card.scenario}: {text}" if len(result.threats) > 1 else text
        for card in result.threats
        for text in card.broken
    )
    state = "broken" if broken else "holds" if limits else "none"
    return Policy(state=state, broken=broken, limits=tuple(limits), gaps=tuple(gaps))


def refusals(rows: Iterable[Refused]) -> list[RefusalRow]:
    """Refusals, the same one in several cells as one row."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for r in rows:
        merged.setdefault((r.subject, r.needs, r.got, r.fix), []).append(setting(r))
    return [
        RefusalRow(subject=key[0], needs=key[1], got=key[2], fix=key[3], settings=tuple(dict.fromkeys(where)))
        for key, where in merged.items()
    ]


def controls(findings: Iterable[Finding]) -> list[tuple[str, list[ControlRow]]]:
    """Every control once, by easy setting, the failed ones first."""
    seen: dict[tuple[str, Control], ControlRow] = {}
    for f in findings:
        if f.control and (key := (f.attack, f.control)) not in seen:
            seen[key] = _control(f, f.control)
    groups: dict[str, list[ControlRow]] = {}
    for row in sorted(seen.values(), key=lambda row: row.passed):
        groups.setdefault(row.setting, []).append(row)
    return list(groups.items())


def uncontrolled(findings: Iterable[Finding]) -> list[str]:
    """Attacks that have no control at all: nothing shows that they work where they must."""
    rows = list(findings)
    controlled = {f.attack for f in rows if f.control}
    return list(dict.fromkeys(words.attack(f.attack) for f in rows if f.attack not in controlled))


def findings(rows: Iterable[Finding]) -> list[FindingRow]:
    """Every finding, in the order of the audit."""
    return [_finding(f, readings.read(f)) for f in rows]


def contrasts(rows: Iterable[Contrast]) -> list[ContrastRow]:
    """Attack against attack on the same victims."""
    return [
        ContrastRow(
            attack=r.attack,
            other=r.other,
            setting=setting(r),
            metric=words.metric(r.metric).label,
            difference=numbers.plain(r.difference),
            interval=f"[{numbers.plain(r.low)}, {numbers.plain(r.high)}]",
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
    """The manifest as titled groups of lines: single values first, then each table under its name."""
    single = [(words.plain(k), _text(v)) for k, v in settings.items() if not isinstance(v, Mapping)]
    groups = [("", single)] if single else []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            groups.append((words.plain(key), list(_flat(value))))
    return groups


def _finding(f: Finding, reading: readings.Reading) -> FindingRow:
    return FindingRow(
        attack=words.attack(f.attack),
        setting=setting(f),
        metric=words.metric(f.metric).label,
        value=reading.value,
        interval=reading.interval,
        median=reading.median,
        n=words.count(f.n, f.unit),
        baseline=_baseline(f),
        gain=reading.gain,
        gain_interval=reading.gain_interval,
        verdict=f.verdict,
        given=words.grants(f.given) or "nothing",
        chosen=f.chosen or "–",
        about=f.about or "–",
        seconds=numbers.seconds(f.seconds),
    )


def _limit(card: ThreatCard, name: str, limit: float, findings: Sequence[Finding]) -> Limit:
    usable = [
        f for f in findings if f.scenario == card.scenario and f.metric == name and f.verdict != "no power"
    ]
    worst = max(usable, key=lambda f: f.gain, default=None)
    return Limit(
        scenario=card.scenario,
        metric=words.metric(name).label,
        limit=numbers.difference(limit, name),
        measured="not measured"
        if worst is None
        else f"{readings.read(worst).gain} {readings.read(worst).gain_interval}",
        by="" if worst is None else f"{words.attack(worst.attack)}, {setting(worst)}",
    )


def _control(f: Finding, c: Control) -> ControlRow:
    def at_least(gain: float | None, low: float | None) -> str:
        if gain is None or low is None:
            return "no claim"
        shown = numbers.signed(gain, c.metric) + numbers.unit(c.metric)
        return f"{shown}, at least {numbers.bare(low, c.metric)}"

    return ControlRow(
        attack=words.attack(f.attack),
        name=words.metric(c.metric).label or "–",
        setting=c.setting,
        positive=at_least(c.positive, c.positive_low),
        negative=at_least(c.negative, c.negative_low),
        n=words.count(c.n, f.unit),
        passed=c.passed,
    )


def _baseline(f: Finding) -> str:
    text = f"{words.plain(f.baseline)} {readings.read(f).baseline}"
    return (
        text if f.chance is None else f"{text}; chance {numbers.value(f.chance, f.metric, f.unit_of_value)}"
    )


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

"""Rows of the tables in the report: policy, refusals, controls, findings, utility, manifest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from glasshouse.audit.result import Control, Finding, Refused, Result, ThreatCard, Utility, Verdict
from glasshouse.report import numbers, words


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of the policy and the largest gain measured against it; ``measured`` may say "not measured"."""

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
    n: str
    baseline: str
    gain: str
    gain_interval: str
    verdict: Verdict
    given: str
    chosen: str
    about: str
    seconds: str


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


def controls(findings: Iterable[Finding]) -> list[ControlRow]:
    """Every control once."""
    seen: dict[tuple[str, str, Control], ControlRow] = {}
    for f in findings:
        if f.control and (key := (f.attack, f.metric, f.control)) not in seen:
            seen[key] = _control(f, f.control)
    return sorted(seen.values(), key=lambda row: row.passed)


def findings(rows: Iterable[Finding]) -> list[FindingRow]:
    """Every finding, in the order of the audit."""
    return [
        FindingRow(
            attack=words.attack(f.attack),
            setting=setting(f),
            metric=words.metric(f.metric).label,
            value=numbers.value(f.value, f.metric, f.unit_of_value),
            interval=numbers.interval(f.low, f.high, f.metric),
            n=words.count(f.n, f.unit),
            baseline=_baseline(f),
            gain=numbers.signed(f.gain, f.metric),
            gain_interval=numbers.interval(f.gain_low, f.gain_high, f.metric),
            verdict=f.verdict,
            given=words.listed([words.plain(g) for g in f.given]) or "nothing",
            chosen=f.chosen or "–",
            about=f.about or "–",
            seconds=numbers.seconds(f.seconds),
        )
        for f in rows
    ]


def setting(row: Finding | Refused | Utility) -> str:
    """Defences and axes of a row: ``clip 4, batch = 4``."""
    return ", ".join(part for part in (words.under(row.defenses), words.setting(row.axes)) if part)


def manifest(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The manifest as titled groups of lines: single values first, then each table under its name."""
    single = [(words.plain(k), _text(v)) for k, v in settings.items() if not isinstance(v, Mapping)]
    groups = [("", single)] if single else []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            groups.append((words.plain(key), list(_flat(value))))
    return groups


def _limit(card: ThreatCard, name: str, limit: float, findings: Sequence[Finding]) -> Limit:
    usable = [
        f
        for f in findings
        if f.scenario == card.scenario and f.metric == name and f.verdict != "no power"
    ]
    worst = max(usable, key=lambda f: f.gain, default=None)
    return Limit(
        scenario=card.scenario,
        metric=words.metric(name).label,
        limit=numbers.difference(limit, name),
        measured="not measured"
        if worst is None
        else f"{numbers.signed(worst.gain, name)} {numbers.interval(worst.gain_low, worst.gain_high, name)}",
        by="" if worst is None else f"{words.attack(worst.attack)}, {setting(worst)}",
    )


def _control(f: Finding, c: Control) -> ControlRow:
    unit = numbers.unit(f.metric, f.unit_of_value)
    return ControlRow(
        attack=words.attack(f.attack),
        name=words.metric(f.metric).label,
        setting=c.setting,
        positive=f"{numbers.signed(c.positive, f.metric)}{unit}, at least {numbers.bare(c.positive_low, f.metric)}",
        negative=f"{numbers.signed(c.negative, f.metric)}{unit}, at least {numbers.bare(c.negative_low, f.metric)}",
        n=words.count(c.n, f.unit),
        passed=c.passed,
    )


def _baseline(f: Finding) -> str:
    text = f"{words.plain(f.baseline)} {numbers.value(f.baseline_value, f.metric, f.unit_of_value)}"
    return text if f.chance is None else f"{text}; chance {numbers.value(f.chance, f.metric, f.unit_of_value)}"


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

"""What the report's tables show of a result: refusals, controls, settings, manifest."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from glasshouse.report import numbers, words
from glasshouse.report.cards import Cards
from glasshouse.report.readings import Reading
from glasshouse.results.cards import MetricCard
from glasshouse.results.records import Contrast, Control, Finding, Refused, Utility
from glasshouse.results.rows import grouped


class RefusalRow(NamedTuple):
    """A refusal in its four parts, and the settings in which it occurred."""

    subject: str
    needs: str
    got: str
    fix: str
    settings: tuple[str, ...]


def refusals(rows: Iterable[Refused]) -> list[RefusalRow]:
    """Refusals; a refusal repeated in several cells becomes one row."""
    merged = grouped(rows, lambda r: (r.subject, r.needs, r.got, r.fix))
    return [RefusalRow(*key, settings=tuple(dict.fromkeys(map(setting, rs)))) for key, rs in merged.items()]


def controls(findings: Iterable[Finding]) -> list[tuple[str, list[tuple[str, Control, str]]]]:
    """(attack, control, unit of its n) without duplicates, grouped by easy setting, failed ones first."""
    units: dict[tuple[str, Control], str] = {}
    for f in findings:
        if f.control:
            units.setdefault((f.attack, f.control), f.unit)
    every = [(attack, control, unit) for (attack, control), unit in units.items()]
    failed_first = sorted(every, key=lambda row: row[1].passed)
    return list(grouped(failed_first, lambda row: row[1].setting).items())


def control_gain(gain: float | None, low: float | None, card: MetricCard) -> str:
    """A gain of a control with its lower bound."""
    if gain is None or low is None:
        return "no claim"
    return f"{numbers.with_sign(gain, card)}{numbers.unit(card)}, at least {numbers.bare(low, card)}"


def attacks_without_control(findings: Iterable[Finding], cards: Cards) -> list[str]:
    """Attacks without any control, so that nothing shows that they work even in an easy setting."""
    rows = list(findings)
    controlled = {f.attack for f in rows if f.control}
    return list(dict.fromkeys(cards.attack(f.attack) for f in rows if f.attack not in controlled))


def with_victims(readings: Iterable[Reading]) -> list[Reading]:
    """Findings with per-victim verdicts of their own; those with the most leaking victims first."""
    return sorted((r for r in readings if r.finding.victims), key=lambda r: -r.reached)


def p_values(own: float | None, adjusted: float | None) -> str:
    """A p-value, followed by the adjusted one in brackets where there is one."""
    if own is None:
        return "–"
    return numbers.probability(own) + ("" if adjusted is None else f" ({numbers.probability(adjusted)})")


def setting(row: Finding | Refused | Utility | Contrast) -> str:
    """Defences and axes of a row: ``clip 4, batch = 4``."""
    parts = (words.protection(row.defenses, row.axes), words.setting(row.axes))
    return ", ".join(part for part in parts if part)


def manifest(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The manifest as titled groups of rows: scalar entries first, then each table under its name."""
    single = [(words.plain(k), _text(v)) for k, v in settings.items() if not isinstance(v, Mapping)]
    tables = [(words.plain(k), list(_flat(v))) for k, v in settings.items() if isinstance(v, Mapping)]
    return [(title, rows) for title, rows in [("", single), *tables] if rows]


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

"""Findings as Markdown tables: one row per setting and attack, one column per metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from glasshouse.report import numbers
from glasshouse.report.cards import Cards
from glasshouse.results.cards import MetricCard
from glasshouse.results.records import Contrast, Finding, Result, Utility

R = TypeVar("R", Finding, Contrast)
Key = tuple[str, ...]
HEAD = ("setting", "attack", "n")


def markdown(result: Result, *, metrics: Sequence[str] = ()) -> str:
    """One table per scenario, with ``metrics`` as columns (empty: all).

    A cell holds the value with its 95 % interval and the gain over the null with its interval, which is bold
    if it lies above 0; or "no power" if a control failed. If an attack searches, a last column counts the
    finished searches. If the scenario names an attack to compare with the others, a second table holds the
    paired differences.

    Examples:
        >>> markdown(Result(suite="empty"))
        ''
    """
    cards, parts = Cards.of(result), []
    searches = _finished(result.findings)
    for threat in result.threats:
        rows = _of(result.findings, threat.scenario, metrics)
        if rows:
            head = f"### {threat.scenario}\n\n{threat.federation}; {threat.adversary}."
            parts.append(f"{head}\n\n{_table(rows, cards, searches)}")
        pairs = _of(result.contrasts, threat.scenario, metrics)
        if pairs:
            parts.append(_contrasts(pairs))
    return "\n\n".join(parts)


def _of(rows: Iterable[R], scenario: str, metrics: Sequence[str]) -> list[R]:
    return [r for r in rows if r.scenario == scenario and (not metrics or r.metric in metrics)]


def _contrasts(pairs: Sequence[Contrast]) -> str:
    metrics, rows = pivot(pairs, contrast_key)
    head = ("setting", "attack", "against", "n", *metrics)
    lines = [_row(head), _row("---" for _ in head)]
    for key, by_metric in rows.items():
        n = max(c.n for c in by_metric.values())
        lines.append(
            _row((*key, str(n), *(_difference(by_metric[m]) if m in by_metric else "" for m in metrics)))
        )
    return "\n".join(lines)


def _difference(c: Contrast) -> str:
    ends = numbers.plain_ends(c.low, c.high)
    return f"{numbers.plain(c.difference)} {f'**{ends}**' if c.low > 0 else ends}"


def _table(findings: Sequence[Finding], cards: Cards, finished: Mapping[Key, str]) -> str:
    metrics, rows = pivot(findings, finding_key)
    scenario = findings[0].scenario
    searched = {key: finished[scenario, *key] for key in rows if (scenario, *key) in finished}
    head = (*HEAD, *metrics, *(["searches finished"] if searched else []))
    lines = [_row(head), _row("---" for _ in head)]
    for key, by_metric in rows.items():
        n = max(f.n for f in by_metric.values())
        cells = (_cell(by_metric[m], cards.metric(m)) if m in by_metric else "" for m in metrics)
        lines.append(_row((*key, str(n), *cells, *([searched.get(key, "–")] if searched else []))))
    return "\n".join(lines)


def _finished(findings: Iterable[Finding]) -> dict[Key, str]:
    """Finished searches by scenario, setting and attack; only primary findings record them."""
    return {
        (f.scenario, *finding_key(f)): f"{sum(s.finished for s in f.searches)} of {len(f.searches)}"
        for f in findings
        if f.searches
    }


def pivot(rows: Iterable[R], key: Callable[[R], Key]) -> tuple[list[str], dict[Key, dict[str, R]]]:
    """Pivot ``rows`` with metrics as columns: the metric names in order, and per key the record by metric."""
    table: dict[Key, dict[str, R]] = {}
    metrics: dict[str, None] = {}
    for row in rows:
        metrics[row.metric] = None
        table.setdefault(key(row), {})[row.metric] = row
    return list(metrics), table


def finding_key(f: Finding) -> Key:
    """Row key of a finding: the setting and the attack."""
    return setting_words(f), f.attack


def contrast_key(c: Contrast) -> Key:
    """Row key of a contrast: the setting and the two attacks."""
    return setting_words(c), c.attack, c.other


def setting_words(row: Finding | Contrast | Utility) -> str:
    """The values of the axes in words; a dash if there are none."""
    return ", ".join(f"{path.split('.')[-1]} {value}" for path, value in row.axes.items()) or "–"


def _cell(f: Finding, card: MetricCard) -> str:
    value = f"{numbers.plain(f.value)} {numbers.plain_ends(f.low, f.high)}"
    ends = numbers.plain_ends(f.gain_low, f.gain_high)
    gain = f"{numbers.plain(f.gain)} {f'**{ends}**' if f.gain_low > 0 else ends}"
    median = f", median {numbers.plain(f.median)}" if f.median is not None and card.display == "level" else ""
    return "no power" if f.verdict == "no power" else f"{value}{median}; gain {gain}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(str(c).replace("|", "/") for c in cells) + " |"

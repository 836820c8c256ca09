"""Findings as Markdown tables: one row per setting and attack, one column per metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from glasshouse.outside.text import markdown as escape
from glasshouse.report import numbers
from glasshouse.report.cards import Cards
from glasshouse.results.cards import MetricCard
from glasshouse.results.records import Contrast, Finding, Result, Utility
from glasshouse.results.rows import grouped

R = TypeVar("R", Finding, Contrast)
Key = tuple[str, ...]


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
    for threat in result.threats:
        own = result.of(threat.scenario)
        if rows := _of(own.findings, metrics):
            name, setup, who = map(escape, (threat.scenario, threat.federation, threat.adversary))
            head = f"### {name}\n\n{setup}; {who}."
            parts.append(f"{head}\n\n{_table(rows, cards, _finished(own.findings))}")
        if pairs := _of(own.contrasts, metrics):
            parts.append(_contrasts(pairs))
    return "\n\n".join(parts)


def _of(rows: Iterable[R], metrics: Sequence[str]) -> list[R]:
    return [r for r in rows if not metrics or r.metric in metrics]


def _contrasts(pairs: Sequence[Contrast]) -> str:
    metrics, rows = pivot(pairs, contrast_key, lambda c: _over_0(c.difference, c.low, c.high))
    head = ("setting", "attack", "against", "n", *metrics)
    return table(head, [(*map(escape, key), *cells) for key, cells in rows.items()])


def _over_0(value: float, low: float, high: float) -> str:
    """A difference with its interval, which is bold if it lies above 0."""
    ends = numbers.plain_ends(low, high)
    return f"{numbers.plain(value)} {f'**{ends}**' if low > 0 else ends}"


def _table(findings: Sequence[Finding], cards: Cards, finished: Mapping[Key, str]) -> str:
    metrics, rows = pivot(findings, finding_key, lambda f: _cell(f, cards.metric(f.metric)))
    searched = finished.keys() & rows.keys()
    head = ("setting", "attack", "n", *metrics, *(["searches finished"] if searched else []))
    body = []
    for key, cells in rows.items():
        last = [finished.get(key, "–")] if searched else []
        body.append((*map(escape, key), *cells, *last))
    return table(head, body)


def _finished(findings: Iterable[Finding]) -> dict[Key, str]:
    """Finished searches by setting and attack; only primary findings record them."""
    return {
        finding_key(f): f"{sum(s.finished for s in f.searches)} of {len(f.searches)}"
        for f in findings
        if f.searches
    }


def pivot(
    rows: Sequence[R], key: Callable[[R], Key], cell: Callable[[R], str]
) -> tuple[list[str], dict[Key, list[str]]]:
    """Names of the metrics; and by ``key`` the largest n, then a ``cell`` per metric, empty if missing."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    cells: dict[Key, list[str]] = {}
    for name, group in grouped(rows, key).items():
        one = {row.metric: row for row in group}
        cells[name] = [str(max(row.n for row in one.values()))]
        cells[name] += [cell(one[m]) if m in one else "" for m in metrics]
    return metrics, cells


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
    gain = _over_0(f.gain, f.gain_low, f.gain_high)
    median = f", median {numbers.plain(f.median)}" if f.median is not None and card.display == "level" else ""
    return "no power" if f.verdict == "no power" else f"{value}{median}; gain {gain}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the cells of ``rows`` are Markdown, those of ``head`` plain text."""
    lines = (list(map(escape, head)), ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

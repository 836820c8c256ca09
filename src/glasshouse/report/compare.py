"""Compare two results: findings that changed beyond their uncertainty, and findings present in only one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from rich.console import Group, RenderableType

from glasshouse.outside.text import as_json
from glasshouse.report import html, tables, terminal, words
from glasshouse.report.cards import Cards
from glasshouse.report.first_screen.leaks import SCALE, leaks
from glasshouse.report.first_screen.matrix import Matrix, matrix
from glasshouse.report.first_screen.screen import Card, leak_cards
from glasshouse.report.readings import Reading, UtilityReading, read
from glasshouse.report.verdicts.answer import facts
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Finding, Refused, Result, Utility

WORSE: Final = "leaks now"
NOTHING: Final = "Nothing in common"


@final
@dataclass(frozen=True, kw_only=True)
class Change:
    """A finding that is in both results.

    Attributes:
        before: the finding in the earlier result.
        after: the finding in the later result.
        said: what changed, in words; ``worse``: it leaks now, or clearly more; ``decides``: a headline
            depends on this finding.
        gain_before: gain with its interval, as text.
        gain_after: gain with its interval, as text.
        explanation: explanation of the metric.
    """

    scenario: str
    setting: str
    attack: str
    metric: str
    before: Finding
    after: Finding
    gain_before: str
    gain_after: str
    explanation: str
    said: str
    worse: bool
    decides: bool


class UtilityChange(NamedTuple):
    """The utility of one setting in both results, as text."""

    scenario: str
    setting: str
    metric: str
    before: str
    after: str
    said: str


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two results have in common and where they differ.

    Attributes:
        before: name of the earlier result.
        after: name of the later result.
        answer: the outcome in a few words.
        qualification: the numbers behind the outcome, in a sentence.
        worse: at least one deciding finding got worse.
        unshown: earlier deciding findings that are now missing or have no power, in words.
        facts: (name, before, after) of dates, auditors and versions.
        changed: findings with a different verdict, or with gain intervals that do not overlap.
        unclear: findings that moved, but whose intervals overlap.
        same: number of identical findings.
        only_before: findings only in the earlier result, in words.
        only_after: findings only in the later result, in words.
        refused_before: refusals only in the earlier result.
        refused_after: refusals only in the later result.
        utility: settings with a utility in both results.
        matrix: of the later result: who attacks against what can come out.
        cards: the leaks of the later result, as on its own page.
        since: what changed of each since the earlier one, in words.
        earlier: the states of the earlier one, by (threat, kind).
    """

    before: str
    after: str
    answer: str
    qualification: str
    worse: bool
    unshown: tuple[str, ...]
    facts: tuple[tuple[str, str, str], ...]
    changed: tuple[Change, ...]
    unclear: tuple[Change, ...]
    same: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    refused_before: tuple[tables.RefusalRow, ...]
    refused_after: tuple[tables.RefusalRow, ...]
    utility: tuple[UtilityChange, ...]
    matrix: Matrix
    cards: tuple[Card, ...]
    since: tuple[str, ...]
    earlier: Mapping[tuple[str, str], str]

    @property
    def exit_code(self) -> int:
        """0: nothing got worse; 1: a deciding finding got worse; 3: one is missing or lost its power."""
        return 1 if self.worse else 3 if self.unshown or self.answer == NOTHING else 0

    def __rich__(self) -> Group:
        """The renderable that ``console.print`` shows."""
        return comparison_summary(self)


def compare(
    a: Result, b: Result, *, names: tuple[str, str] | None = None, run: Path | None = None
) -> Comparison:
    """Compare an earlier result with a later one.

    Findings are matched by scenario, axes, protocol, defences, attack, metric and ``about``.
    Disjoint intervals count as a change; overlapping ones count as unclear, not as equal.

    Args:
        a: the earlier result.
        b: the later result.
        names: display names of ``a`` and ``b``; by default the names of their suites.
        run: the run directory of ``b``, from which the examples beside its leaks are read.
    """
    # First who stands beside whom: a finding of one result, and the same one of the other.
    cards = Cards.of(a, b)
    earlier, later = read(a, cards=cards), read(b, cards=cards)
    before = {_key(r.finding): r for r in earlier.every}
    after = {_key(r.finding): r for r in later.every}
    deciding = {_key(r.finding) for r in (*earlier.deciding, *later.deciding)}
    both = {key: _change(r, after[key], decides=key in deciding) for key, r in before.items() if key in after}
    gone = [r for key, r in before.items() if key not in after]
    new = [r for key, r in after.items() if key not in before]

    # Then what became of it. What decided before and is missing or powerless now, fails the comparison.
    moved = [c for c in both.values() if c.said]
    changed = [c for c in moved if c.before.verdict != c.after.verdict or _apart(c.before, c.after)]
    worse = [c for c in changed if c.worse and c.decides]
    powerless = [
        before[key]
        for key, c in both.items()
        if c.decides and c.after.verdict == "no power" != c.before.verdict
    ]
    unshown = [*powerless, *(r for r in earlier.deciding if _key(r.finding) not in after)]
    answer = "More leaks than before" if worse else "Something changed" if changed else "No clear change"

    title = names or ((a.suite, b.suite) if a.suite != b.suite else (f"{a.suite} (1)", f"{b.suite} (2)"))
    refused_before, refused_after = ({_key(r) for r in result.refusals} for result in (a, b))
    leaking = leak_cards(later, leaks(later), run, show_private=False)
    return Comparison(
        before=title[0],
        after=title[1],
        answer=answer if both else NOTHING,
        qualification=_qualification(len(both), len(changed), len(worse), len(unshown)),
        worse=bool(worse),
        unshown=tuple(map(_alone, unshown)),
        facts=tuple(_facts(a, b)),
        changed=tuple(sorted(changed, key=lambda c: (not (c.worse and c.decides), not c.worse))),
        unclear=tuple(c for c in moved if c not in changed),
        same=len(both) - len(moved),
        only_before=tuple(map(_alone, gone)),
        only_after=tuple(map(_alone, new)),
        refused_before=tuple(tables.refusals(r for r in a.refusals if _key(r) not in refused_after)),
        refused_after=tuple(tables.refusals(r for r in b.refusals if _key(r) not in refused_before)),
        utility=tuple(_utilities(earlier.utility, later.utility)),
        matrix=matrix(later),
        cards=tuple(leaking),
        since=tuple(_since(both.get(_key(card.leak.reading.finding)), title[0]) for card in leaking),
        earlier=matrix(earlier).texts,
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data, for scripts; the format is in docs/result.md."""
    whole = ("before", "after", "answer", "qualification", "worse", "same", "exit_code")
    lists = ("unshown", "only_before", "only_after")
    rows = ("refused_before", "refused_after", "utility")
    plain: dict[str, Any] = {"format": 1} | {name: getattr(comparison, name) for name in whole}
    plain |= {name: list(getattr(comparison, name)) for name in lists}
    for name in ("changed", "unclear"):
        plain[name] = [_plain(one) for one in getattr(comparison, name)]
    for name in rows:
        plain[name] = [row._asdict() for row in getattr(comparison, name)]
    return plain


def _plain(change: Change) -> dict[str, Any]:
    whole = ("scenario", "setting", "attack", "metric", "said", "worse", "decides")
    sides = {"before": change.before, "after": change.after}
    numbers = ("value", "low", "high", "gain", "gain_low", "gain_high", "n", "verdict")
    return {name: getattr(change, name) for name in whole} | {
        side: {name: getattr(finding, name) for name in numbers} for side, finding in sides.items()
    }


def comparison_html(comparison: Comparison) -> str:
    """The comparison as one self-contained HTML page."""
    return html.page("compare.html", c=comparison, scale=SCALE)


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Write the page to ``path``, and the same content as JSON next to it.

    Raises:
        DiskFull: not enough disk space.
    """
    text = as_json(comparison_json(comparison), indent=1)
    html.save(text + "\n", path.with_suffix(".json"))
    return html.save(comparison_html(comparison), path)


def comparison_summary(comparison: Comparison) -> Group:
    """The comparison for a terminal; plain text if the output is not one."""
    c = comparison
    rows = [
        (r.scenario, r.setting, f"{r.attack}, {r.metric}", f"{r.gain_before} → {r.gain_after}", r.said)
        for r in c.changed
    ]
    parts: list[RenderableType] = [
        terminal.heading(c.answer, "leaks" if c.worse else ""),
        terminal.line(c.qualification),
    ]
    if rows:
        parts.append(terminal.table(("scenario", "setting", "what", "gain before → after", "change"), rows))
    parts.append(terminal.line(f"{words.count(len(c.unclear), 'findings')} moved within the intervals, "
                               f"{c.same:,} stayed the same."))  # fmt: skip
    for name, alone, refused in (
        (c.before, c.only_before, c.refused_before),
        (c.after, c.only_after, c.refused_after),
    ):
        parts += [terminal.line(f"Only in {name}: {text}") for text in alone[: terminal.MOST]]
        if len(alone) > terminal.MOST:
            parts.append(terminal.line(f"Only in {name}: {len(alone) - terminal.MOST} more"))
        parts += [terminal.line(f"Refused only in {name}: {r.subject}: needs {r.needs}") for r in refused]
    utility = [(u.scenario, u.setting, f"{u.before} → {u.after}", u.said) for u in c.utility if u.said]
    if utility:
        parts.append(terminal.table(("scenario", "setting", "utility before → after", "change"), utility))
    return Group(*parts)


def _change(before: Reading, after: Reading, *, decides: bool) -> Change:
    """What became of a finding that is in both results."""
    a, b = before.finding, after.finding
    disjoint = _apart(a, b)
    # A new verdict is said first. Under one verdict, numbers differ where their intervals are apart.
    if a.verdict != b.verdict:
        said = WORSE if b.verdict in OUT else f"now: {b.verdict}"
    elif disjoint:
        said = "gain is higher" if b.gain > a.gain else "gain is lower"
    else:
        differs = (a.gain, a.gain_low, a.gain_high) != (b.gain, b.gain_low, b.gain_high)
        said = "within the intervals" if differs else ""
    return Change(
        scenario=a.scenario,
        setting=tables.setting(a),
        attack=after.attack,
        metric=after.card.label,
        before=a,
        after=b,
        gain_before=f"{before.measured_gain} {before.gain_interval}",
        gain_after=f"{after.measured_gain} {after.gain_interval}",
        explanation=after.card.explanation,
        said=said,
        worse=said == WORSE or (disjoint and b.gain > a.gain and b.verdict in OUT),
        decides=decides,
    )


def _since(change: Change | None, earlier: str) -> str:
    """What became of a leak of the later result."""
    if change is None:
        return f"Not measured in {earlier}"
    return f"In {earlier}: {change.before.verdict}, gain {change.gain_before}" + (
        f"; {change.said}" if change.said else "; the same"
    )


def _apart(a: Finding, b: Finding) -> bool:
    return a.gain_end < b.gain_low or b.gain_end < a.gain_low


def _qualification(both: int, changed: int, worse: int, unshown: int) -> str:
    if not both:
        return "No finding is in both results, so nothing can be compared."
    text = f"{changed} of {words.count(both, 'findings')} in both changed beyond their intervals"
    text = f"{text}; {worse} for the worse." if changed else f"{text}."
    rest = f" {words.count(unshown, 'findings')} of the earlier run cannot be compared: missing, or no power."
    return text + (rest if unshown else "")


def _facts(a: Result, b: Result) -> Iterable[tuple[str, str, str]]:
    before, after = (
        dict(facts(r)) | {n.capitalize(): str(r.manifest[n]) for n in ("commit", "device") if n in r.manifest}
        for r in (a, b)
    )
    for name in dict.fromkeys([*before, *after]):
        yield name, before.get(name, "–"), after.get(name, "–")


def _utilities(a: Iterable[UtilityReading], b: Iterable[UtilityReading]) -> Iterable[UtilityChange]:
    later = {_key(v.utility): v for v in b}
    for key, before in {_key(u.utility): u for u in a}.items():
        if key in later:
            after, u, v = later[key], before.utility, later[key].utility
            yield UtilityChange(
                scenario=u.scenario,
                setting=tables.setting(u),
                metric=u.metric,
                before=before.text,
                after=after.text,
                said="lower" if v.high < u.low else "higher" if u.high < v.low else "",
            )


def _alone(r: Reading) -> str:
    f = r.finding
    return f"{f.scenario}, {tables.setting(f)}: {r.attack}, {r.score}, {f.verdict}"


def _key(row: Finding | Utility | Refused) -> tuple[object, ...]:
    """What a row of both results has in common: everything that is no number, and no name of a cell."""
    own = (getattr(row, name, "") for name in ("protocol", "attack", "metric", "about", "subject"))
    return (row.scenario, words.plain_value(row.axes), row.defenses, *own)

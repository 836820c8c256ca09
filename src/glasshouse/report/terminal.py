"""The summary at the end of a run; plain text if the output is not a terminal."""

import io
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from glasshouse.outside.screen import Screen
from glasshouse.outside.text import visible
from glasshouse.report import tables, words
from glasshouse.report.first_screen.leaks import leaks, quiet
from glasshouse.report.first_screen.matrix import matrix
from glasshouse.report.first_screen.screen import sentence
from glasshouse.report.readings import Readings, read, worst
from glasshouse.report.verdicts.answer import overall, registered
from glasshouse.report.verdicts.policy import MARKS as LIMIT_MARKS
from glasshouse.report.verdicts.policy import Policy, policy
from glasshouse.report.verdicts.stories import stories
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Result
from glasshouse.results.rows import grouped

MOST: Final = 12  # maximal number of rows shown of a list
LOOKS: Final = {
    "contradiction": ("‼", "bold white on red"),
    "leaks": ("●", "bold red"),
    "no power": ("×", "dim"),
    "label leak": ("●", "red"),
    "too alike": ("◇", "yellow"),
    "not shown": ("◇", "yellow"),
    "no leak found": ("○", "cyan"),
}
"""The mark of each verdict, and the style of mark and word."""


def brief(result: Result) -> Group:
    """At most one screen of 24 lines: the verdict, a line per leak, what was not tested, the policy.

    A result of a single scenario is short enough for its :func:`summary`.

    Raises:
        BadValue: the result holds a non-finite number.
    """
    if len(result.scenarios) < 2:
        return summary(result)
    readings = read(result)
    answer, found, kinds = overall(readings), leaks(readings), matrix(readings)
    parts: list[RenderableType] = [heading(answer.text, answer.kind or "")]
    parts.append(line(sentence(found, kinds, len(result.scenarios)) or answer.qualification))
    # Leaks come first, because lines beyond the screen are only counted.
    rows = [("leaks", f"{leak.scenario}: {leak.title}") for leak in found]
    rows += [
        (story.kind or "", f"{story.scenario}: {text}")
        for story, text in quiet(stories(readings), found, readings)
    ]
    parts += [_short(kind, text) for kind, text in rows[:MOST]]
    if len(rows) > MOST:
        parts.append(line(f"  and {len(rows) - MOST} more"))
    outcome = policy(result)
    parts.append(line(kinds.coverage, "dim"))
    state = "leaks" if outcome.state == "broken" else ""
    parts.append(
        line("Policy: no limits were set.", "dim")
        if outcome.state == "none"
        else heading(f"Policy: {outcome.text}", state)
    )
    if text := registered(result.manifest.get("register")):
        parts.append(line(f"Register: {text}.", "dim"))
    parts.append(line("What to do is in the report; --full prints it.", "dim"))
    return Group(*parts)


def summary(result: Result) -> Group:
    """The verdict in sentences, the strongest attack per defence, the policy, and what could not run.

    Raises:
        BadValue: the result holds a non-finite number.
    """
    readings = read(result)
    answer, found = overall(readings), leaks(readings)
    parts: list[RenderableType] = [heading(answer.text, answer.kind or ""), line(answer.qualification)]
    if answer.count:
        parts.append(line(answer.count, "dim"))
    for story in stories(readings):
        parts += [Text(), line(story.scenario, "bold")]
        parts += [_sentence(s.kind, s.text) for s in story.sentences]
        advice = [f"{leak.action} {leak.advice}" for leak in found if leak.scenario == story.scenario]
        parts += [_sentence("note", f"What to do: {text}") for text in advice]
        # A single setting has been told by the sentences.
        rows = list(_strongest(readings.of(story.scenario)))
        if len(rows) > 1:
            head = ("setting", "strongest attack", "gain over guessing", "verdict", "utility")
            parts.append(table(head, rows[:MOST]))
        if len(rows) > MOST:
            parts.append(line(f"  and {words.count(len(rows) - MOST, 'settings')} more in the report"))
    parts += [Text(), *_policy(policy(result))]
    if text := registered(result.manifest.get("register")):
        parts.append(line(f"Register: {text}.", "dim"))
    return Group(*parts)


def lines(result: Result, *, width: int = 100) -> list[str]:
    """The summary as plain lines, without colour."""
    stream = io.StringIO()
    Screen(file=stream, width=width, color_system=None, force_terminal=False).print(summary(result))
    return [text.rstrip() for text in stream.getvalue().splitlines()]


def heading(text: str, kind: str) -> Text:
    """A highlighted line; red if something leaks."""
    return line(text, LOOKS[kind][1] if kind in OUT else "bold")


def line(text: str, style: str = "") -> Text:
    """A line of literal text: no markup is interpreted; what would act, or begin another line, is shown."""
    return Text(visible(text), style=style)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A table without borders, readable in a log."""
    heads = [Column(name, overflow="fold") for name in columns]
    grid = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        grid.add_row(*(line(cell, LOOKS.get(cell, ("", ""))[1]) for cell in row))
    return Padding(grid, (0, 0, 0, 2))


def _sentence(kind: str, text: str) -> RenderableType:
    grid = Table.grid(Column(width=1), Column(overflow="fold"), padding=(0, 1, 0, 0))
    mark, style = LOOKS.get(kind, ("–", "dim"))
    grid.add_row(Text(mark, style=style), line(text, "dim" if kind == "note" else ""))
    return Padding(grid, (0, 0, 0, 2))


def _short(kind: str, text: str) -> Text:
    """A mark and as much of a text as one line holds."""
    mark, style = LOOKS.get(kind, ("–", "dim"))
    parts = ("  ", (mark, style), " ", visible(text))
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _strongest(own: Readings) -> Iterable[tuple[str, ...]]:
    """One row per setting: its worst finding among attacks with power, and the utility."""
    for name, rows in grouped(own.deciding, lambda r: tables.setting(r.finding)).items():
        top = worst(r for r in rows if r.finding.verdict != "no power") or rows[0]
        gain = f"{top.card.label} {top.gain} {top.gain_interval}"
        cost = next((u.text for u in own.utility if u.utility.cell == top.finding.cell), "–")
        yield (name, top.attack, gain, top.finding.verdict, cost)


def _policy(outcome: Policy) -> list[RenderableType]:
    if outcome.state == "none":
        return [line("Policy: no limits were set.", "dim")]
    kind = "leaks" if outcome.state == "broken" else ""
    parts: list[RenderableType] = [heading(f"Policy: {outcome.text}", kind)]
    for state, limits in outcome.groups:
        if state == "holds":
            continue
        parts += [_sentence(LIMIT_MARKS[state], f"{state}: {one.text}") for one in limits[:MOST]]
        if len(limits) > MOST:
            parts.append(line(f"  and {len(limits) - MOST} more {state}, in the report"))
    return parts

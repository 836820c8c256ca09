"""The first screen of a run: banner, one sentence, matrix, a card per leak, and the rest in a line each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from glasshouse.report import words
from glasshouse.report.first_screen import leaks, matrix
from glasshouse.report.first_screen.evidence import Bar, Gallery, bar, gallery
from glasshouse.report.readings import Readings
from glasshouse.report.verdicts.answer import Answer
from glasshouse.report.verdicts.stories import Story

DEMONSTRATION = (
    "Public demonstration data were attacked, nobody's secrets. What is said below holds for such a set-up, "
    "and says nothing about your own data until you audit them."
)

TEST = "A test, no theft: the auditor attacked what clients send, on data that it may look at."
GLOSSED = {matrix.LABELS: "labels (such as a diagnosis)"}
"""Kinds of private data whose name says too little in a sentence."""


@final
@dataclass(frozen=True, kw_only=True)
class Card:
    """A leak with what stands beside its words; ``gallery``: None where there is nothing to look at."""

    leak: leaks.Leak
    bar: Bar
    gallery: Gallery | None


@final
@dataclass(frozen=True, kw_only=True)
class Screen:
    """What the first screen shows.

    Attributes:
        banner: that the data are for demonstration; empty where any are not.
        note: otherwise: what kind of run it is.
        headline: the answer, behind that word where nobody's secrets came out.
        sentence: the whole result.
        matrix: who attacks against what can come out.
        cards: the leaks, worst first.
        quiet: scenarios without a leak, each with the next step.
        glossary: (term, explanation).
    """

    banner: str
    note: str
    headline: str
    sentence: str
    matrix: matrix.Matrix
    cards: tuple[Card, ...]
    quiet: tuple[tuple[Story, str], ...]
    glossary: tuple[tuple[str, str], ...]


def screen(
    readings: Readings, answer: Answer, stories: Sequence[Story], run: Path, *, show_private: bool
) -> Screen:
    """The first screen of a result.

    Args:
        readings: of the result.
        answer: its headline.
        stories: one per scenario.
        run: the run directory, which holds the images.
        show_private: do not hide private data.
    """
    found = leaks.leaks(readings)
    quiet, defences = leaks.quiet(stories, found, readings), leaks.explain(readings, found)
    table = matrix.matrix(readings)
    threats, text = readings.result.threats, answer.text
    is_demonstration = bool(threats) and all(card.data_public for card in threats)
    return Screen(
        banner=DEMONSTRATION if is_demonstration else "",
        note="" if is_demonstration else TEST,
        headline=f"Demonstration: {text[0].lower()}{text[1:]}" if is_demonstration else text,
        sentence=sentence(found, table, len(readings.result.scenarios)) or answer.qualification,
        matrix=table,
        cards=tuple(leak_cards(readings, found, run, show_private=show_private)),
        quiet=tuple(quiet),
        glossary=(*leaks.GLOSSARY, *defences),
    )


def leak_cards(
    readings: Readings, found: Sequence[leaks.Leak], run: Path | None, *, show_private: bool
) -> list[Card]:
    """A card per leak, worst first; without a ``run`` directory they show no examples."""
    public = {card.scenario for card in readings.result.threats if card.data_public}
    cards = []
    for leak in found:
        # What an attack claimed of which only the label is right would read as a reconstruction.
        beside = None
        if run is not None and leak.reading.finding.verdict != "label leak":
            show = show_private or leak.scenario in public
            beside = gallery(leak.reading, readings, run, show=show)
        cards.append(Card(leak=leak, bar=bar(leak.reading), gallery=beside))
    return cards


def sentence(found: Sequence[leaks.Leak], table: matrix.Matrix, scenarios: int) -> str:
    """What came out, in how many of the ``scenarios``, and the worst of it; empty if nothing did."""
    if not found:
        return ""
    out = [
        kind
        for i, kind in enumerate(table.kinds)
        if any(row.cells[i].state == "came out" for row in table.rows)
    ]
    kinds = words.join_words([GLOSSED.get(kind, kind) for kind in out]) or "data"
    leaking = len({leak.scenario for leak in found})
    where = f" in {leaking} of {words.count(scenarios, 'scenarios')}" if scenarios > 1 else ""
    worst = found[0].title
    return f"{words.capital(kinds)} came out{where}; the worst: {worst[0].lower()}{worst[1:]}."

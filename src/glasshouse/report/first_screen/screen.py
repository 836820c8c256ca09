"""The first screen of a run: banner, one sentence, matrix, a card per leak, and the rest in a line each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from glasshouse.report import words
from glasshouse.report.first_screen import leaks, matrix
from glasshouse.report.first_screen.evidence import Bar, Gallery, bar, gallery
from glasshouse.report.verdicts.answer import Answer
from glasshouse.report.verdicts.choice import Choice
from glasshouse.report.verdicts.stories import Story
from glasshouse.results.records import Result

DEMONSTRATION = (
    "Public demonstration data were attacked, nobody's secrets. What is said below holds for such a set-up, "
    "and says nothing about your own data until you audit them."
)


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
        sentence: the whole result.
        matrix: who attacks against what can come out.
        cards: the leaks, worst first.
        quiet: scenarios without a leak, each with the next step.
        glossary: (term, explanation).
    """

    banner: str
    sentence: str
    matrix: matrix.Matrix
    cards: tuple[Card, ...]
    quiet: tuple[tuple[Story, str], ...]
    glossary: tuple[tuple[str, str], ...]


def screen(
    result: Result, choice: Choice, answer: Answer, stories: Sequence[Story], run: Path, *, show_private: bool
) -> Screen:
    """The first screen of a result.

    Args:
        result: with one utility per setting.
        choice: its deciding findings.
        answer: its headline.
        stories: one per scenario.
        run: the run directory, which holds the images.
        show_private: do not hide private data.
    """
    cards = leak_cards(result, choice, run, show_private=show_private)
    found, table = [card.leak for card in cards], matrix.matrix(result, choice)
    public = [card for card in result.threats if card.data_public]
    return Screen(
        banner=DEMONSTRATION if public and len(public) == len(result.threats) else "",
        sentence=sentence(found, table, result) or answer.qualification,
        matrix=table,
        cards=tuple(cards),
        quiet=tuple(leaks.quiet(stories, found, choice)),
        glossary=(*leaks.GLOSSARY, *leaks.explain(result, found)),
    )


def leak_cards(result: Result, choice: Choice, run: Path | None, *, show_private: bool) -> list[Card]:
    """A card per leak, worst first; without a ``run`` directory they show no examples."""
    public = {card.scenario for card in result.threats if card.data_public}
    cards = []
    for leak in leaks.leaks(result, choice):
        f, show = leak.finding, show_private or leak.scenario in public
        # What an attack claimed of which only the label is right would read as a reconstruction.
        beside = None
        if run is not None and f.verdict != "label leak":
            beside = gallery(f, result, run, cards=choice.cards, show=show)
        cards.append(Card(leak=leak, bar=bar(f, choice.cards), gallery=beside))
    return cards


def sentence(found: Sequence[leaks.Leak], table: matrix.Matrix, result: Result) -> str:
    """What came out, in how many scenarios, and the worst of it; empty if nothing did."""
    if not found:
        return ""
    out = [
        kind
        for i, kind in enumerate(table.kinds)
        if any(row.cells[i].state == "came out" for row in table.rows)
    ]
    kinds = words.join_words(out) or "data"
    total, leaking = len(result.scenarios), len({leak.scenario for leak in found})
    where = f" in {leaking} of {words.count(total, 'scenarios')}" if total > 1 else ""
    worst = found[0].title
    return f"{kinds[0].upper()}{kinds[1:]} came out{where}; the worst: {worst[0].lower()}{worst[1:]}."

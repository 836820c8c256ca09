"""What stands beside a leak's words: originals above reconstructions, and its number on a scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

from markupsafe import Markup

from glasshouse.errors import GlasshouseError
from glasshouse.report import numbers, pictures, svg
from glasshouse.report.readings import Reading, Readings
from glasshouse.results.exhibits import Place

PAIRS: Final = 4
"""Pictures shown beside a leak; all of them stand in the scenario's section."""
TEXTS: Final = 2
"""Sentences shown beside a leak."""


class Pair(NamedTuple):
    """One example: the original, and what the attack made of it."""

    original: pictures.Picture
    rebuilt: pictures.Picture


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The first examples of a leak's attack; not a selection.

    Attributes:
        names: of the originals and of what the attack made of them.
        pairs: pictures; empty for examples in words.
        texts: (original, claim); empty for pictures.
        hidden: they are blurred or replaced by their length.
    """

    names: tuple[str, str]
    pairs: tuple[Pair, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    hidden: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Bar:
    """A finding's value, interval and guess on one scale: drawn, and in words.

    ``label_alone``: of a label leak, what somebody reaches who knows the labels alone.
    """

    track: Markup
    axis: Markup
    label: str
    value: str
    span: str
    guess: str
    label_alone: str = ""


def bar(reading: Reading) -> Bar:
    """The bar of a finding.

    Raises:
        BadValue: one of its numbers is not finite.
    """
    finding, card = reading.finding, reading.card
    scale = svg.scale_of([finding], card)
    knows = next((rung for rung in finding.ladder if rung.knows == "label"), None)
    return Bar(
        track=svg.track(finding, scale),
        axis=svg.axis(scale, labels=svg.tick_names(scale, card)),
        label=card.label,
        value=reading.value,
        span=f"({reading.interval.strip('[]').replace(', ', ' to ')})",
        guess=reading.baseline,
        label_alone=numbers.value(knows.value, card) if knows and finding.verdict == "label leak" else "",
    )


def gallery(reading: Reading, readings: Readings, run: Path, *, show: bool) -> Gallery | None:
    """What a finding's attack made of the first examples of its cell.

    Args:
        reading: of the cell and the attack.
        readings: of the finding's result.
        run: the run directory, which holds the images.
        show: do not hide private data.

    Returns:
        None where no exhibit shows examples, or where it cannot be read: the section then says why.
    """
    finding, cards = reading.finding, readings.cards
    title = Place(scenario=finding.scenario, axes=finding.axes).heading(finding.attack)
    beside = (e for e in readings.result.exhibits if (e.scenario, e.title) == (finding.scenario, title))
    exhibit = next((e for e in beside if e.kind in ("pictures", "sentences")), None)
    columns = [str(name) for name in exhibit.data.get("columns", ())] if exhibit else []
    # Without the column of the private examples nothing shows what was made of them.
    if exhibit is None or len(columns) < 2:
        return None
    names = (columns[0], cards.attack(columns[1]))
    hidden = bool(exhibit.private) and not show
    try:
        if exhibit.kind == "sentences":
            rows = pictures.spoken(exhibit, run, show=show).rows[:TEXTS]
            return Gallery(names=names, texts=tuple((row[1], row[2]) for row in rows), hidden=hidden)
        pairs = tuple(_pairs(pictures.sheet(exhibit, run, cards=cards, show=show), columns))
        return Gallery(names=names, pairs=pairs[:PAIRS], hidden=hidden)
    except GlasshouseError:
        return None


def _pairs(sheet: pictures.Sheet, columns: Sequence[str]) -> list[Pair]:
    """The pictures of the first two columns of an exhibit, however its sheet is turned."""
    rows = {row.label: row.pictures for row in sheet.rows}
    if columns[0] in rows and columns[1] in rows:
        return [Pair(*pair) for pair in zip(rows[columns[0]], rows[columns[1]], strict=True)]
    return [Pair(row.pictures[0], row.pictures[1]) for row in sheet.rows]

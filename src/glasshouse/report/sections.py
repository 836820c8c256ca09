"""The content of the page: one section per scenario with its threat, findings, exhibits and refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from glasshouse.errors import GlasshouseError
from glasshouse.report import exhibits, figures, pictures
from glasshouse.report.cards import Cards
from glasshouse.report.readings import Reading, Readings
from glasshouse.report.verdicts.stories import Story
from glasshouse.results.cards import ThreatCard
from glasshouse.results.records import Exhibit, Result


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """An exhibit on the page: its drawing, or the error that prevented it."""

    exhibit: Exhibit
    drawing: exhibits.Drawing | None = None
    trouble: GlasshouseError | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Everything about one scenario.

    Attributes:
        anchor: prefix of link targets; independent of the name.
        result: the part of the result that is about this scenario; the template formats its rows.
        findings: its findings, read.
        sheets: contact sheets.
        lost: image exhibits that could not be read.
        links: (anchor, title) of the non-empty parts.
    """

    anchor: str
    result: Result
    findings: tuple[Reading, ...]
    card: ThreatCard | None
    story: Story
    panels: tuple[figures.Panel, ...]
    trade: figures.Trade | None
    sheets: tuple[pictures.Sheet, ...]
    lost: tuple[Shown, ...]
    exhibits: tuple[Shown, ...]

    @property
    def links(self) -> list[tuple[str, str]]:
        parts = [
            ("threat", "Threat", self.card),
            ("leak", "Leak against defence", self.panels),
            ("victims", "Victim by victim", any(f.victims for f in self.result.findings)),
            ("cost", "Utility", self.trade),
            ("pictures", "Pictures", self.sheets or self.lost),
            ("exhibits", "Exhibits", self.exhibits),
            ("contrasts", "Attack against attack", self.result.contrasts),
            ("refusals", "Not run", self.result.refusals),
            ("controls", "Controls", self.result.findings),
            ("findings", "All findings", self.result.findings),
        ]
        return [(f"{self.anchor}-{key}", title) for key, title, content in parts if content]


def sections(readings: Readings, stories: Sequence[Story], run: Path, *, show_private: bool) -> list[Section]:
    """One section per scenario, in the order of the suite; ``stories``: the sentences on each."""
    by_name = {story.scenario: story for story in stories}
    cards, parts = readings.cards, []
    for i, name in enumerate(readings.result.scenarios, start=1):
        own = readings.of(name)
        card = next(iter(own.result.threats), None)
        # Private data are in clear only where they are public anyhow, or on demand.
        show = show_private or (card is not None and card.data_public)
        pieces = [_show(e, own.result.exhibits, run, cards, show=show) for e in own.result.exhibits]
        drawings = [s for s in pieces if isinstance(s, Shown)]
        part = Section(
            anchor=f"s{i}",
            result=own.result,
            findings=own.every,
            card=card,
            story=by_name[name],
            panels=tuple(figures.panels(own.every, own.utility)),
            trade=figures.trade(own.every, own.utility),
            sheets=tuple(pictures.merge_sheets([s for s in pieces if isinstance(s, pictures.Sheet)])),
            lost=tuple(s for s in drawings if s.exhibit.kind == "pictures"),
            exhibits=tuple(s for s in drawings if s.exhibit.kind != "pictures"),
        )
        parts.append(part)
    return parts


def _show(
    exhibit: Exhibit, beside: Sequence[Exhibit], run: Path, cards: Cards, *, show: bool
) -> Shown | pictures.Sheet:
    """Draw an exhibit; if that fails, show the error in its place instead of losing the whole report."""
    try:
        if exhibit.kind == "pictures":
            return pictures.sheet(exhibit, run, cards=cards, show=show)
        if exhibit.kind == "sentences":
            tail = pictures.HIDDEN if exhibit.private and not show else ""
            titled = replace(exhibit, title=cards.title(exhibit.title), caption=exhibit.caption + tail)
            return Shown(exhibit=titled, drawing=pictures.spoken(exhibit, run, show=show))
        return Shown(exhibit=exhibit, drawing=exhibits.draw(exhibit, beside=beside))
    except GlasshouseError as error:
        return Shown(exhibit=exhibit, trouble=error)

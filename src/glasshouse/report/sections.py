"""The content of the page: one section per scenario with its threat, findings, exhibits and refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from glasshouse.errors import GlasshouseError
from glasshouse.report import exhibits, figures, pictures, tables
from glasshouse.report.cards import Cards
from glasshouse.report.verdicts import stories
from glasshouse.report.verdicts.choice import Choice
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
        sheets: contact sheets.
        lost: image exhibits that could not be read.
        uncontrolled: attacks without a control.
        victims: per-victim verdicts of each finding.
        links: (anchor, title) of the non-empty parts.
        notes: on the metrics of the findings.
    """

    anchor: str
    name: str
    card: ThreatCard | None
    story: stories.Story
    panels: tuple[figures.Panel, ...]
    trade: figures.Trade | None
    sheets: tuple[pictures.Sheet, ...]
    lost: tuple[Shown, ...]
    exhibits: tuple[Shown, ...]
    contrasts: tuple[tables.ContrastRow, ...]
    refusals: tuple[tables.RefusalRow, ...]
    controls: tuple[tuple[str, list[tables.ControlRow]], ...]
    uncontrolled: tuple[str, ...]
    findings: tuple[tables.FindingRow, ...]
    notes: tuple[str, ...]
    victims: tuple[tables.VictimSheet, ...]

    @property
    def links(self) -> list[tuple[str, str]]:
        parts = [
            ("threat", "Threat", self.card),
            ("leak", "Leak against defence", self.panels),
            ("victims", "Victim by victim", self.victims),
            ("cost", "Utility", self.trade),
            ("pictures", "Pictures", self.sheets or self.lost),
            ("exhibits", "Exhibits", self.exhibits),
            ("contrasts", "Attack against attack", self.contrasts),
            ("refusals", "Not run", self.refusals),
            ("controls", "Controls", self.controls or self.uncontrolled),
            ("findings", "All findings", self.findings),
        ]
        return [(f"{self.anchor}-{key}", title) for key, title, content in parts if content]


def sections(result: Result, run: Path, choice: Choice, *, show_private: bool) -> list[Section]:
    """One section per scenario, in the order of the suite."""
    by_name = {story.scenario: story for story in stories.stories(result, choice)}
    return [
        _section(result, run, by_name[name], choice.of(name), anchor=f"s{i}", show_private=show_private)
        for i, name in enumerate(stories.scenarios(result), start=1)
    ]


def _section(
    result: Result, run: Path, story: stories.Story, choice: Choice, *, anchor: str, show_private: bool
) -> Section:
    name, cards = story.scenario, choice.cards
    own_findings = [f for f in result.findings if f.scenario == name]
    utility = [u for u in result.utility if u.scenario == name]
    card = next((t for t in result.threats if t.scenario == name), None)
    show = show_private or (card is not None and card.data_public)
    own = [e for e in result.exhibits if e.scenario == name]
    pieces = [_show(e, own, run, cards, show=show) for e in own]
    sheets = [s for s in pieces if isinstance(s, pictures.Sheet)]
    drawings = [s for s in pieces if isinstance(s, Shown)]
    return Section(
        anchor=anchor,
        name=name,
        card=card,
        story=story,
        panels=tuple(figures.panels(own_findings, utility, cards)),
        trade=figures.trade(own_findings, utility, cards),
        sheets=tuple(pictures.merge_sheets(sheets)),
        lost=tuple(s for s in drawings if s.exhibit.kind == "pictures"),
        exhibits=tuple(s for s in drawings if s.exhibit.kind != "pictures"),
        contrasts=tuple(tables.contrasts((c for c in result.contrasts if c.scenario == name), cards)),
        refusals=tuple(tables.refusals(r for r in result.refusals if r.scenario == name)),
        controls=tuple(tables.controls(own_findings, cards)),
        uncontrolled=tuple(tables.attacks_without_control(own_findings, cards)),
        findings=tuple(tables.findings(own_findings, cards)),
        notes=cards.notes(f.metric for f in own_findings),
        victims=tuple(tables.victim_sheets(own_findings, cards)),
    )


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

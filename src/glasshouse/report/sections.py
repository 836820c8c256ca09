"""The page's content, sorted: one section per scenario, each with what it saw, found, showed and refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from glasshouse.audit.result import Exhibit, Result, ThreatCard
from glasshouse.errors import GlasshouseError
from glasshouse.report import exhibits, figures, pictures, tables, verdict


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """An exhibit on the page: pictures, a drawing, or why neither could be made."""

    exhibit: Exhibit
    sheet: pictures.Sheet | None = None
    drawing: exhibits.Drawing | None = None
    trouble: GlasshouseError | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Everything about one scenario.

    Attributes:
        anchor: for links; does not depend on the name. counts: findings by verdict, the worst kind first.
        links: (anchor, title) of the parts that are there.
    """

    anchor: str
    name: str
    card: ThreatCard | None
    story: verdict.Story
    counts: tuple[tuple[str, int], ...]
    panels: tuple[figures.Panel, ...]
    trade: figures.Trade | None
    pictures: tuple[Shown, ...]
    exhibits: tuple[Shown, ...]
    refusals: tuple[tables.RefusalRow, ...]
    controls: tuple[tuple[str, list[tables.ControlRow]], ...]
    findings: tuple[tables.FindingRow, ...]

    @property
    def links(self) -> list[tuple[str, str]]:
        parts = [
            ("threat", "Threat", self.card),
            ("leak", "Leak against defence", self.panels),
            ("cost", "Utility", self.trade),
            ("pictures", "Pictures", self.pictures),
            ("exhibits", "Exhibits", self.exhibits),
            ("refusals", "Not run", self.refusals),
            ("controls", "Controls", self.controls),
            ("findings", "All findings", self.findings),
        ]
        return [(f"{self.anchor}-{key}", title) for key, title, content in parts if content]


def sections(result: Result, run: Path, *, show_private: bool) -> list[Section]:
    """One section per scenario, in the order of the suite."""
    told = {story.scenario: story for story in verdict.stories(result)}
    return [
        _section(result, run, name, told[name], anchor=f"s{i}", show_private=show_private)
        for i, name in enumerate(verdict.scenarios(result), start=1)
    ]


def _section(
    result: Result, run: Path, name: str, story: verdict.Story, *, anchor: str, show_private: bool
) -> Section:
    found = [f for f in result.findings if f.scenario == name]
    utility = [u for u in result.utility if u.scenario == name]
    card = next((t for t in result.threats if t.scenario == name), None)
    show = show_private or (card is not None and card.data_public)
    shown = [_show(e, run, show=show) for e in result.exhibits if e.scenario == name]
    kinds = [f.verdict for f in verdict.quoted(found)]
    return Section(
        anchor=anchor,
        name=name,
        card=card,
        story=story,
        counts=tuple((kind, kinds.count(kind)) for kind in verdict.ORDER if kind in kinds),
        panels=tuple(figures.panels(found, utility)),
        trade=figures.trade(found, utility),
        pictures=_of(shown, pictures_too=True),
        exhibits=_of(shown, pictures_too=False),
        refusals=tuple(tables.refusals(r for r in result.refusals if r.scenario == name)),
        controls=tuple(tables.controls(found)),
        findings=tuple(tables.findings(found)),
    )


def _of(shown: Sequence[Shown], *, pictures_too: bool) -> tuple[Shown, ...]:
    return tuple(s for s in shown if (s.exhibit.kind == "pictures") == pictures_too)


def _show(exhibit: Exhibit, run: Path, *, show: bool) -> Shown:
    """An exhibit that cannot be drawn is reported in its place; it must not cost the reader the report."""
    try:
        if exhibit.kind == "pictures":
            return Shown(exhibit=exhibit, sheet=pictures.sheet(exhibit, run, show=show))
        return Shown(exhibit=exhibit, drawing=exhibits.draw(exhibit))
    except GlasshouseError as error:
        return Shown(exhibit=exhibit, trouble=error)

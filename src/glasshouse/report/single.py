"""A page with a verdict and its exhibits: what commands beside an audit show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from glasshouse import __version__
from glasshouse.report.exhibits import Drawing, draw
from glasshouse.report.html import environment, save
from glasshouse.results.records import Exhibit


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """An exhibit with its drawing, as the templates take it."""

    exhibit: Exhibit
    drawing: Drawing
    trouble: None = None


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the page says first.

    Attributes:
        title: a few words.
        lead: one sentence.
        kind: a verdict on findings, which gives the colour.
        terms: words that the page uses, explained.
    """

    title: str
    lead: str
    kind: str
    terms: tuple[tuple[str, str], ...] = ()


def write_page(path: Path, *, verdict: Verdict, tagline: str, exhibits: Sequence[Exhibit]) -> Path:
    """Write the page to ``path``, whose folder is made; pictures are no exhibits of such a page.

    Raises:
        BadValue: an exhibit's data are not as its kind wants them.
        DiskFull: no room for the page.
        BadFile: the place cannot be written.
    """
    drawings = [Shown(exhibit=e, drawing=draw(e)) for e in exhibits]
    template = environment().get_template("single.html")
    return save(template.render(verdict=verdict, tagline=tagline, shown=drawings, version=__version__), path)

"""A page with one verdict and its exhibits, for commands other than an audit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from glasshouse import __version__
from glasshouse.report.exhibits import draw
from glasshouse.report.html import environment, save
from glasshouse.report.sections import Shown
from glasshouse.results.records import Exhibit


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The headline of the page.

    Attributes:
        title: a few words.
        lead: one sentence.
        kind: a finding's verdict; it sets the colour.
        terms: glossary of the page: (term, explanation).
    """

    title: str
    lead: str
    kind: str
    terms: tuple[tuple[str, str], ...] = ()


def write_page(path: Path, *, verdict: Verdict, tagline: str, exhibits: Sequence[Exhibit]) -> Path:
    """Write the page to ``path`` and create its folder; exhibits of kind ``pictures`` are not supported.

    Raises:
        BadValue: an exhibit's data do not fit its kind.
        DiskFull: not enough disk space.
        BadFile: the path cannot be written.
    """
    drawings = [Shown(exhibit=e, drawing=draw(e)) for e in exhibits]
    template = environment().get_template("single.html")
    return save(template.render(verdict=verdict, tagline=tagline, shown=drawings, version=__version__), path)

"""HTML pages, each self-contained and readable without its script, which only sorts tables.

The report of an audit; and a page with one verdict and its exhibits, for other commands.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from glasshouse import __version__
from glasshouse.disk import write_text
from glasshouse.outside.text import visible
from glasshouse.report import numbers, readings, svg, tables, words
from glasshouse.report.exhibits import draw
from glasshouse.report.first_screen.leaks import SCALE
from glasshouse.report.first_screen.screen import screen
from glasshouse.report.readings import ORDER
from glasshouse.report.sections import Shown, sections
from glasshouse.report.verdicts.answer import facts, overall
from glasshouse.report.verdicts.policy import MARKS, policy
from glasshouse.report.verdicts.stories import stories
from glasshouse.results.files import read_result
from glasshouse.results.records import Exhibit, Result


def write_html(run: Path, *, show_private: bool = False) -> Path:
    """Write ``report.html`` beside the ``result.json`` of a run directory.

    Args:
        run: the run directory.
        show_private: do not blur images of private data. Images of public data sets are never blurred.

    Returns:
        The page's path.

    Raises:
        BadFile: no readable ``result.json``, or one of a newer format.
        BadValue: the result holds a non-finite number.
        DiskFull: not enough disk space.
    """
    result = read_result(run / "result.json")
    return save(render(result, run, show_private=show_private), run / "report.html")


def render(result: Result, run: Path, *, show_private: bool = False) -> str:
    """The page as text; images are read from the run directory.

    One way: the result is read once, each stage takes what the stages before it made, and the template lays
    it out.
    """
    read = readings.read(result)
    told = stories(read)
    answer = overall(read)
    first = screen(read, answer, told, run, show_private=show_private)
    parts = sections(read, told, run, show_private=show_private)
    return page(
        "report.html",
        suite=result.suite,
        answer=answer,
        screen=first,
        scale=SCALE,
        facts=facts(result),
        anchors={part.story.scenario: part.anchor for part in parts},
        cards=read.cards,
        terms=read.terms,
        policy=policy(result),
        sections=parts,
        manifest=tables.manifest(result.manifest),
        show_private=show_private,
    )


def environment() -> Environment:
    """The Jinja environment of this package: everything is escaped, and an undefined name is an error."""
    env = Environment(
        loader=PackageLoader("glasshouse.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "slug": svg.slug,
        "unbroken": keep_intervals_together,
        "counted": words.count,
    }
    script = env.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    env.globals |= {"mark": _mark, "orders": ORDER, "limit_marks": MARKS}
    env.globals |= {"numbers": numbers, "readings": readings, "tables": tables, "words": words}
    env.globals["script_hash"] = f"sha256-{digest}"  # no other script may run
    return env


def page(template: str, **content: Any) -> str:
    """A whole page from a template; no character that acts or hides is left in it."""
    text = environment().get_template(template).render(**content, version=__version__)
    return visible(text, several_lines=True)


def keep_intervals_together(text: str) -> str:
    """Replace spaces inside intervals by non-breaking ones, so that each stays on one line.

    Examples:
        >>> keep_intervals_together("SSIM 0.6 [0.5, 0.7] here").count(numbers.NBSP)
        1
    """
    return re.sub(r"\[[^\[\]]{1,40}\]", lambda match: match[0].replace(" ", numbers.NBSP), text)


def save(text: str, path: Path) -> Path:
    """Write a page; missing folders are created.

    Raises:
        DiskFull: not enough disk space.
        BadFile: the path cannot be written.
    """
    write_text(path, text, fix="free some space; 'glasshouse report RUN' writes the page again")
    return path


class Verdict(NamedTuple):
    """The headline of the page.

    Attributes:
        title: a few words.
        lead: one sentence.
        kind: a finding's verdict; it sets the colour.
        word: one word before the title, the answer to ``question``; empty: none.
        question: what the word answers.
        terms: glossary of the page: (term, explanation).
    """

    title: str
    lead: str
    kind: str
    word: str = ""
    question: str = ""
    terms: tuple[tuple[str, str], ...] = ()


def write_page(path: Path, *, verdict: Verdict, tagline: str, exhibits: Sequence[Exhibit]) -> Path:
    """Write the page to ``path`` and create its folder; exhibits of kind ``pictures`` are not supported.

    Raises:
        BadValue: an exhibit's data do not fit its kind.
        DiskFull: not enough disk space.
        BadFile: the path cannot be written.
    """
    drawings = [Shown(exhibit=e, drawing=draw(e)) for e in exhibits]
    return save(page("single.html", verdict=verdict, tagline=tagline, shown=drawings), path)


def _mark(kind: str) -> Markup:
    """The marker of a verdict, sized for a line of text."""
    frame = Markup(
        '<svg class="glyph {}" width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true">{}</svg>'
    )
    return frame.format(svg.slug(kind), svg.mark(kind))

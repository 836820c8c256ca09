"""A finished audit: its folder and results."""

from html import escape
from pathlib import Path
from typing import final

from glasshouse.outside.files import path_of
from glasshouse.outside.screen import Screen
from glasshouse.report.export import write_export
from glasshouse.report.html import render, write_html
from glasshouse.report.tables import setting
from glasshouse.report.terminal import brief, summary
from glasshouse.results.files import read_result
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Contrast, Finding, Refused, Result, Utility, Verdict
from glasshouse.results.rows import Rows

__all__ = ["Run", "load"]


@final
class Run:
    """A finished audit. In a notebook it displays its report.

    Attributes:
        folder: the run directory (README: what a run writes).
        result: the contents of ``result.json``.
    """

    def __init__(self, folder: Path, result: Result) -> None:
        self.folder, self.result = folder, result

    @property
    def findings(self) -> Rows[Finding]:
        """Every number, with its interval, null adversary, control and verdict."""
        return Rows(self.result.findings)

    @property
    def contrasts(self) -> Rows[Contrast]:
        """Differences in leakage between attacks on the same victims."""
        return Rows(self.result.contrasts)

    @property
    def utility(self) -> Rows[Utility]:
        """Held-out accuracy of each cell."""
        return Rows(self.result.utility)

    @property
    def refusals(self) -> Rows[Refused]:
        """What could not run, and why."""
        return Rows(self.result.refusals)

    @property
    def verdicts(self) -> dict[tuple[str, str, str], Verdict]:
        """The verdicts of the primary findings, by (setting, attack, metric)."""
        return {(setting(f), f.attack, f.metric): f.verdict for f in self.result.findings if f.primary}

    def show(self, *, full: bool = False) -> None:
        """Print one screen, as the command line does, and the path of the report.

        Args:
            full: print every scenario of a suite.
        """
        console = Screen()
        console.print(summary(self.result) if full else brief(self.result))
        console.print(f"report: {self.folder / 'report.html'}", soft_wrap=True)

    def write_report(self, *, show_private: bool = False) -> Path:
        """Write ``report.html`` again, and return its path.

        Args:
            show_private: do not blur pictures of private data.

        Raises:
            BadFile: the folder no longer has a readable ``result.json``.
        """
        return write_html(self.folder, show_private=show_private)

    def export(
        self,
        *,
        csv: Path | str | None = None,
        latex: Path | str | None = None,
        figures: Path | str | None = None,
        annex: bool = False,
        show_private: bool = False,
    ) -> list[Path]:
        """Write tables and figures into folders, and return the files.

        Args:
            csv: for one ``.csv`` file each of findings, contrasts and utility.
            latex: for one ``.tex`` table (booktabs) of each scenario's findings and contrasts.
            figures: for the report's charts (``.svg``) and pictures (``.png``).
            annex: write the annex of a data-protection impact assessment into the run directory, as
                ``annex.html`` and ``annex.md``.
            show_private: do not blur pictures of private data.

        Raises:
            BadValue: nothing is asked for.
            BadFile: a folder cannot be written, or pictures of the run are missing.
        """
        folders = {"csv": csv, "latex": latex, "figures": figures}
        targets = {kind: Path(place) for kind, place in folders.items() if place is not None}
        return write_export(self.result, self.folder, targets, annex=annex, show_private=show_private)

    def __repr__(self) -> str:
        leaks = sum(f.verdict in OUT for f in self.result.findings if f.primary)
        primary = sum(f.primary for f in self.result.findings)
        return f"Run('{self.folder}': {leaks} of {primary} primary findings leak)"

    def _repr_html_(self) -> str:
        page = escape(render(self.result, self.folder), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="720" style="border: 0"></iframe>'


def load(folder: Path | str) -> Run:
    """Load a finished run from ``folder``.

    Raises:
        BadFile: it contains no readable ``result.json``.
        BadValue: no path.
    """
    place = path_of(folder, "run")
    return Run(place, read_result(place / "result.json"))

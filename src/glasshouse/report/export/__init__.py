"""Export the tables and figures of a run as separate files, for a paper or a spreadsheet."""

from collections.abc import Callable, Mapping
from pathlib import Path

from glasshouse.errors import BadValue
from glasshouse.report.export.annex import write_annex
from glasshouse.report.export.drawings import figure_files
from glasshouse.report.export.tables import csv_files, latex_files
from glasshouse.results.records import Result

__all__ = ["write_export"]


def write_export(
    result: Result,
    run: Path,
    folders: Mapping[str, Path],
    *,
    annex: bool = False,
    show_private: bool = False,
) -> list[Path]:
    """Write the file kinds in ``folders`` (``csv``, ``latex``, ``figures``) and return the paths.

    Args:
        result: the result of the run.
        run: the run directory, which holds the images.
        folders: kind of file → output folder.
        annex: write ``annex.html`` and ``annex.md`` into the run directory.
        show_private: do not blur images of private data.

    Raises:
        BadValue: nothing is asked for.
        BadFile: a folder cannot be written.
        DiskFull: not enough disk space.
    """
    writers: dict[str, Callable[[Path], list[Path]]] = {
        "csv": lambda place: csv_files(result, place),
        "latex": lambda place: latex_files(result, place),
        "figures": lambda place: figure_files(result, run, place, show_private=show_private),
    }
    if not folders and not annex:
        raise BadValue(
            "export of a run",
            needs="at least one of csv, latex and figures, with a folder, or annex",
            got="none of them",
            fix="for example --csv tables",
        )
    paths = [path for kind, place in folders.items() for path in writers[kind](place)]
    return [*paths, *(write_annex(result, run) if annex else ())]

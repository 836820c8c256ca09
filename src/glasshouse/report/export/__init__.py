"""Tables and figures of a run as files of their own, for a paper or a spreadsheet."""

from collections.abc import Callable, Mapping
from pathlib import Path

from glasshouse.errors import BadValue
from glasshouse.report.export.drawings import figure_files
from glasshouse.report.export.tables import csv_files, latex_files
from glasshouse.results.records import Result

__all__ = ["write_export"]


def write_export(
    result: Result, run: Path, folders: Mapping[str, Path], *, show_private: bool = False
) -> list[Path]:
    """Write what ``folders`` names (``csv``, ``latex``, ``figures``) and return the files.

    Args:
        result: of the run.
        run: its folder, which has the pictures.
        folders: kind of file → where to.
        show_private: do not blur pictures of private data.

    Raises:
        BadValue: nothing is named.
        BadFile: a folder cannot be written.
        DiskFull: no room.
    """
    writers: dict[str, Callable[[Path], list[Path]]] = {
        "csv": lambda place: csv_files(result, place),
        "latex": lambda place: latex_files(result, place),
        "figures": lambda place: figure_files(result, run, place, show_private=show_private),
    }
    if not folders:
        raise BadValue(
            "export of a run",
            needs="at least one of csv, latex and figures, with a folder",
            got="none of them",
            fix="for example --csv tables",
        )
    return [path for kind, place in folders.items() for path in writers[kind](place)]

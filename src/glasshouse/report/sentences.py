"""Private sentences beside claimed ones; private ones are hidden unless the user asks."""

from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile
from glasshouse.report.exhibits import Drawing
from glasshouse.results.files import sentences
from glasshouse.results.records import Exhibit

HIDDEN: Final = (
    " Hidden: these are private data, and a claim that is right is as private as its original; "
    "--show-private shows them."
)


def spoken(exhibit: Exhibit, run: Path, *, show: bool) -> Drawing:
    """The sentences of an exhibit as a table.

    Where it holds private data and ``show`` is False, of **every** sentence only the number of words is
    left: a claim that is right is the private sentence.

    Raises:
        BadFile: the file is missing, outside the run directory, or its rows do not have the columns.
    """
    columns = [str(column) for column in exhibit.data.get("columns", ())]
    names = [str(name) for name in exhibit.data.get("rows", ())]
    rows = sentences(exhibit, run)
    if len(rows) != len(names) or any(len(row) != len(columns) for row in rows):
        raise BadFile(
            f"sentences '{exhibit.title}'",
            needs=f"{len(names)} rows of {len(columns)} texts",
            got=f"{len(rows)} rows",
            fix="run the audit again",
        )
    hide = [not show and column in exhibit.private for column in columns]
    return Drawing(
        columns=("", *columns),
        rows=tuple(
            (name, *(_hidden(text) if h else text for text, h in zip(row, hide, strict=True)))
            for name, row in zip(names, rows, strict=True)
        ),
    )


def _hidden(text: str) -> str:
    words = len(text.split())
    return text if words <= 1 and not text.isalnum() else f"({words} words, hidden)"

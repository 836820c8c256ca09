"""Handling of unexpected errors: a failure report in the run directory, and exit code 70."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from glasshouse import __version__
from glasshouse.errors import GlasshouseError
from glasshouse.outside.text import visible

FAILED: Final = 70
"""Exit code of an unexpected error (EX_SOFTWARE of sysexits.h)."""
REPORT: Final = "failure.txt"


@contextmanager
def failure_report(folder: Path) -> Iterator[None]:
    """Within the block, an unexpected error writes ``failure.txt`` to the run directory ``folder``.

    The directory need not exist. The error itself is re-raised, with the path of the report as a note.
    """
    try:
        yield
    except GlasshouseError:
        raise
    except Exception as error:
        error.add_note(f"report  {write_failure(error, folder)}")
        raise


def write_failure(error: BaseException, folder: Path) -> str:
    """Write the traceback to ``failure.txt`` in ``folder``.

    Returns:
        The file's path, or why it could not be written (the disk itself may have failed).
    """
    path = folder / REPORT
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    lines = [
        f"glasshouse {__version__}, Python {sys.version.split()[0]}, {when}",
        f"command: {' '.join(sys.argv[1:])}",
        "",
        *traceback.format_exception(error),
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(visible("\n".join(lines), several_lines=True), encoding="utf-8")
    except OSError as trouble:
        return f"could not be written to {path}: {trouble.strerror or trouble}"
    return str(path)


def failure_message(error: Exception) -> str:
    """The message for the user: what failed, where the report is, and what to do."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("report  ")]
    cause = f"{type(error).__name__}: {error}".splitlines()[0]
    fix = (
        "--resume goes on with what is finished; --debug shows the traceback; please report this as an issue"
    )
    lines = ["glasshouse failed in a way that nobody foresaw", f"got     {cause}", *notes, f"fix     {fix}"]
    return "\n  ".join(lines)

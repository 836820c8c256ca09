"""What happens when something fails that nobody foresaw: a report of it beside the run, and exit code 70."""

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, final

from glasshouse import __version__
from glasshouse.errors import GlasshouseError

FAILED: Final = 70
"""The exit code of an error that is none of ours (EX_SOFTWARE of sysexits.h)."""
REPORT: Final = "failure.txt"


@final
class FailureReport:
    """For the length of a ``with`` block: an unforeseen error leaves ``failure.txt`` in the run directory.

    The error itself goes on to the caller, with the report's place as a note.

    Args:
        folder: the run directory; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the report where the error is neither ours nor the user's."""
        if isinstance(error, Exception) and not isinstance(error, GlasshouseError):
            error.add_note(f"report  {write_failure(error, self._folder)}")


def write_failure(error: BaseException, folder: Path) -> str:
    """Write the traceback to ``failure.txt`` in ``folder``.

    Returns:
        The file's path, or why it could not be written: the disk may be what failed.
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
        path.write_text("\n".join(lines), encoding="utf-8")
    except OSError as trouble:
        return f"could not be written to {path}: {trouble.strerror or trouble}"
    return str(path)


def failure_message(error: Exception) -> str:
    """What the user sees: what failed, where the report is, and what to do."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("report  ")]
    cause = f"{type(error).__name__}: {error}".splitlines()[0]
    fix = (
        "--resume goes on with what is finished; --debug shows the traceback; please report this as an issue"
    )
    lines = ["glasshouse failed in a way that nobody foresaw", f"got     {cause}", *notes, f"fix     {fix}"]
    return "\n  ".join(lines)

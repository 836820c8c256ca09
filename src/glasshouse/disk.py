"""Writing a file whole or not at all, and saying so where there is no room for it. Needs no torch."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile, DiskFull

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
RESUME: Final = "make room and run again with --resume; what was finished is kept"
"""What to do about a full disk while an audit runs."""


def write_bytes(path: Path, data: bytes, *, fix: str = RESUME, durable: bool = False) -> None:
    """Write ``data`` under ``path``, atomically; missing folders are made.

    Args:
        path: of the file.
        data: all of it.
        fix: what to do where the disk is full.
        durable: wait until the disk has it, so that a crash of the machine cannot take it back.

    Raises:
        DiskFull: no space or quota left; a file that was there before is unharmed.
        BadFile: the place cannot be written.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        raise unwritable(path, error, fix=fix) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str, *, fix: str = RESUME) -> None:
    """Write ``text`` as UTF-8, atomically. Arguments and errors as of :func:`write_bytes`."""
    write_bytes(path, text.encode(), fix=fix)


def unwritable(path: Path, error: OSError, *, fix: str = RESUME) -> DiskFull | BadFile:
    """The error to raise for a file that could not be written; ``fix``: what to do about a full disk."""
    got = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(f"file '{path}'", needs="room on the disk", got=got, fix=fix)
    return BadFile(
        f"file '{path}'", needs="a place that can be written", got=got, fix="choose another folder with --out"
    )


def _umask() -> int:
    """The process's file mask; mkstemp ignores it, and files of a run are for sharing."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Atomic file writes, with a clear error when the disk is full; and where the cache is. Needs no torch."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile, DiskFull

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
CACHE: Final = "GLASSHOUSE_CACHE"
"""Environment variable that names the cache folder."""
RESUME: Final = "make room and run again with --resume; what was finished is kept"
"""The advice for a full disk while an audit runs."""


def write_bytes(path: Path, data: bytes, *, fix: str = RESUME, durable: bool = False) -> None:
    """Write ``data`` to ``path`` atomically; missing folders are created.

    Args:
        path: of the file.
        data: the whole content.
        fix: advice for the error when the disk is full.
        durable: fsync before returning, so that the data survive a crash of the machine.

    Raises:
        DiskFull: no space or quota left; an existing file is unchanged.
        BadFile: the path cannot be written.
    """
    write_parts(path, (data,), fix=fix, durable=durable)


def write_parts(
    path: Path, parts: Iterable[bytes | memoryview], *, fix: str = RESUME, durable: bool = False
) -> None:
    """Write ``parts`` one after another, as :func:`write_bytes` does with one; only one is held at a time."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
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
    """The error to raise for a file that could not be written; ``fix``: the advice for a full disk."""
    got = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(f"file '{path}'", needs="room on the disk", got=got, fix=fix)
    return BadFile(
        f"file '{path}'", needs="a place that can be written", got=got, fix="choose another folder with --out"
    )


def _umask() -> int:
    """The process's umask, which mkstemp ignores; the files of a run are meant to be shared."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_folder() -> Path:
    """The folder of the cache: ``GLASSHOUSE_CACHE``, or ``glasshouse`` in the user's cache folder."""
    if named := os.environ.get(CACHE):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "glasshouse"

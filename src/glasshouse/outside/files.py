"""Read untrusted files: regular files only, inside their folder, of limited size."""

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.text import visible

_SHOWN: Final = 80
_BLOCK: Final = 512  # unit of st_blocks in bytes


def plain_file(folder: Path, name: object, *, subject: str) -> Path:
    """The path of the regular file ``name`` below ``folder``; no part of it may be a link or lead outside.

    Args:
        folder: folder that must contain the file.
        name: path relative to ``folder``, separated by ``/``.
        subject: names the file in errors.

    Raises:
        BadFile: not a string, absolute, with ``..``, through a link, missing, or a device, pipe or folder.
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        raise BadFile(
            subject,
            needs="the name of a file inside its own folder",
            got=shorten(name),
            fix="put the file into the folder and name it without '..' or a leading '/'",
        )
    path = folder
    for position, part in enumerate(parts):
        path = path / part
        check_plain(path, subject=subject, folder=position + 1 < len(parts))
    return path


def check_plain(path: Path, *, subject: str, folder: bool = False) -> os.stat_result:
    """The ``lstat`` result of ``path``, if it is a regular file (or a folder).

    Raises:
        BadFile: missing, a link, or of any other type.
    """
    kind = "folder" if folder else "plain file"
    try:
        status = path.lstat()
    except (OSError, ValueError) as error:
        raise BadFile(
            subject,
            needs=f"a {kind} '{printable(path.name)}'",
            got="no such file" if isinstance(error, FileNotFoundError) else str(error),
            fix="get the files again, all of them",
        ) from error
    if not (stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)):
        raise BadFile(
            subject,
            needs=f"a {kind} '{printable(path.name)}', not a link, pipe or device",
            got=_kind(status.st_mode),
            fix="put a copy of what it stands for into the folder, if you trust it",
        )
    return status


def check_plain_tree(folder: Path, *, subject: str) -> None:
    """Check that everything below ``folder`` is a folder or a regular file, and no file is extremely sparse.

    Raises:
        BadFile: a folder is missing or unreadable, an entry is of another type (the first is named), a file
            is too sparse, or more than ``limits.FILES`` files.
    """
    count = 0
    waiting = [folder]
    while waiting:
        for entry in _entries(waiting.pop(), subject=subject):
            count += 1
            if count > limits.FILES:
                raise BadFile(
                    subject,
                    needs=f"at most {limits.FILES:,} files",
                    got="more",
                    fix="this is no run directory: name another folder",
                )
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            else:
                check_holes(check_plain(Path(entry.path), subject=subject), subject=f"file '{entry.path}'")


def _entries(folder: Path, *, subject: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise unreadable(folder, error, subject=subject) from error


def check_size(size: int, most: int, *, subject: str, fix: str = "") -> None:
    """Refuse a file of more than ``most`` bytes; ``fix``: the advice, where that is a setting.

    Raises:
        BadFile: it is larger.
    """
    if size > most:
        raise BadFile(
            subject,
            needs=f"at most {most:,} bytes",
            got=f"{size:,}",
            fix=fix or "the limits are listed in docs/transcript.md: get the right file",
        )


def check_unpacked(packed: int, unpacked: int, *, subject: str) -> None:
    """Refuse an archive that unpacks to far more than its own size.

    Raises:
        BadFile: above ``limits.UNPACKED_BYTES`` and more than ``limits.UNPACKED_RATIO`` times its size.
    """
    most = max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * packed)
    if unpacked > most:
        raise BadFile(
            subject,
            needs=f"an archive of {packed:,} bytes that unpacks to at most {most:,}",
            got=f"{unpacked:,} bytes or more",
            fix="store it uncompressed if it is meant to be so large",
        )


def check_holes(status: os.stat_result, *, subject: str) -> None:
    """Refuse a sparse file that claims far more bytes than it occupies on disk.

    Raises:
        BadFile: as :func:`check_unpacked`.
    """
    blocks = getattr(status, "st_blocks", None)
    if blocks is not None:
        check_unpacked(blocks * _BLOCK, status.st_size, subject=subject)


def read_limited(path: Path, most: int, *, subject: str) -> bytes:
    """Read a regular file (or the target of a link) of at most ``most`` bytes.

    Raises:
        BadFile: missing, unreadable, not a regular file, or larger.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise unreadable(path, subject=subject)
            check_size(status.st_size, most, subject=subject)
            return file.read(status.st_size)
    except (OSError, ValueError) as error:
        raise unreadable(path, error, subject=subject) from error


def parse_json(text: str, *, subject: str) -> Any:
    """Parse JSON with finite numbers of limited length, no duplicate keys and limited nesting.

    Raises:
        BadFile: anything else; the message states the problem.
    """
    try:
        return json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_distinct,
        )
    except json.JSONDecodeError as error:
        got = f"line {error.lineno}: {error.msg}"
    except RecursionError:
        got = "brackets nested too deeply"
    except ValueError as error:
        got = str(error)
    raise damaged(subject, needs="JSON: finite numbers, no key twice", got=got)


def unreadable(path: Path, error: OSError | ValueError | None = None, *, subject: str) -> BadFile:
    """The error for a file that is missing, not a regular file, or unreadable because of ``error``."""
    return BadFile(subject, needs="a file that can be read", got=_why(path, error), fix="check the path")


def damaged(subject: str, *, needs: str, got: str) -> BadFile:
    """The error for a file whose content does not fit its kind."""
    return BadFile(subject, needs=needs, got=got, fix="the file is damaged or of another kind: get it again")


def lines_of(text: str) -> Iterator[str]:
    """The complete lines of ``text``; a last line without a newline was never completed and is skipped."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1


def printable(text: str) -> str:
    """``text`` on one line for an error message: :func:`glasshouse.outside.text.visible`."""
    return visible(text)


def is_path(text: str) -> bool:
    r"""Whether a text is the path of a file and names nothing: absolute, relative by dots, or with a drive.

    Examples:
        >>> is_path(r"C:\\scans"), is_path("../scans"), is_path("npz:scans.npz"), is_path("digits")
        (True, True, False, False)
    """
    return bool(re.match(r"[A-Za-z]:|[\\\\/~]|\.{1,2}[\\\\/]", text))


def shorten(value: object) -> str:
    """The ``repr`` of ``value``, truncated."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def reason(error: Exception) -> str:
    """The first line of an error, without characters that could steer a terminal."""
    return printable((str(error).strip().splitlines() or ["no reason given"])[0][:200])


def _no_constant(word: str) -> float:
    raise ValueError(f"the number {word}")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:_SHOWN]}, which is too large")
    return value


def _whole(digits: str) -> int:
    if len(digits) > limits.DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"the key {shorten(name)} twice")
        table[name] = value
    return table


def _kind(mode: int) -> str:
    kinds = {"l": "a link", "d": "a folder", "-": "a file", "p": "a pipe", "s": "a socket"}
    return kinds.get(stat.filemode(mode)[0], "a device")


def _why(path: Path, error: OSError | ValueError | None) -> str:
    if isinstance(error, FileNotFoundError) or (error is None and not path.exists()):
        return "no such file"
    if error is None:
        return _kind(path.stat().st_mode)
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return "a folder"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def path_of(value: object, subject: str) -> Path:
    """A path that was handed over.

    Raises:
        BadValue: something else, such as nothing.
    """
    if isinstance(value, str | os.PathLike):
        return Path(value)
    got = f"an object of type {type(value).__name__}"
    raise BadValue(subject, needs="the path of a folder", got=got, fix="give it as text or pathlib.Path")

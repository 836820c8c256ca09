"""SHA-256 of files, folders and plain values, defined so that standard tools compute the same."""

import hashlib
import json
from pathlib import Path
from typing import Any

from glasshouse.outside import limits
from glasshouse.outside.files import check_plain, check_plain_tree

__all__ = ["of_file", "of_folder", "of_source", "of_value"]


def of_file(path: Path) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits.

    Raises:
        BadFile: missing, or no regular file.
    """
    check_plain(path, subject=f"file '{path}'")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_folder(folder: Path, *, pattern: str = "*") -> str:
    """SHA-256 of a folder: of one line per file, ``DIGEST  NAME``, in the order of the names' bytes.

    The lines are those of ``sha256sum``, with names relative to the folder and ``/`` between their parts:
    ``cd FOLDER; find . -type f | sed 's,^./,,' | LC_ALL=C sort | xargs sha256sum | sha256sum``.

    Args:
        folder: empty or missing: the digest of nothing.
        pattern: of the files that count.

    Raises:
        BadFile: a link, pipe or device below it.
    """
    if not folder.is_dir():
        return hashlib.sha256().hexdigest()
    check_plain_tree(folder, subject=f"folder '{folder}'")
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob(pattern) if p.is_file()}
    lines = (f"{of_file(files[name])}  {name}\n" for name in sorted(files, key=str.encode))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def of_source(package: Path) -> str:
    """SHA-256 of the Python files of an installed package, as of a folder."""
    return of_folder(package, pattern="*.py")


def of_value(value: Any) -> str:
    """SHA-256 of a plain value: of its JSON in ASCII, with sorted keys and no spaces.

    Raises:
        ValueError: a number is not finite.

    Examples:
        >>> of_value({"b": 1, "a": 2}) == of_value({"a": 2, "b": 1})
        True
    """
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    """JSON in ASCII with sorted keys and no spaces; the same bytes for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


LARGEST = limits.JSONL_BYTES
"""Most bytes of a register or a bundle that are read."""

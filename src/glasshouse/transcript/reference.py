"""A frozen base model that a transcript names and does not hold: by file name and SHA-256.

The transcript never says where the file is, so that one from a stranger cannot have a file of its choice
opened: the reader's own folders are searched.
"""

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile
from glasshouse.outside.files import check_plain
from glasshouse.store import TensorFile
from glasshouse.transcript import described

BASES: Final = "GLASSHOUSE_BASES"
"""Environment variable: folders with base models, separated as in ``PATH``."""


def name_reference(path: Path) -> described.ReferenceFile:
    """How a transcript names a file of weights."""
    return described.ReferenceFile(file=path.name, sha256=_hash_now(path))


def find_reference(named: described.ReferenceFile, *, subject: str) -> TensorFile:
    """The file that a transcript names, from the folders of ``GLASSHOUSE_BASES``.

    Raises:
        BadFile: in none of them, or with another content.
    """
    folders = [Path(text) for text in os.environ.get(BASES, "").split(os.pathsep) if text]
    place = next((folder / named.file for folder in folders if (folder / named.file).is_file()), None)
    if place is None or _hash_now(place) != named.sha256:
        raise BadFile(
            subject,
            needs=f"the base model '{named.file}' with SHA-256 {named.sha256[:16]}..., which it names",
            got="no such file" if place is None else f"another content in '{place}'",
            fix=f"set {BASES} to the folder that holds it",
        )
    return described.opened(place, subject=f"base model '{place}'")


def _hash_now(path: Path) -> str:
    status = check_plain(path.resolve(), subject=f"base model '{path}'")
    return _hash(str(path.resolve()), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _hash(path: str, changed: int, size: int) -> str:
    """SHA-256 of a file that was last changed then: computed once for each process."""
    del changed, size
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

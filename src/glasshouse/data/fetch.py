"""Download the public files of a data set; size and SHA-256 are checked before the files are read."""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock

from glasshouse.data.named import NAMED, Download, NamedData, find, folders
from glasshouse.disk import unwritable
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_size, reason
from glasshouse.progress import track

_PIECE: Final = 2**20
_SECONDS: Final = 30
"""Timeout of a connection, in seconds."""
_ROOM: Final = "make room, or set GLASSHOUSE_CACHE to another folder"


def ensure(source: str) -> str:
    """Locate the data set ``source``; a named one that is missing is downloaded.

    Args:
        source: a name (``mnist``), or ``KIND:WHERE``, which is returned unchanged.

    Raises:
        BadFile: the data are missing and cannot be downloaded; the message says which file to put where.
        DiskFull: not enough disk space.
    """
    if source not in NAMED:
        return source
    place = find(source)
    if place is not None:
        return place
    data = NAMED[source]
    if not data.downloads or offline():
        raise not_here(data)
    with _alone(data):
        if not data.complete():
            for download in data.downloads:
                _fetch(data, download)
    return f"{data.kind}:{data.fetched}"


def offline() -> bool:
    """Whether downloads are disabled."""
    return os.environ.get("GLASSHOUSE_OFFLINE", "") not in ("", "0")


def not_here(data: NamedData, failure: str = "") -> BadFile:
    """The error for missing data; ``failure``: why the download failed."""
    cause = (
        "GLASSHOUSE_OFFLINE is set" if data.downloads else "it has no public address that is known to last"
    )
    files = ", ".join(place.partition(":")[2] for place in data.places)
    roots = ", ".join(f"'{root}'" for root in folders())
    status = f"none of them in {roots}" if roots else "GLASSHOUSE_DATA is not set"
    return BadFile(
        f"data '{data.name}'",
        needs=f"one of {files} in a folder of GLASSHOUSE_DATA",
        got=f"{status}; not fetched: {failure or cause}",
        fix=f"set GLASSHOUSE_DATA to the folder that has it, or to another and {data.obtain} ({data.terms})",
    )


@contextmanager
def _alone(data: NamedData) -> Iterator[None]:
    """Lock the data set's folder: one process downloads, the others wait."""
    try:
        data.fetched.mkdir(parents=True, exist_ok=True)
        with FileLock(data.fetched / ".lock"):
            yield
    except OSError as error:
        raise unwritable(data.fetched, error, fix=_ROOM) from error


def _fetch(data: NamedData, download: Download) -> None:
    """Download one file, verify it, and store it or its selected members."""
    with tempfile.NamedTemporaryFile(dir=data.fetched, prefix=".fetching-") as file:
        digest = hashlib.sha256()
        for piece in _pieces(data, download):
            digest.update(piece)
            file.write(piece)
        if digest.hexdigest() != download.sha256:
            raise BadFile(
                f"data '{data.name}', '{download.url}'",
                needs=f"{download.size:,} bytes with SHA-256 {download.sha256}",
                got=f"{file.tell():,} bytes with {digest.hexdigest()}; nothing of it was kept",
                fix=f"try again on another connection; or set GLASSHOUSE_DATA to a folder, and {data.obtain}",
            )
        file.seek(0)
        if download.members:
            _unpack(data, download, file)
        else:
            _keep(file, data.fetched / download.file_names()[0])


def _pieces(data: NamedData, download: Download) -> Iterator[bytes]:
    """The bytes of a public file in chunks; at most one byte more than the expected size."""
    request = Request(download.url, headers={"User-Agent": "glasshouse"})  # noqa: S310 - from our own table
    remaining = download.size + 1
    label = f"fetching {data.name} from {urlsplit(download.url).hostname}, MiB"
    try:
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            for _ in track(range(remaining // _PIECE + 1), label):
                piece = answer.read(min(remaining, _PIECE))
                remaining -= len(piece)
                yield piece
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise not_here(data, f"{download.url}: {reason(error)}") from error


def _unpack(data: NamedData, download: Download, file: IO[bytes]) -> None:
    """Extract the wanted members, regular files only; paths inside the archive are not used for output."""
    try:
        with tarfile.open(fileobj=file, mode="r:*") as archive:
            for path, name in zip(download.members, download.file_names(), strict=True):
                member = archive.getmember(path)
                check_size(member.size, limits.JSONL_BYTES, subject=f"data '{data.name}', '{name}'")
                content = archive.extractfile(member)
                if content is None:
                    raise KeyError(f"'{path}' is no file")
                _keep(content, data.fetched / name)
    except (tarfile.TarError, LookupError, EOFError) as error:
        raise BadFile(
            f"data '{data.name}', '{download.url}'",
            needs=f"an archive with {', '.join(download.members)}",
            got=reason(error),
            fix=data.obtain,
        ) from error


def _keep(content: IO[bytes], path: Path) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        shutil.copyfileobj(content, file)
    temporary.replace(path)

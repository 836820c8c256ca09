"""A content-addressed cache for expensive results that depend only on public or auxiliary inputs.

The key of an entry is the digest of all its inputs, so an entry is never stale; anything outside the
key must not change the result. If two processes need the same entry, one computes it and the other
waits. An interrupted training resumes from its last checkpoint. Above the size limit, the least
recently used entries are deleted first.

Folder: ``GLASSHOUSE_CACHE``, or ``glasshouse`` in the user's cache folder. Limit:
``GLASSHOUSE_CACHE_GB``, 10 by default.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast, final

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from glasshouse.disk import cache_folder as folder
from glasshouse.errors import BadFile, BadValue
from glasshouse.progress import stage
from glasshouse.store import read_metadata, read_tensors, write_tensors

T = TypeVar("T")

__all__ = ["LOCKS", "Checkpoint", "Key", "digest", "folder", "limit", "load_or_make", "once"]

Key = Mapping[str, Any]
"""JSON values, tensors and bytes, in mappings and sequences of any depth."""

"""Environment variable that sets the cache folder."""
LOCKS: Final = "locks"
"""Subfolder of the cache, and of a run: one lock file for each task that must not run twice at a time."""
_LOG: Final = logging.getLogger(__name__)
_PARTIAL: Final = ".partial.safetensors"
MOST: Final = 4096
"""Number of results that :func:`once` keeps in memory; at this number, the next one clears them all."""
_KEPT: Final[dict[tuple[object, ...], Any]] = {}


def digest(value: Any) -> str:
    """SHA-256 of a value's content, in hexadecimal: the same in every process and on every machine.

    Args:
        value: a tensor (hashed by dtype, shape and values), bytes, a JSON value, or mappings and
            sequences of these. A tuple counts as a list; the order of keys does not matter.

    Raises:
        BadValue: a value of another type, or a number that is not finite.

    Examples:
        >>> digest({"a": 1, "b": torch.ones(2)}) == digest({"b": torch.ones(2), "a": 1})
        True
        >>> digest(torch.ones(2)) == digest(torch.ones(2).double())
        False
    """
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        hashed = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)} ".encode())
        hashed.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        return hashed.hexdigest()
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    try:
        text = json.dumps(_plain(value), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadValue(
            "digest of a value",
            needs="tensors, bytes, finite numbers, texts, lists and tables of these",
            got=str(error),
            fix="describe the object by what made it",
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def once(key: Sequence[object] | None, make: Callable[[], T]) -> T:
    """Return what ``make`` returns, computed once per ``key`` in this process; nothing is written to disk.

    Args:
        key: everything that the result depends on: strings, bytes and what :func:`digest` accepts; None:
            the inputs cannot be listed, and the result is computed anew.
        make: returns a value that no caller modifies.

    Examples:
        >>> once(["example", 1], lambda: 5), once(["example", 1], lambda: 7)
        (5, 5)
    """
    if key is None:
        return make()
    name = tuple(one if isinstance(one, str | bytes) else (digest(one),) for one in key)
    if name not in _KEPT:
        value = make()
        if len(_KEPT) >= MOST:
            _KEPT.clear()
        _KEPT[name] = value
    return cast("T", _KEPT[name])


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | bytes):
        return {"digest": digest(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("the keys of a table must be texts")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state from which an interrupted training resumes. Each ``save`` replaces the previous one.

    Attributes:
        path: the checkpoint file; need not exist.
    """

    path: Path

    def load(self) -> tuple[dict[str, Tensor], int] | None:
        """Return the tensors and the step saved last, or None to start from scratch."""
        if not self.path.is_file():
            return None
        try:
            return read_tensors(self.path), int(read_metadata(self.path)["step"])
        except (BadFile, KeyError, ValueError) as error:
            _LOG.warning("checkpoint %s cannot be read, training begins anew: %s", self.path.name, error)
            return None

    def save(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Save ``tensors`` as the state after ``step`` steps.

        Raises:
            DiskFull: no room; the previous checkpoint is intact.
        """
        write_tensors(self.path, tensors, {"step": str(step)})


def load_or_make(
    kind: str, key: Key, make: Callable[[Checkpoint], dict[str, Tensor]], *, root: Path | None = None
) -> dict[str, Tensor]:
    """Return the tensors that ``make`` computes for ``key``: from the cache, or computed now and cached.

    Args:
        kind: what the entry is, as a folder name: ``"generator"``.
        key: everything that the result depends on, including seeds and versions of the method.
        make: called at most once; may save to and load from the checkpoint passed to it.
        root: folder used instead of the cache, without a size limit: a run's own, for results that depend on
            private data.

    Raises:
        BadValue: ``key`` holds a value without a digest, or the size limit is not a number.
        BadFile: there is no entry, and the cache folder cannot be written.
        DiskFull: there is no room for the entry.
    """
    name = digest(key)
    place = root or folder()
    path = place / kind / f"{name}.safetensors"
    # What is there needs no lock, which could not be taken where the folder may only be read.
    if (kept := _read(path)) is not None:
        return kept
    with _alone(place / LOCKS / f"{kind}-{name}.lock", label=kind):
        tensors = _read(path)
        if tensors is None:
            checkpoint = Checkpoint(path=path.with_name(name + _PARTIAL))
            tensors = {tensor: t.detach().cpu() for tensor, t in make(checkpoint).items()}
            write_tensors(path, tensors)
            checkpoint.path.unlink(missing_ok=True)
            if root is None:
                _evict(place, keep=path)
        return tensors


def limit() -> int:
    """Size limit of the cache, bytes.

    Raises:
        BadValue: ``GLASSHOUSE_CACHE_GB`` is not a number of at least 0.
    """
    text = os.environ.get("GLASSHOUSE_CACHE_GB", "10")
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise BadValue(
            "environment variable GLASSHOUSE_CACHE_GB",
            needs="a number of gigabytes, at least 0",
            got=repr(text),
            fix="unset it for 10",
        )
    return int(size * 1e9)


@contextmanager
def _alone(lock: Path, *, label: str) -> Iterator[None]:
    """Hold ``lock``, so that one thread of one process makes an entry."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file_lock = FileLock(lock)
        try:
            held = file_lock.acquire(timeout=0)
        except Timeout:
            with stage(f"waiting for another process that makes the {label}"):
                held = file_lock.acquire()
    except OSError as error:
        raise BadFile(
            f"cache folder '{lock.parent.parent}'",
            needs="a folder that can be written",
            got=error.strerror or str(error),
            fix="set GLASSHOUSE_CACHE to another folder",
        ) from error
    with held:
        yield


def _read(path: Path) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        tensors = read_tensors(path)
    except BadFile as error:
        _LOG.warning("cache entry %s cannot be read and is made again: %s", path.name, error)
        return None
    with suppress(OSError):  # a folder that may only be read, or an entry that was just evicted
        os.utime(path, (time.time(), time.time()))
    return tensors


def _evict(root: Path, *, keep: Path) -> None:
    """Delete the least recently used files until the rest is within the limit; never delete ``keep``."""
    entries = []
    for path in root.glob("*/*.safetensors"):
        try:
            entries.append((path.stat().st_mtime, path.stat().st_size, path))
        except FileNotFoundError:  # deleted by another process
            continue
    excess = sum(size for _, size, _ in entries) - limit()
    for _, size, path in sorted(entries):
        if excess <= 0:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            excess -= size

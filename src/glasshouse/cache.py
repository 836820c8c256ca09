"""One content-addressed cache for what is expensive and depends on public or auxiliary inputs alone.

An entry is found by the digest of everything that went into it, so it can never be stale; what is
not in the key must not change the result. Two processes that want the same entry make it once: the
second waits. A training that was interrupted goes on from its last checkpoint. Above the size limit
the entries that were not used for the longest time go first.

Folder: ``GLASSHOUSE_CACHE``, or ``glasshouse`` in the user's cache folder. Limit:
``GLASSHOUSE_CACHE_GB``, 10 by default.
"""

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast, final

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from glasshouse.errors import BadFile, BadValue
from glasshouse.progress import stage
from glasshouse.store import read_metadata, read_tensors, write_tensors

T = TypeVar("T")

__all__ = ["LOCKS", "Checkpoint", "Key", "digest", "folder", "limit", "load_or_make", "once"]

Key = Mapping[str, Any]
"""JSON values, tensors and bytes, in mappings and sequences of any depth."""

FOLDER: Final = "GLASSHOUSE_CACHE"
"""The environment's variable with the folder of the cache."""
LOCKS: Final = "locks"
"""Folder of the cache, and of a run: a file for each piece of work that no two processes may do at once."""
_LOG: Final = logging.getLogger(__name__)
_PARTIAL: Final = ".partial.safetensors"
MOST: Final = 4096
"""Answers that a process keeps in memory; with one more all are forgotten."""
_KEPT: Final[dict[tuple[object, ...], Any]] = {}


def digest(value: Any) -> str:
    """SHA-256 of a value's content, in hexadecimal: the same in every process and on every machine.

    Args:
        value: a tensor (dtype, shape and numbers count), bytes, a JSON value, or mappings and
            sequences of these. A tuple counts as a list; the order of keys does not matter.

    Raises:
        BadValue: something else, or a number that is not finite.

    Examples:
        >>> digest({"a": 1, "b": torch.ones(2)}) == digest({"b": torch.ones(2), "a": 1})
        True
        >>> digest(torch.ones(2)) == digest(torch.ones(2).double())
        False
    """
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        header = f"{plain.dtype} {tuple(plain.shape)} ".encode()
        return hashlib.sha256(header + plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
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
    """What ``make`` returns, made only where this process has nothing under ``key``; nothing is written.

    Args:
        key: everything that the answer depends on, texts, bytes, and what :func:`digest` takes; None: that
            cannot be said, and the answer is made anew.
        make: returns what nobody will change.

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
    """Where an interrupted training goes on. Each ``save`` replaces the one before.

    Attributes:
        path: its file; need not exist.
    """

    path: Path

    def load(self) -> tuple[dict[str, Tensor], int] | None:
        """The last tensors and step saved, or None: begin at the beginning."""
        if not self.path.is_file():
            return None
        try:
            return read_tensors(self.path), int(read_metadata(self.path)["step"])
        except (BadFile, KeyError, ValueError) as error:
            _LOG.warning("checkpoint %s cannot be read, training begins anew: %s", self.path.name, error)
            return None

    def save(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Keep ``tensors`` as the state after ``step`` steps.

        Raises:
            DiskFull: no room; the checkpoint before is unharmed.
        """
        write_tensors(self.path, tensors, {"step": str(step)})


def load_or_make(
    kind: str, key: Key, make: Callable[[Checkpoint], dict[str, Tensor]], *, root: Path | None = None
) -> dict[str, Tensor]:
    """The tensors that ``make`` gives for ``key``: from the cache, or made now and kept.

    Args:
        kind: what it is, as a folder name: ``"generator"``.
        key: everything that the result depends on, seeds and versions of the method too.
        make: called at most once; may save to and load from the checkpoint that it gets.
        root: folder in the place of the cache, without its limit: a run's own, for what depends on private
            data.

    Raises:
        BadValue: ``key`` holds what has no digest, or the size limit is no number.
        BadFile: the cache folder cannot be written.
        DiskFull: the cache folder cannot be written.
    """
    name = digest(key)
    place = root or folder()
    path = place / kind / f"{name}.safetensors"
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


def folder() -> Path:
    """Where the cache lies."""
    if named := os.environ.get(FOLDER):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "glasshouse"


def limit() -> int:
    """Bytes that the cache may take.

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
    """Hold ``lock``: one process, and one thread in it, makes an entry."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file_lock = FileLock(lock)
        try:
            file_lock.acquire(timeout=0)
        except Timeout:
            with stage(f"waiting for another process that makes the {label}"):
                file_lock.acquire()
    except OSError as error:
        raise BadFile(
            f"cache folder '{lock.parent.parent}'",
            needs="a folder that can be written",
            got=error.strerror or str(error),
            fix="set GLASSHOUSE_CACHE to another folder",
        ) from error
    try:
        yield
    finally:
        file_lock.release()


def _read(path: Path) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        tensors = read_tensors(path)
    except BadFile as error:
        _LOG.warning("cache entry %s cannot be read and is made again: %s", path.name, error)
        return None
    os.utime(path, (time.time(), time.time()))
    return tensors


def _evict(root: Path, *, keep: Path) -> None:
    """Delete the files used longest ago until the rest is within the limit; ``keep`` stays."""
    entries = []
    for path in root.glob("*/*.safetensors"):
        try:
            entries.append((path.stat().st_mtime, path.stat().st_size, path))
        except FileNotFoundError:  # another process was faster
            continue
    excess = sum(size for _, size, _ in entries) - limit()
    for _, size, path in sorted(entries):
        if excess <= 0:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            excess -= size

"""The gate's log: one signed line per decision, each with the hash of the line before it.

A line is ``{"entry": {...}, "signature": "..."}``; the signature (Ed25519) covers the entry's bytes as they
stand there, and the entry's ``before`` is the SHA-256 of the whole line before. A changed, missing or
reordered line is found by :func:`verify`. A cut end is found only against a head that was kept elsewhere.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

from filelock import FileLock, Timeout

from glasshouse.disk import unwritable
from glasshouse.errors import BadFile, not_installed
from glasshouse.outside.limits import LINE_BYTES

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
except ImportError as error:
    raise not_installed("the gate's log", "cryptography", error, extra="gate") from error

START: Final = "0" * 64
"""``before`` of the first line."""
_SECRET: Final = 0o077
_PREFIX: Final = b'{"entry": '
_MIDDLE: Final = b', "signature": "'
_SUFFIX: Final = b'"}\n'
_FIX: Final = "keep the file as it is and ask the site's administrator what happened"


@final
@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a check of a log found.

    Attributes:
        entries: the entries up to the first fault.
        head: SHA-256 of the last good line.
        fault: what is wrong, and in which line; empty: nothing.
    """

    entries: tuple[Mapping[str, Any], ...]
    head: str
    fault: str = ""


def create_key(path: Path) -> None:
    """Write a new private key to ``path``, readable by its owner only, and the public key beside it.

    Raises:
        BadFile: the file exists, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        public_path(path).write_bytes(public)
    except OSError as error:
        raise unwritable(path, error) from error


def public_path(key: Path) -> Path:
    """Where the public key of the private key at ``key`` stands."""
    return key.with_name(f"{key.name}.pub")


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The private key at ``path``.

    Raises:
        BadFile: missing, no Ed25519 key, or readable by others.
    """
    subject = f"key '{path}'"
    try:
        if path.stat().st_mode & _SECRET:
            raise BadFile(
                subject, needs="a file of its owner only", got="others may read it", fix="chmod 600"
            )
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        fix = "glasshouse gate keys POLICY makes one"
        raise BadFile(subject, needs="an Ed25519 key", got=str(error), fix=fix) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadFile(subject, needs="an Ed25519 key", got=type(key).__name__, fix="name the gate's key")
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """The public key at ``path``.

    Raises:
        BadFile: missing, or no Ed25519 key.
    """
    subject = f"key '{path}'"
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadFile(subject, needs="a public key", got=str(error), fix="name the .pub file") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadFile(subject, needs="an Ed25519 key", got=type(key).__name__, fix="name the .pub file")
    return key


@final
class Log:
    """A log that is open for writing, by one process.

    Opening it reads and verifies all of it. A last line that a kill cut off is moved to ``NAME.torn`` and
    the next entry says so; any other fault refuses to open.

    Args:
        path: of the log; created if absent.
        key: path of the private key.

    Raises:
        BadFile: another process writes it, it does not verify, or it cannot be written.
    """

    def __init__(self, path: Path, key: Path) -> None:
        self._key = read_private_key(key)
        path = path.resolve()  # a gate that writes by another name of the file has the same lock
        self._lock = FileLock(f"{path}.lock")
        try:
            self._lock.acquire(timeout=0)
        except (Timeout, OSError) as error:
            got = "another process writes it" if isinstance(error, Timeout) else str(error)
            raise BadFile(f"log '{path}'", needs="one writer", got=got, fix="stop the other gate") from error
        torn = _cut_torn_line(path)
        try:
            self._open(path, torn)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, path: Path, torn: bytes) -> None:
        checked = verify(path, self._key.public_key()) if path.exists() else Verified(entries=(), head=START)
        if checked.fault:
            raise BadFile(f"log '{path}'", needs="an unbroken chain", got=checked.fault, fix=_FIX)
        self.entries, self.head = checked.entries, checked.head
        self._number = len(checked.entries)
        self._path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise unwritable(path, error) from error
        if torn:
            self.add({"event": "torn", "bytes": len(torn), "hash": hashlib.sha256(torn).hexdigest()})

    def add(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Sign, append and fsync one entry; returns it with number, time and ``before``.

        Raises:
            DiskFull, BadFile: it could not be written, or could not be read again; nothing of it stays in
                the file.
        """
        full = {"n": self._number, "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "before": self.head}
        full |= entry
        body = json.dumps(full, allow_nan=False, sort_keys=True).encode()
        signature = base64.b64encode(self._key.sign(body))
        line = _PREFIX + body + _MIDDLE + signature + _SUFFIX
        if len(line) > LINE_BYTES:
            got, fix = f"{len(line):,} bytes", "tell the authors: the gate bounds what stands in an entry"
            needs = f"entries of at most {LINE_BYTES:,} bytes"
            raise BadFile(f"log '{self._path}'", needs=needs, got=got, fix=fix)
        # A line is there whole or not at all: the chain must go on from it.
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(28, "the line was cut off")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise unwritable(self._path, error, fix="make room; until then nothing leaves") from error
        self.head, self._number = hashlib.sha256(line).hexdigest(), self._number + 1
        return full

    def close(self) -> None:
        """Let another process write."""
        os.close(self._file)
        self._lock.release()


def verify(path: Path, key: Ed25519PublicKey, *, head: str = "") -> Verified:
    """Check signatures and chain of the log at ``path``.

    Args:
        path: of the log.
        key: public key of the gate.
        head: SHA-256 of a line that must be in it, as kept elsewhere; empty: a cut end is not looked for.

    Raises:
        BadFile: it cannot be read.
    """
    entries: list[Mapping[str, Any]] = []
    before, known = START, not head
    for number, line in enumerate(_lines(path)):
        entry = _signed_entry(line, key)
        if entry is None:
            return Verified(
                entries=tuple(entries), head=before, fault=f"line {number + 1}: signature or form"
            )
        if entry.get("before") != before or entry.get("n") != number:
            return Verified(entries=tuple(entries), head=before, fault=f"line {number + 1}: the chain breaks")
        before = hashlib.sha256(line).hexdigest()
        known = known or before == head
        entries.append(entry)
    fault = "" if known else "the end is cut off: the head that was kept is not in it"
    return Verified(entries=tuple(entries), head=before, fault=fault)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES):
                yield line
    except OSError as error:
        raise BadFile(f"log '{path}'", needs="a readable file", got=str(error), fix="name the log") from error


def _signed_entry(line: bytes, key: Ed25519PublicKey) -> dict[str, Any] | None:
    """The entry of a line whose form and signature are right; None otherwise."""
    if not (line.startswith(_PREFIX) and line.endswith(_SUFFIX)):
        return None
    body, middle, signature = line[len(_PREFIX) : -len(_SUFFIX)].rpartition(_MIDDLE)
    try:
        raw = base64.b64decode(signature, validate=True)
        if not middle or base64.b64encode(raw) != signature:  # other spellings of the same bytes
            return None
        key.verify(raw, body)
        entry = json.loads(body)
    except (InvalidSignature, ValueError):
        return None
    return entry if isinstance(entry, dict) else None


def _cut_torn_line(path: Path) -> bytes:
    """Move a last line without its end to ``NAME.torn``; returns it."""
    if not path.exists():
        return b""
    try:
        data = path.read_bytes()
        torn = data[data.rfind(b"\n") + 1 :]
        if torn:
            with path.with_name(f"{path.name}.torn").open("ab") as beside:
                beside.write(torn + b"\n")
            os.truncate(path, len(data) - len(torn))
    except OSError as error:
        raise unwritable(path, error) from error
    return torn

"""Atomic reading and writing of tensors, JSON and JSON lines; never pickles.

A file appears under its name only when it is complete (a temporary file beside it is renamed), so a
reader never sees half of one, and a full disk leaves an existing file unchanged.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from mmap import mmap
from pathlib import Path
from typing import Any, Final, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glasshouse.disk import unwritable, write_parts, write_text
from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.files import (
    check_size,
    damaged,
    lines_of,
    parse_json,
    printable,
    read_limited,
    reason,
    shorten,
    unreadable,
)
from glasshouse.tensors import Lazy

FORMAT: Final = 1
"""Format version of every file that we write. A reader rejects a higher one."""

LARGE: Final = 2**20
"""Bytes from which on a tensor that is read has pages of its own."""

_STAMP: Final = "glasshouse_format"
# In the order in which safetensors writes them, so that every tensor stands at a multiple of its size.
_TYPES: Final[Mapping[torch.dtype, str]] = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_NAMES: Final = {name: kind for kind, name in _TYPES.items()}
_ORDER: Final = {kind: place for place, kind in enumerate(_TYPES)}


def check_format(version: object, *, subject: str) -> int:
    """Return ``version`` if this program can read it.

    Raises:
        BadFile: not an integer of at least 1, or newer than ``FORMAT``.

    Examples:
        >>> check_format(1, subject="transcript 'a'")
        1
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        needs, got = "a format version: a whole number, at least 1", shorten(version)
        fix = "write the file again, or correct its 'format'"
    elif version > FORMAT:
        needs, got = f"format version {FORMAT} or older", f"version {version}, written by a newer glasshouse"
        fix = "upgrade: pip install --upgrade glasshouse"
    else:
        return version
    raise BadFile(subject, needs=needs, got=got, fix=fix)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically.

    Raises:
        BadValue: ``value`` holds NaN, an infinity, or something that JSON cannot represent.
        DiskFull: as :func:`write_bytes`.
        BadFile: as :func:`write_bytes`.
    """
    write_text(path, _json(value, path, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value per line, atomically. Raises as :func:`write_json`."""
    write_text(path, "".join(_json(row, path) + "\n" for row in rows))


def append_jsonl(path: Path, row: Any, *, durable: bool = False) -> None:
    """Append one line; a partial last line left by an interrupted writer is truncated first.

    Args:
        path: of the file.
        row: the value.
        durable: as of :func:`~glasshouse.disk.write_bytes`.

    Raises as :func:`write_json`.
    """
    line = (_json(row, path) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            # A writer that was killed left half a line, which nobody could read.
            if file.read(1) not in (b"", b"\n"):
                end = path.read_bytes().rfind(b"\n") + 1
                file.truncate(end)
            try:
                file.write(line)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise unwritable(path, error) from error


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    durable: bool = False,
) -> None:
    """Write named tensors as safetensors, atomically, with ``metadata`` and the format version.

    Args:
        path: of the file.
        tensors: by name.
        metadata: texts by name.
        durable: as of :func:`~glasshouse.disk.write_bytes`.

    Raises:
        DiskFull: as :func:`write_bytes`.
        BadFile: as :func:`write_bytes`.
    """
    # Twice over the tensors, so that lazy ones are held one at a time.
    sizes = [(_ORDER[t.dtype], name, t.dtype, list(t.shape), t.nbytes) for name, t in tensors.items()]
    header: dict[str, Any] = {"__metadata__": dict(sorted({_STAMP: str(FORMAT), **(metadata or {})}.items()))}
    end = 0
    for _, name, kind, shape, count in sorted(sizes, key=lambda one: one[:2]):
        begin, end = end, end + count
        header[name] = {"dtype": _TYPES[kind], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    parts = (_raw(tensors[name]) for _, name, _, _, count in sorted(sizes, key=lambda one: one[:2]) if count)
    write_parts(path, chain((len(text).to_bytes(8, "little"), text), parts), durable=durable)


def _raw(t: Tensor) -> memoryview:
    """The bytes of one tensor, as they stand in a file."""
    plain = t.detach().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().data


def read_text(path: Path, *, most: int = limits.RESULT_BYTES) -> str:
    """The text of a UTF-8 file of at most ``most`` bytes.

    Raises:
        BadFile: missing, unreadable, not a regular file, larger, or not UTF-8.
    """
    subject = f"file '{path}'"
    try:
        return read_limited(path, most, subject=subject).decode()
    except UnicodeDecodeError as error:
        raise damaged(subject, needs="text in UTF-8", got=str(error)) from error


def read_json(path: Path, *, most: int = limits.RESULT_BYTES) -> Any:
    """The value in a JSON file of at most ``most`` bytes.

    Raises:
        BadFile: missing, unreadable, or not JSON that :func:`~glasshouse.outside.files.parse_json` accepts;
            says where.
    """
    return parse_json(read_text(path, most=most), subject=f"file '{path}'")


def read_jsonl(path: Path, *, most: int = limits.RESULT_BYTES) -> list[Any]:
    """Read one value per line. A last line without a newline is incomplete and ignored.

    Raises:
        BadFile: missing, unreadable, larger than ``most`` bytes, or a line is not JSON; says which.
    """
    rows = []
    for number, line in enumerate(lines_of(read_text(path, most=most)), start=1):
        subject = f"file '{path}', line {number}"
        check_size(len(line), limits.LINE_BYTES, subject=subject)
        rows.append(parse_json(line, subject=subject))
    return rows


def read_tensors(path: Path, *, most: int | None = None) -> dict[str, Tensor]:
    """Named tensors of a safetensors file, on the CPU.

    Args:
        path: the file.
        most: largest allowed size, bytes; None: unlimited.

    Raises:
        BadFile: missing, unreadable, corrupt, larger, or written by a newer version.
    """
    subject = f"file '{path}'"
    if most is not None and path.is_file():
        check_size(path.stat().st_size, most, subject=subject)
    with _open(path, subject) as file:
        _metadata_of(file, subject)
        try:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
            needs = "numbers of a type that torch computes with"
            raise damaged(subject, needs=needs, got=reason(error)) from error


def _own_memory(size: int) -> Tensor:
    """Room for bytes; of a large tensor pages of its own, which the system has back once nobody holds it.

    Blocks of some MiB from the heap would stay there: small ones settle between them.
    """
    if size < LARGE:
        return torch.empty(size, dtype=torch.uint8)
    return torch.frombuffer(mmap(-1, size), dtype=torch.uint8)


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where one tensor stands in a file: its type, its shape, and its first and last byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@final
class TensorFile:
    """A safetensors file whose tensors are read one at a time; nothing but its header is kept.

    Raises:
        BadFile: missing, unreadable, corrupt, larger than ``most`` bytes, written by a newer version, or with
            numbers of a type that is not read here.
    """

    def __init__(self, path: Path, *, most: int | None = None, subject: str = "") -> None:
        self.path, self.subject = path, subject or f"file '{path}'"
        if most is not None and path.is_file():
            check_size(path.stat().st_size, most, subject=self.subject)
        with _open(path, self.subject) as file:  # checks types, shapes and places against the file's size
            _metadata_of(file, self.subject)
        with path.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(size))
        header.pop("__metadata__", None)
        self.entries: dict[str, Entry] = {}
        for name, one in sorted(header.items()):
            if one["dtype"] not in _NAMES:
                needs = "numbers of a type that torch computes with"
                raise damaged(self.subject, needs=needs, got=f"{printable(name)}: {one['dtype']}")
            begin, end = (8 + size + place for place in one["data_offsets"])
            kind, shape = _NAMES[one["dtype"]], tuple(one["shape"])
            self.entries[name] = Entry(dtype=kind, shape=shape, begin=begin, end=end)

    @property
    def size(self) -> int:
        """Bytes of all its tensors."""
        return sum(one.end - one.begin for one in self.entries.values())

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises:
            BadFile: the file was cut off meanwhile.
        """
        one = self.entries[name]
        flat = _own_memory(one.end - one.begin)
        if len(flat):
            try:
                with self.path.open("rb") as file:
                    file.seek(one.begin)
                    count = file.readinto(flat.numpy().data)
            except OSError as error:
                raise unreadable(self.path, error, subject=self.subject) from error
            if count != len(flat):
                raise damaged(self.subject, needs=f"{len(flat):,} bytes of '{name}'", got=f"{count:,}")
        return flat.view(one.dtype).reshape(one.shape)

    def lazy(self) -> Lazy:
        """All its tensors, each read when it is asked for."""
        return Lazy(lambda: self.entries, self.read, lambda: self.size)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file without our format version, which is checked.

    Raises:
        BadFile: as :func:`read_tensors`.
    """
    subject = f"file '{path}'"
    with _open(path, subject) as file:
        return _metadata_of(file, subject)


def _open(path: Path, subject: str) -> safe_open:
    if not path.is_file():
        raise unreadable(path, subject=subject)
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise unreadable(path, error, subject=subject) from error
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise damaged(subject, needs="a safetensors file", got=reason(error)) from error


def _metadata_of(file: safe_open, subject: str) -> dict[str, str]:
    metadata: dict[str, str] = dict(file.metadata() or {})  # type: ignore[no-untyped-call]  # its own
    stamp = metadata.pop(_STAMP, str(FORMAT))
    valid = stamp.isascii() and stamp.isdecimal() and len(stamp) <= limits.DIGITS
    check_format(int(stamp) if valid else stamp, subject=subject)
    return metadata


def _json(value: Any, path: Path, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)
    except (TypeError, ValueError) as error:
        raise BadValue(
            f"file '{path}'",
            needs="finite numbers, texts, lists and tables",
            got=str(error),
            fix="report what is unknown as missing, not as a number",
        ) from error

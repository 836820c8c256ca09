"""Universal Binary JSON under limits: what ``Booster.save_raw("ubj")`` writes.

Source: ubjson.org, draft 12, with the integer ``U`` and optimised containers ``[$type#count``. Big-endian.
A count is checked against the bytes that are there before anything is allocated for it.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from glasshouse.formats.base import BYTES, DEPTH, NODES, bad

SUBJECT: Final = "XGBoost model in UBJSON"
NUMBERS: Final = {b"i": "i1", b"U": "u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
CONSTANTS: Final[dict[bytes, Any]] = {b"Z": None, b"T": True, b"F": False}


def read_ubj(document: bytes) -> Any:
    """The value that a document holds; arrays of one type are lists of numbers.

    Raises:
        BadFile: damaged, cut off, nested too deeply, with a repeated key, or followed by something else.

    Examples:
        >>> read_ubj(b"[$i#i" + bytes([2, 7, 9]))
        [7, 9]
    """
    reader = _Reader(document)
    value = reader.value(reader.take(1), 0)
    if reader.at != len(document):
        raise bad(SUBJECT, "one value", f"{len(document) - reader.at:,} bytes behind it")
    return value


@final
@dataclass(kw_only=False)
class _Reader:
    document: bytes
    at: int = 0
    values: int = 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= min(BYTES, len(self.document) - self.at):
            raise bad(SUBJECT, f"{count:,} more bytes", f"{len(self.document) - self.at:,}")
        self.at += count
        return self.document[self.at - count : self.at]

    def number(self, kind: bytes) -> int | float:
        """One number of a type."""
        code = np.dtype(NUMBERS[kind])
        value = np.frombuffer(self.take(code.itemsize), code)[0].item()
        if not math.isfinite(value):
            raise bad(SUBJECT, "finite numbers", str(value))
        return value  # type: ignore[no-any-return]  # numpy's item() has no type

    def count(self) -> int:
        """A length: a whole number that is not negative."""
        kind = self.take(1)
        if kind not in (b"i", b"U", b"I", b"l", b"L"):
            raise bad(SUBJECT, "a length", repr(kind))
        value = int(self.number(kind))
        if not 0 <= value <= len(self.document):
            raise bad(SUBJECT, "a length within the document", f"{value:,}")
        return value

    def text(self) -> str:
        """A string behind its length."""
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise bad(SUBJECT, "text in UTF-8", str(error)) from error

    def value(self, kind: bytes, depth: int) -> Any:
        """The value of a type that was just read."""
        self.values += 1
        if depth > DEPTH or self.values > NODES:
            raise bad(SUBJECT, f"at most {DEPTH} levels of nesting and {NODES:,} values", "more")
        if kind in NUMBERS:
            return self.number(kind)
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        if kind == b"S":
            return self.text()
        if kind == b"[":
            return self.array(depth)
        if kind == b"{":
            return self.table(depth)
        raise bad(SUBJECT, "a type of UBJSON", repr(kind))

    def array(self, depth: int) -> list[Any]:
        """An array: of one type and length, of one length, or up to its closing bracket."""
        kind = self.take(1)
        of = b""
        if kind == b"$":
            of, kind = self.take(1), self.take(1)
        if kind == b"#":
            length = self.count()
            # Numbers of one type are one block of bytes: trees consist of them.
            if of in NUMBERS:
                code = np.dtype(NUMBERS[of])
                parts = np.frombuffer(self.take(code.itemsize * length), code)
                self.values += length
                if not np.isfinite(parts).all() or self.values > NODES:
                    raise bad(SUBJECT, f"at most {NODES:,} finite numbers", "more, or one that is not finite")
                return parts.tolist()  # type: ignore[no-any-return]  # numpy's tolist() has no type
            return [self.value(of or self.take(1), depth + 1) for _ in range(length)]
        # Without a length there is no type: each value says its own, until the bracket.
        if of:
            raise bad(SUBJECT, "a length behind a type", repr(kind))
        values = []
        while kind != b"]":
            values.append(self.value(kind, depth + 1))
            kind = self.take(1)
        return values

    def table(self, depth: int) -> dict[str, Any]:
        """A table: of one length, or up to its closing brace."""
        length = -1
        values: dict[str, Any] = {}
        if self.document[self.at : self.at + 1] == b"#":
            self.take(1)
            length = self.count()
        while length != len(values) and not (length < 0 and self.document[self.at : self.at + 1] == b"}"):
            name = self.text()
            if name in values:
                raise bad(SUBJECT, "distinct keys", f"'{name[:40]}' twice")
            values[name] = self.value(self.take(1), depth + 1)
        if length < 0:
            self.take(1)
        return values

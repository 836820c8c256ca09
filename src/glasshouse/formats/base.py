"""What a format is, and how a document of unknown format is read. No format ever runs what it reads."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse import registry
from glasshouse.errors import BadFile, BadValue
from glasshouse.formats.records import Document
from glasshouse.outside.files import parse_json, shorten
from glasshouse.registry import Card

__all__ = [
    "BYTES",
    "HEAD",
    "Format",
    "bad",
    "field",
    "looks_like_document",
    "numbers",
    "read_document",
    "whole_numbers",
]

BYTES: Final = 2**26
"""Bytes of one document. A forest of 10,000 trees of depth 6 takes 60 MB as JSON."""
NODES: Final = 2**22
"""Nodes of all trees of a document, or numbers of another one."""
HEAD: Final = 4096
"""Bytes by which a format is recognised."""
DEPTH: Final = 64
"""Nesting of a document in JSON."""
FIX: Final = "send the document as the framework writes it; docs/documents.md lists the formats"


class Format(ABC):
    """Base class of formats: final, frozen dataclasses, most without fields.

    Class attributes:
        card: one line on what it is.
        media: the name under which documents travel.
    """

    card: ClassVar[Card]
    media: ClassVar[str]

    @abstractmethod
    def sniff(self, head: bytes) -> bool:
        """Whether a document that begins like this (up to 4,096 bytes) is of this format."""

    @abstractmethod
    def parse(self, document: bytes) -> Document:
        """What the document says.

        Raises:
            BadFile: damaged, beyond the limits, or of a kind that nothing here reads; it says which.
        """


def read_document(document: bytes, *, media: str = "") -> tuple[str, Document]:
    """The media name and the record of a document; ``media`` empty: the format is found out.

    Raises:
        BadFile: too large, a pickle, of no known format, or damaged.
    """
    if not document or len(document) > BYTES:
        raise bad("document", f"1 to {BYTES:,} bytes", f"{len(document):,}")
    if document[:1] == b"\x80" or document[:4] in (b"PK\x03\x04", b"\x1f\x8b\x08\x00"):
        raise bad("document", "a format that is only data", "a pickle or an archive, which may run code")
    head = document[:HEAD]
    known = (media,) if media else registry.names("formats")
    for name in known:
        reader: Format = registry.load("formats", name)()
        if media or reader.sniff(head):
            try:
                return reader.media, reader.parse(document)
            except BadValue as error:  # the record itself refuses what the reader let through
                raise bad(f"document '{name}'", error.needs, error.got) from error
    raise bad("document", f"one of the formats {', '.join(known)}", shorten(head[:40]))


def looks_like_document(head: bytes) -> bool:
    """Whether a file that begins like this is a document: of a known format, or some JSON."""
    # The files of weights that may begin with such a sign hold zeros behind it, as texts do not.
    words = head.lstrip()[:1] in (b"{", b"[") and b"\0" not in head[:16]
    return words or any(registry.load("formats", name)().sniff(head) for name in registry.names("formats"))


def bad(subject: str, needs: str, got: object) -> BadFile:
    """The error of a document that cannot be read."""
    return BadFile(subject, needs=needs, got=shorten(got) if not isinstance(got, str) else got, fix=FIX)


def json_of(document: bytes, subject: str) -> Any:
    """The document as JSON: finite numbers, distinct keys, limited nesting.

    Raises:
        BadFile: no UTF-8, no JSON, or nested too deeply.
    """
    try:
        text = document.decode()
    except UnicodeDecodeError as error:
        raise bad(subject, "JSON in UTF-8", str(error)) from error
    parsed = parse_json(text, subject=subject)
    layer, depth = [parsed], 0
    while layer:
        depth += 1
        if depth > DEPTH:
            raise bad(subject, f"at most {DEPTH} levels of nesting", "more")
        layer = [item for whole in layer for item in _items(whole) if isinstance(item, dict | list)]
    return parsed


def _items(whole: Any) -> Sequence[Any]:
    return list(whole.values()) if isinstance(whole, dict) else whole


def field(table: Any, *path: str, subject: str) -> Any:
    """What stands below ``path`` in nested tables.

    Raises:
        BadFile: a key is missing.
    """
    for name in path:
        if not isinstance(table, Mapping) or name not in table:
            raise bad(subject, f"a key '{'.'.join(path)}'", "none")
        table = table[name]
    return table


def numbers(raw: Any, subject: str, *, length: int | None = None) -> NDArray[np.float64]:
    """A list of finite numbers as an array.

    Raises:
        BadFile: no flat list of numbers, of another length, or too long.
    """
    flat = isinstance(raw, list | tuple | np.ndarray) and len(raw) <= NODES
    if not flat or not all(isinstance(x, int | float | np.number) and not isinstance(x, bool) for x in raw):
        raise bad(subject, f"a list of at most {NODES:,} numbers", type(raw).__name__)
    values = np.array(raw, dtype=np.float64).reshape(-1)
    if (length is not None and len(values) != length) or not np.isfinite(values).all():
        wanted = "finite numbers" if length is None else f"{length} finite numbers"
        raise bad(subject, wanted, f"{len(values)} numbers, {int((~np.isfinite(values)).sum())} not finite")
    return values


def whole_numbers(raw: Any, subject: str, *, length: int | None = None) -> NDArray[np.int64]:
    """A list of whole numbers as an array. Raises as :func:`numbers`, and for a fraction."""
    values = numbers(raw, subject, length=length)
    if (values != np.round(values)).any() or (np.abs(values) > 2**53).any():
        raise bad(subject, "whole numbers", "a fraction, or one beyond 2^53")
    return values.astype(np.int64)

"""Flower's objects: a head that names type, children and length, and a body. Their id is their SHA-256."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from glasshouse.integrations.flower_gate import names

HEAD_BYTES: Final = 2**21
NPY: Final = b"\x93NUMPY\x01\x00"
"""How the bytes of an array begin: NumPy's format, version 1."""
_ID: Final = re.compile(r"[0-9a-f]{64}")

Contents = Mapping[str, bytes]


@final
class Malformed(ValueError):
    """An object that Flower would not have made. The text is ours and holds nothing of the object."""


@final
@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of an object."""

    kind: str
    children: tuple[str, ...]


def split(content: bytes) -> tuple[Head, memoryview]:
    r"""Head and body of an object.

    Raises:
        Malformed: no head, a wrong length, or a child that is no id.

    Examples:
        >>> head, body = split(b"ArrayChunk  3\x00abc")
        >>> head.kind, bytes(body)
        ('ArrayChunk', b'abc')
    """
    head, end = read_head(content, len(content))
    return head, memoryview(content)[end:]


def read_head(first: bytes, size: int) -> tuple[Head, int]:
    """The head of an object of ``size`` bytes, of which ``first`` are the first, and where its body begins.

    Raises:
        Malformed: no head, a wrong length, or a child that is no id.
    """
    end = first.find(names.DIVIDER, 0, HEAD_BYTES)
    parts = first[:end].split(b" ") if end >= 0 else []
    if len(parts) != 3:
        raise Malformed("head")
    kind, joined, length = (part.decode("ascii", "replace") for part in parts)
    children = tuple(joined.split(",")) if joined else ()
    if not all(_ID.fullmatch(child) for child in children) or len(set(children)) != len(children):
        raise Malformed("children")
    if not re.fullmatch(r"[0-9]{1,12}", length) or int(length) != size - end - 1:
        raise Malformed("length")
    return Head(kind=kind, children=children), end + 1


def head_of(kind: str, children: Iterable[str], length: int) -> bytes:
    """The head of an object whose body has ``length`` bytes, as Flower writes it."""
    return f"{kind} {','.join(children)} {length}".encode() + names.DIVIDER


def join(kind: str, children: Iterable[str], body: bytes) -> bytes:
    """An object of ``kind`` from its children's ids and its body."""
    return head_of(kind, children, len(body)) + body


def object_id(*parts: bytes | memoryview) -> str:
    """The id of an object: its SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def tree_ids(tree: Any, *, most: int, deepest: int) -> set[str]:
    """Ids of all objects of a tree.

    Raises:
        Malformed: no ids, too many, or nested too deeply.
    """
    found: set[str] = set()
    waiting = [(tree, 1)]
    seen = 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if depth > deepest or seen > most:
            raise Malformed("tree")
        if not _ID.fullmatch(node.object_id):
            raise Malformed("id")
        found.add(node.object_id)
        waiting += [(child, depth + 1) for child in node.children]
    return found

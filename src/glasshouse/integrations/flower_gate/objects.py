"""Flower's objects: decoded under limits, and encoded again from what the judge allows.

Nothing of an outgoing message is passed on as it is. Names of records, order, chunks, headers, times and
types are the gate's; only tensors and numbers come from the app.
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast, final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from glasshouse.integrations.flower_gate import names

HEAD_BYTES: Final = 2**21
BODY_BYTES: Final = 2**22
"""Bytes of a body that is parsed (JSON, protobuf): names and numbers, never tensors."""
NAME: Final = 256
ARRAYS: Final = 20_000
DIMENSIONS: Final = 16
NPY_HEAD: Final = 2**10
"""Bytes in which the header of an array must stand."""
_ID: Final = re.compile(r"[0-9a-f]{64}")
_NPY: Final = b"\x93NUMPY\x01\x00"
_HEADER: Final = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][0-9])', 'fortran_order': (True|False), "
    rb"'shape': \(([0-9, ]{0,300})\),? ?\} *\n"
)

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


@final
@dataclass(kw_only=True)
class Decoded:
    """A message, decoded.

    Attributes:
        proto: metadata and error.
        arrays: tensors of its one ArrayRecord.
        record_of: name of the record that holds each number, and of the ArrayRecord under ``""``.
        fields: numbers of MetricRecords, by key.
        configs: ConfigRecords by name, as protobuf.
        reached: ids of the objects that belong to the message.
    """

    proto: Any
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    record_of: dict[str, str] = field(default_factory=dict)
    fields: dict[str, object] = field(default_factory=dict)
    configs: dict[str, Any] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)


def split(content: bytes) -> tuple[Head, memoryview]:
    r"""Head and body of an object.

    Raises:
        Malformed: no head, a wrong length, or a child that is no id.

    Examples:
        >>> head, body = split(b"ArrayChunk  3\x00abc")
        >>> head.kind, bytes(body)
        ('ArrayChunk', b'abc')
    """
    end = content.find(names.DIVIDER, 0, HEAD_BYTES)
    parts = content[:end].split(b" ") if end >= 0 else []
    if len(parts) != 3:
        raise Malformed("head")
    kind, joined, length = (part.decode("ascii", "replace") for part in parts)
    children = tuple(joined.split(",")) if joined else ()
    if not all(_ID.fullmatch(child) for child in children) or len(set(children)) != len(children):
        raise Malformed("children")
    if not re.fullmatch(r"[0-9]{1,12}", length) or int(length) != len(content) - end - 1:
        raise Malformed("length")
    return Head(kind=kind, children=children), memoryview(content)[end + 1 :]


def join(kind: str, children: Iterator[str] | tuple[str, ...], *body: bytes | memoryview) -> bytes:
    """An object of ``kind`` from its children's ids and the parts of its body."""
    length = sum(len(part) for part in body)
    return b"".join([f"{kind} {','.join(children)} {length}".encode(), names.DIVIDER, *body])


def object_id(content: bytes) -> str:
    """The id of an object: its SHA-256."""
    return hashlib.sha256(content).hexdigest()


def decode(root: str, contents: dict[str, bytes], *, release: bool = False) -> Decoded:
    """The message whose root object is ``root``.

    Args:
        root: id of the message's object.
        contents: objects by id, each checked against its id.
        release: drop the chunks of an array once they are joined, so that memory holds one copy.

    Raises:
        Malformed: anything but one message of known parts.
    """
    head, body = _known(root, contents, names.MESSAGE)
    proto = _parse(names.ProtoMessage, body)
    decoded = Decoded(proto=proto, reached={root})
    if len(head.children) > 1 or proto.HasField("content"):
        raise Malformed("message")
    if not head.children:
        if not proto.HasField("error"):
            raise Malformed("message without content")
        return decoded
    if proto.HasField("error"):
        raise Malformed("content and error")
    decoded.reached.add(head.children[0])
    records = _references(*_known(head.children[0], contents, names.RECORD_DICT))
    for name, record in records.items():
        decoded.reached.add(record)
        head, body = _known(record, contents, *names.RECORDS)
        if head.kind == "ArrayRecord":
            _decode_arrays(name, _references(head, body), contents, decoded, release=release)
        elif head.children:
            raise Malformed("children of a record")
        elif head.kind == "MetricRecord":
            _decode_metrics(name, _parse(names.RECORDS[head.kind], body), decoded)
        else:
            decoded.configs[name] = _parse(names.RECORDS[head.kind], body)
    return decoded


def _known(identity: str, contents: Contents, *kinds: str) -> tuple[Head, memoryview]:
    if identity not in contents:
        raise Malformed("an object is missing")
    head, body = split(contents[identity])
    if head.kind not in kinds:
        raise Malformed("type of an object")
    return head, body


def _parse(kind: type[Any], body: memoryview) -> Any:
    if len(body) > BODY_BYTES:
        raise Malformed("size of a body")
    message = kind()
    try:
        message.ParseFromString(bytes(body))
    except DecodeError as error:
        raise Malformed("protobuf") from error
    if names.has_unknown_fields(message):
        raise Malformed("unknown field")
    return message


def _json(body: memoryview) -> dict[str, Any]:
    if len(body) > BODY_BYTES:
        raise Malformed("size of a body")
    try:
        table = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise Malformed("JSON") from error
    if not isinstance(table, dict) or len(table) > ARRAYS or any(len(key) > NAME for key in table):
        raise Malformed("table of names")
    return table


def _references(head: Head, body: memoryview) -> dict[str, str]:
    """Names and ids of children; both lists must be of the same objects."""
    table = _json(body)
    if not all(isinstance(value, str) for value in table.values()) or set(table.values()) != set(
        head.children
    ):
        raise Malformed("references")
    return table


def _decode_metrics(name: str, record: Any, decoded: Decoded) -> None:
    for item in record.items:
        kind = item.value.WhichOneof("value")
        if kind is None or item.key in decoded.fields or len(item.key) > NAME:
            raise Malformed("metrics")
        value = getattr(item.value, kind)
        decoded.fields[item.key] = tuple(value.vals) if kind.endswith("list") else value
        decoded.record_of[item.key] = name


def _decode_arrays(
    name: str, references: dict[str, str], contents: dict[str, bytes], decoded: Decoded, *, release: bool
) -> None:
    if "" in decoded.record_of:
        raise Malformed("two records of tensors")
    decoded.record_of[""] = name
    uses: dict[str, int] = {}
    tables = {}
    for key, identity in references.items():
        head, body = _known(identity, contents, names.ARRAY)
        table = _json(body)
        index = table.get(names.CHUNK_INDEX)
        count = len(head.children)
        if not isinstance(index, list) or not all(type(i) is int and 0 <= i < count for i in index):
            raise Malformed("chunks")
        if set(index) != set(range(count)):
            raise Malformed("chunks")
        chunks = [head.children[i] for i in index]
        tables[key] = (table, chunks)
        decoded.reached |= {identity, *chunks}
        for chunk in chunks:
            uses[chunk] = uses.get(chunk, 0) + 1
    for key, (table, chunks) in tables.items():
        data = _join_chunks(chunks, contents, uses if release else {})
        decoded.arrays[key] = _read_npy(data, table)


def _join_chunks(chunks: list[str], contents: dict[str, bytes], uses: dict[str, int]) -> NDArray[np.uint8]:
    """The chunks' bodies in one buffer; with ``uses``, a chunk is dropped after its last use."""
    bodies = [_known(chunk, contents, names.ARRAY_CHUNK) for chunk in chunks]
    if any(head.children for head, _ in bodies):
        raise Malformed("children of a chunk")
    sizes = [len(body) for _, body in bodies]
    data = np.empty(sum(sizes), np.uint8)  # pages are taken as they are filled, while chunks are given back
    del bodies
    place = 0
    for chunk, size in zip(chunks, sizes, strict=True):
        data[place : place + size] = np.frombuffer(split(contents[chunk])[1], np.uint8)
        place += size
        if uses:
            uses[chunk] -= 1
            if uses[chunk] == 0:
                del contents[chunk]
    return data


def _read_npy(data: NDArray[np.uint8], table: Mapping[str, Any]) -> NDArray[Any]:
    """A writable array on ``data``; its header must say what the table says, and nothing may follow it.

    The older ``NumPyClient`` leaves the table's shape and type empty.
    """
    first = data[:NPY_HEAD].tobytes()
    if not first.startswith(_NPY) or len(first) < len(_NPY) + 2 or table.get("stype") != names.STYPE:
        raise Malformed("format of an array")
    (length,) = struct.unpack_from("<H", first, len(_NPY))
    start = len(_NPY) + 2 + length
    header = _HEADER.fullmatch(first[len(_NPY) + 2 : start])
    if header is None:
        raise Malformed("header of an array")
    descr, order, sizes = (part.decode("ascii") for part in header.groups())
    shape, fortran = tuple(int(size) for size in sizes.replace(",", " ").split()), order == "True"
    if len(shape) > DIMENSIONS:
        raise Malformed("shape of an array")
    dtype = np.dtype(descr)
    if (table.get("shape"), table.get("dtype")) not in ((list(shape), str(dtype)), ([], "")):
        raise Malformed("two shapes or types")
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise Malformed("length of an array")
    flat = np.frombuffer(data, dtype=dtype, offset=start)
    if fortran:
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)
    return flat.reshape(shape)


@final
@dataclass(kw_only=True)
class Encoded:
    """A message in Flower's form.

    Attributes:
        root: id of its root object, which is the message's id.
        proto: the message as it is announced: metadata and error, no content.
        tree: ids of its objects, nested.
        small: objects other than chunks, by id.
        chunks: where each chunk lies: (array's header, array's bytes, start, end).
        size: bytes of all objects.
    """

    root: str
    proto: Any
    tree: Any
    small: dict[str, bytes] = field(default_factory=dict)
    chunks: dict[str, tuple[bytes, memoryview, int, int]] = field(default_factory=dict)
    size: int = 0

    def content(self, identity: str) -> bytes:
        """The object of this id; chunks are cut when they are asked for, so memory holds one at a time."""
        if identity in self.small:
            return self.small[identity]
        return _chunk(*self.chunks[identity])


def _chunk(header: bytes, data: memoryview, start: int, end: int) -> bytes:
    shift = len(header)
    head = header[start : min(end, shift)]
    return join(names.ARRAY_CHUNK, (), head, data[max(start - shift, 0) : max(end - shift, 0)])


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a message is encoded from.

    Attributes:
        arrays: tensors; None: the message has no ArrayRecord.
        fields: numbers by record and key.
        configs: ConfigRecords as protobuf.
        order: names of records, in the order in which they are sent.
        array_record: name of the ArrayRecord.
        error: fixed words; None: the message is no error.
    """

    arrays: Mapping[str, NDArray[Any]] | None = None
    fields: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    array_record: str = ""
    error: str | None = None


def encode(metadata: Any, parts: Parts) -> Encoded:
    """A message with the gate's ``metadata``, from what the judge allows."""
    proto = names.ProtoMessage(metadata=metadata)
    encoded = Encoded(root="", proto=proto, tree=None)
    children: list[Any] = []
    if parts.error is not None:
        proto.error.code, proto.error.reason = names.CRASHED, parts.error
    else:
        children = [_encode_records(parts, encoded)]
    body = proto.SerializeToString(deterministic=True)
    ids = tuple(child.object_id for child in children)
    encoded.root = _add(encoded, join(names.MESSAGE, ids, body))
    encoded.tree = names.ProtoTree(object_id=encoded.root, children=children)
    proto.metadata.message_id = encoded.root
    if parts.error is None:
        proto.content.SetInParent()
    encoded.size = sum(map(len, encoded.small.values())) + sum(
        end - start for _, _, start, end in encoded.chunks.values()
    )
    return encoded


def _add(encoded: Encoded, content: bytes) -> str:
    identity = object_id(content)
    encoded.small[identity] = content
    return identity


def _encode_records(parts: Parts, encoded: Encoded) -> Any:
    trees: dict[str, Any] = {}
    for name in parts.order:
        if name == parts.array_record and parts.arrays is not None:
            trees[name] = _encode_arrays(parts.arrays, encoded)
        elif name in parts.fields:
            record = names.RECORDS["MetricRecord"]()
            for key, value in parts.fields[name].items():
                record.items.add(key=key, value=_value(names.ProtoMetricValue, value))
            content = join("MetricRecord", (), record.SerializeToString(deterministic=True))
            trees[name] = names.ProtoTree(object_id=_add(encoded, content))
        elif name in parts.configs:
            content = join("ConfigRecord", (), parts.configs[name].SerializeToString(deterministic=True))
            trees[name] = names.ProtoTree(object_id=_add(encoded, content))
    return _with_children(names.RECORD_DICT, trees, encoded)


def _with_children(kind: str, trees: Mapping[str, Any], encoded: Encoded) -> Any:
    table = {name: tree.object_id for name, tree in trees.items()}
    unique = {tree.object_id: tree for tree in trees.values()}
    content = join(kind, tuple(unique), json.dumps(table).encode())
    return names.ProtoTree(object_id=_add(encoded, content), children=unique.values())


def _encode_arrays(arrays: Mapping[str, NDArray[Any]], encoded: Encoded) -> Any:
    return _with_children("ArrayRecord", {n: _encode_array(a, encoded) for n, a in arrays.items()}, encoded)


def _encode_array(array: NDArray[Any], encoded: Encoded) -> Any:
    header = _npy_header(array)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    length = len(header) + len(data)
    ids = []
    for start in range(0, length, names.CHUNK):
        place = (header, data, start, min(start + names.CHUNK, length))
        identity = object_id(_chunk(*place))
        encoded.chunks[identity] = place
        ids.append(identity)
    unique = list(dict.fromkeys(ids))
    table = {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "stype": names.STYPE,
        names.CHUNK_INDEX: [unique.index(identity) for identity in ids],
    }
    content = join(names.ARRAY, tuple(unique), json.dumps(table).encode())
    leaves = [names.ProtoTree(object_id=identity) for identity in unique]
    return names.ProtoTree(object_id=_add(encoded, content), children=leaves)


def _npy_header(array: NDArray[Any]) -> bytes:
    text = repr({"descr": array.dtype.str, "fortran_order": False, "shape": array.shape})
    padding = -(len(_NPY) + 2 + len(text) + 1) % 64
    line = (text + " " * padding + "\n").encode("latin-1")
    return _NPY + struct.pack("<H", len(line)) + line


def config_record(values: Mapping[str, object]) -> Any:
    """A ConfigRecord of numbers and texts, as protobuf."""
    record = names.RECORDS["ConfigRecord"]()
    for key, value in values.items():
        record.items.add(key=key, value=_value(names.ProtoConfigValue, value))
    return record


def _value(kind: Any, value: object) -> Any:
    """A number or text as records hold it."""
    if isinstance(value, str):
        return kind(string=value)
    if isinstance(value, float):
        return kind(double=value)
    whole = cast(int, value)
    return kind(**{"sint64" if -(2**63) <= whole < 2**63 else "uint64": whole})


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

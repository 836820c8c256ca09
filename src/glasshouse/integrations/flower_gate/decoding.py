"""A message of Flower, decoded under limits: an app may have written any of it."""

import json
import math
import re
import struct
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from glasshouse.gate.apart.spool import copy_into, size_of
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.objects import (
    NPY,
    Contents,
    Head,
    Malformed,
    head_of,
    read_head,
    split,
)

BODY_BYTES: Final = 2**22
"""Bytes of a body that is parsed (JSON, protobuf): names and numbers, never tensors."""
SECURE_BYTES: Final = 4 * names.CHUNK
"""The same of masked vectors, which Flower puts into one body: 2.6 million numbers."""
NAME: Final = 256
ARRAYS: Final = 20_000
DIMENSIONS: Final = 16
CHUNK_HEAD: Final = 2**6
"""Bytes in which the head of a chunk must stand: it has no children."""
NPY_HEAD: Final = 2**10
"""Bytes in which the header of an array must stand."""
_HEADER: Final = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][0-9])', 'fortran_order': (True|False), "
    rb"'shape': \(([0-9, ]{0,300})\),? ?\} *\n"
)


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
        chunks: ids of the objects that hold each tensor, if it is cut as Flower cuts it.
    """

    proto: Any
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    record_of: dict[str, str] = field(default_factory=dict)
    fields: dict[str, object] = field(default_factory=dict)
    configs: dict[str, Any] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    chunks: dict[str, tuple[str, ...]] = field(default_factory=dict)


def decode(root: str, contents: MutableMapping[str, bytes], *, release: bool = False) -> Decoded:
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
    # A message has one content, as a child: one inside the message itself would be a second.
    if len(head.children) > 1 or proto.HasField("content"):
        raise Malformed("message")
    if not head.children:
        if not proto.HasField("error"):
            raise Malformed("message without content")
        return decoded
    if proto.HasField("error"):
        raise Malformed("content and error")
    decoded.reached.add(head.children[0])
    # Each record has one kind, and only arrays are built of further objects.
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
            # Masked vectors of SecAgg+ travel in a configuration, which is small otherwise.
            most = SECURE_BYTES if name == names.SECURE_RECORD else BODY_BYTES
            decoded.configs[name] = _parse(names.RECORDS[head.kind], body, most)
    return decoded


def _known(identity: str, contents: Contents, *kinds: str) -> tuple[Head, memoryview]:
    if identity not in contents:
        raise Malformed("an object is missing")
    head, body = split(contents[identity])
    if head.kind not in kinds:
        raise Malformed("type of an object")
    return head, body


def _parse(kind: type[Any], body: memoryview, most: int = BODY_BYTES) -> Any:
    if len(body) > most:
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
    name: str,
    references: dict[str, str],
    contents: MutableMapping[str, bytes],
    decoded: Decoded,
    *,
    release: bool,
) -> None:
    if "" in decoded.record_of:
        raise Malformed("two records of tensors")
    decoded.record_of[""] = name
    # Everything is checked before the first byte is joined: a chunk that two arrays share must outlive the
    # first.
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
        data, is_usual = _join_chunks(chunks, contents, uses if release else {})
        array = decoded.arrays[key] = read_npy(data, table)
        header = npy_header(array)
        # Only bytes that Flower itself would have written may be passed on unchanged.
        if is_usual and len(header) == len(data) - array.nbytes and header == data[: len(header)].tobytes():
            decoded.chunks[key] = tuple(chunks)


def _join_chunks(
    chunks: list[str], contents: MutableMapping[str, bytes], uses: dict[str, int]
) -> tuple[NDArray[np.uint8], bool]:
    """The chunks' bodies in one buffer, and whether they are cut as Flower cuts an array.

    With ``uses``, a chunk is dropped after its last use. Objects may stand in a file: a chunk is read from
    there into its place, and memory holds it once.
    """
    bodies = [_chunk_body(chunk, contents) for chunk in chunks]
    sizes = [size for _, size in bodies]
    is_usual = all(start == len(head_of(names.ARRAY_CHUNK, (), size)) for start, size in bodies)
    full, last = sizes[:-1], sizes[-1:]
    is_usual = is_usual and full == [names.CHUNK] * len(full) and all(0 < s <= names.CHUNK for s in last)
    data = np.empty(sum(sizes), np.uint8)  # pages are taken as they are filled, while chunks are given back
    place, target = 0, data.data
    for chunk, (start, size) in zip(chunks, bodies, strict=True):
        copy_into(contents, chunk, start, target[place : place + size])
        place += size
        if uses:
            uses[chunk] -= 1
            if uses[chunk] == 0:
                del contents[chunk]
    return data, is_usual


def _chunk_body(identity: str, contents: Contents) -> tuple[int, int]:
    """Where the body of a chunk begins, and its length; its head alone is read."""
    if identity not in contents:
        raise Malformed("an object is missing")
    size = size_of(contents, identity)
    first = bytearray(min(size, CHUNK_HEAD))
    copy_into(contents, identity, 0, memoryview(first))
    head, start = read_head(bytes(first), size)
    if head.kind != names.ARRAY_CHUNK:
        raise Malformed("type of an object")
    if head.children:
        raise Malformed("children of a chunk")
    return start, size - start


def read_npy(data: NDArray[np.uint8], table: Mapping[str, Any]) -> NDArray[Any]:
    """A writable array on ``data``; its header must say what the table says, and nothing may follow it.

    The older ``NumPyClient`` leaves the table's shape and type empty.
    """
    first = data[:NPY_HEAD].tobytes()
    if not first.startswith(NPY) or len(first) < len(NPY) + 2 or table.get("stype") != names.STYPE:
        raise Malformed("format of an array")
    (length,) = struct.unpack_from("<H", first, len(NPY))
    start = len(NPY) + 2 + length
    # One spelling of the header is taken: numpy's own reader would evaluate a Python literal here.
    header = _HEADER.fullmatch(first[len(NPY) + 2 : start])
    if header is None:
        raise Malformed("header of an array")
    descr, order, sizes = (part.decode("ascii") for part in header.groups())
    shape, fortran = tuple(int(size) for size in sizes.replace(",", " ").split()), order == "True"
    if len(shape) > DIMENSIONS:
        raise Malformed("shape of an array")
    dtype = np.dtype(descr)
    # The table beside the array must not say something else than its bytes.
    if (table.get("shape"), table.get("dtype")) not in ((list(shape), str(dtype)), ([], "")):
        raise Malformed("two shapes or types")
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise Malformed("length of an array")
    flat = np.frombuffer(data, dtype=dtype, offset=start)
    if fortran:
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)
    return flat.reshape(shape)


def npy_header(array: NDArray[Any]) -> bytes:
    """What stands before an array's bytes, as NumPy writes it."""
    text = repr({"descr": array.dtype.str, "fortran_order": False, "shape": array.shape})
    padding = -(len(NPY) + 2 + len(text) + 1) % 64
    line = (text + " " * padding + "\n").encode("latin-1")
    return NPY + struct.pack("<H", len(line)) + line

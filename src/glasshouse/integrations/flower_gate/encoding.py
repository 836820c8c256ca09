"""A message of Flower, encoded from what the judge allows.

Nothing of an app's message is passed on as it is. Names of records, order, chunks, headers, times and types
are the gate's; only tensors and numbers come from the app.
"""

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.gate.apart.spool import copy_into, size_of
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import npy_header
from glasshouse.integrations.flower_gate.objects import head_of, join, object_id

COMPARED: Final = 2**18
"""Bytes that are compared at a time: they stay in the processor's cache."""


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
        kept: ids of chunks that stand, byte for byte, among the objects that were handed in.
        size: bytes of all objects.
    """

    root: str
    proto: Any
    tree: Any
    small: MutableMapping[str, bytes] = field(default_factory=dict)
    chunks: dict[str, tuple[bytes, memoryview, int, int]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    size: int = 0

    def content(self, identity: str) -> bytes:
        """The object of this id; chunks are cut when they are asked for, so memory holds one at a time."""
        if identity in self.small:
            return self.small[identity]
        return b"".join(self.parts(identity))

    def parts(self, identity: str) -> tuple[bytes | memoryview, ...]:
        """The same of a chunk, not joined."""
        return _chunk(*self.chunks[identity])


def _chunk(header: bytes, data: memoryview, start: int, end: int) -> tuple[bytes | memoryview, ...]:
    shift = len(header)
    head, body = header[start : min(end, shift)], data[max(start - shift, 0) : max(end - shift, 0)]
    return head_of(names.ARRAY_CHUNK, (), end - start), head, body


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
        chunks: ids of the objects that held each tensor when it was handed in, cut as Flower cuts it.
        objects: those objects, each checked against its id.
        error: fixed words; None: the message is no error.
    """

    arrays: Mapping[str, NDArray[Any]] | None = None
    fields: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    array_record: str = ""
    chunks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    objects: Mapping[str, bytes] = field(default_factory=dict)
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
    # An id is the hash of the content: children are hashed before parents, the message last.
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
            arrays = {n: _encode_array(n, a, parts, encoded) for n, a in parts.arrays.items()}
            trees[name] = _with_children("ArrayRecord", arrays, encoded)
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


def cut(array: NDArray[Any]) -> list[tuple[bytes, memoryview, int, int]]:
    """The chunks of an array, as Flower cuts it: (array's header, array's bytes, start, end)."""
    header, data = npy_header(array), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    length = len(header) + len(data)
    starts = range(0, length, names.CHUNK)
    return [(header, data, start, min(start + names.CHUNK, length)) for start in starts]


def chunk_ids(array: NDArray[Any]) -> tuple[str, ...]:
    """Ids of the chunks of an array, as Flower cuts it: a function of its type, shape and numbers."""
    return tuple(object_id(*_chunk(*place)) for place in cut(array))


def _encode_array(name: str, array: NDArray[Any], parts: Parts, encoded: Encoded) -> Any:
    places = cut(array)
    before = parts.chunks.get(name, ())
    ids = []
    for number, place in enumerate(places):
        chunk = _chunk(*place)
        if len(before) == len(places) and _is_object(chunk, before[number], parts.objects):
            identity = before[number]
            encoded.kept.add(identity)
        else:
            identity = object_id(*chunk)
        encoded.chunks[identity] = place
        ids.append(identity)
    # Equal chunks are one object; the table says where it stands.
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


def _is_object(chunk: tuple[bytes | memoryview, ...], identity: str, objects: Mapping[str, bytes]) -> bool:
    """Whether ``chunk`` is, byte for byte, the object of this id: comparing is cheaper than hashing."""
    if size_of(objects, identity) != sum(map(len, chunk)):
        return False
    start, buffer = 0, np.empty(COMPARED, np.uint8)
    for part in chunk:
        bytes_of = np.frombuffer(part, np.uint8)
        for place in range(0, len(bytes_of), COMPARED):
            piece = bytes_of[place : place + COMPARED]
            copy_into(objects, identity, start + place, buffer.data[: len(piece)])
            if not np.array_equal(piece, buffer[: len(piece)]):
                return False
        start += len(part)
    return True


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

"""Look through protobuf before it is parsed: what an intruder wrote meets Python first, not a parser in C.

The parser then sees nothing but well-formed fields that Flower's own messages have, nested as they are there.
"""

from typing import Any, Final, final

from google.protobuf.descriptor import FieldDescriptor

FIELDS: Final = 200_000
"""Fields of one message, with those inside; 20,000 objects of a tree have two each."""
DEPTH: Final = 64
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIDTH: Final = {_FIXED64: 8, _FIXED32: 4}
_KIND_OF: Final = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
}


@final
class NotStrict(ValueError):
    """Bytes that no sender of Flower writes. The text is ours and holds nothing of them."""


def check_wire(body: bytes, kind: type[Any]) -> None:
    r"""Refuse what is not a well-formed message of ``kind``.

    Raises:
        NotStrict: an unknown field, another type than its own, a length beyond the end, a number longer than
            ten bytes, text that is no UTF-8, or too many or too deeply nested fields.

    Examples:
        >>> from google.protobuf.struct_pb2 import Value
        >>> check_wire(Value(string_value="a").SerializeToString(), Value)
        >>> check_wire(b"\x1a\x05a", Value)
        Traceback (most recent call last):
        glasshouse.integrations.flower_gate.strict.NotStrict: length
    """
    waiting = [(0, len(body), kind.DESCRIPTOR, 1)]
    seen = 0
    while waiting:
        place, end, descriptor, depth = waiting.pop()
        while place < end:
            # A small message can hold millions of empty fields.
            seen += 1
            if seen > FIELDS:
                raise NotStrict("number of fields")
            place, field, wire = _tag(body, place, end, descriptor)
            start, place = _value(body, place, end, wire)
            if wire != _KIND_OF.get(field.type, _VARINT):
                _packed(body, start, place, field)
            elif field.type == FieldDescriptor.TYPE_STRING:
                _text(body[start:place])
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                if depth == DEPTH:
                    raise NotStrict("depth")
                waiting.append((start, place, field.message_type, depth + 1))


def _tag(body: bytes, place: int, end: int, descriptor: Any) -> tuple[int, Any, int]:
    """Where a field's value begins, what field it is, and how it is written."""
    tag, place = _varint(body, place, end)
    field = descriptor.fields_by_number.get(tag >> 3)
    if field is None or field.type == FieldDescriptor.TYPE_GROUP:
        raise NotStrict("unknown field")
    return place, field, tag & 7


def _value(body: bytes, place: int, end: int, wire: int) -> tuple[int, int]:
    """Where a value's content begins and ends."""
    start = place
    if wire == _VARINT:
        _, place = _varint(body, place, end)
    elif wire == _LENGTH:
        length, start = _varint(body, place, end)
        place = start + length
    elif wire in _WIDTH:
        place += _WIDTH[wire]
    else:
        raise NotStrict("type of a field")
    if place > end:
        raise NotStrict("length")
    return start, place


def _packed(body: bytes, place: int, end: int, field: Any) -> None:
    """Numbers of a repeated field, one after the other; for others the parser finds an unknown field."""
    kind = _KIND_OF.get(field.type, _VARINT)
    if kind == _LENGTH or end - place > FIELDS:
        raise NotStrict("type of a field")
    if kind in _WIDTH and (end - place) % _WIDTH[kind]:
        raise NotStrict("length")
    while kind == _VARINT and place < end:
        _, place = _varint(body, place, end)


def _varint(body: bytes, place: int, end: int) -> tuple[int, int]:
    """A number of at most ten bytes, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= end:
            raise NotStrict("length")
        byte = body[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise NotStrict("number")


def _text(content: bytes) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise NotStrict("text") from error

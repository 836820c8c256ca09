"""What nodes and servers write is looked through before protobuf's parser sees it."""

import random

import pytest

pytest.importorskip("flwr")

from flwr.proto import recorddict_pb2

from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.strict import DEPTH, FIELDS, NotStrict, check_wire

PUSH = names.CALLS["push-messages"].request


def announcement(rng):
    """A request as a node writes it, with a tree, an error and numbers."""
    request = PUSH(clientapp_runtime_list=[rng.random() for _ in range(rng.randrange(4))])
    request.node.node_id = rng.getrandbits(63)
    message = request.messages_list.add()
    message.metadata.run_id, message.metadata.message_type = rng.getrandbits(64), "train"
    message.metadata.created_at = rng.random()
    message.error.code, message.error.reason = 2, "é" * rng.randrange(5)
    tree = request.message_object_trees.add(object_id="a" * 64)
    for _ in range(rng.randrange(5)):
        tree.children.add(object_id="b" * 64).children.add(object_id="c" * 64)
    return request


def record(rng):
    """A record, whose lists of numbers are packed."""
    made = recorddict_pb2.MetricRecord()
    made.items.add(key="a").value.double = rng.random()
    made.items.add(key="b").value.sint_list.vals.extend([rng.getrandbits(60) - 2**59 for _ in range(5)])
    made.items.add(key="c").value.double_list.vals.extend([rng.random() for _ in range(3)])
    return made


def altered(content, rng):
    """Some bytes changed, taken out or put in."""
    made = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(made))
        deed = rng.randrange(3)
        made[place : place + (deed > 0)] = rng.randbytes(deed != 2)
    return bytes(made)


@pytest.mark.parametrize("build", [announcement, record])
def test_what_flower_writes_passes(build):
    rng = random.Random(0)
    for _ in range(100):
        made = build(rng)
        check_wire(made.SerializeToString(), type(made))


@pytest.mark.parametrize("build", [announcement, record])
def test_what_passes_is_parsed_without_fault(build):
    """Of 3,000 altered messages the parser refuses none that passed: it sees well-formed ones alone."""
    rng = random.Random(1)
    passed = 0
    for _ in range(3000):
        made = build(rng)
        content = altered(made.SerializeToString(), rng)
        try:
            check_wire(content, type(made))
        except NotStrict:
            continue
        type(made).FromString(content)
        passed += 1
    assert passed > 100


def nested(depth):
    tree = names.ProtoTree(object_id="a")
    for _ in range(depth):
        tree = names.ProtoTree(object_id="a", children=[tree])
    return PUSH(message_object_trees=[tree]).SerializeToString()


def field(number, wire, rest=b""):
    return bytes([number << 3 | wire]) + rest


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (field(15, 0, b"\x01"), "unknown field"),
        (field(1, 3), "type of a field"),  # a group
        (field(1, 0, b"\x01"), "type of a field"),  # a number in the place of a message
        (field(3, 2, b"\x7f"), "length"),
        (field(3, 2, b"\xff" * 9 + b"\x01"), "length"),
        (field(3, 2, b"\xff" * 11), "number"),
        (field(3, 2), "length"),
        (field(3, 2, b"\x03" + field(1, 2, b"\x01\xff")), "text"),
        (field(4, 2, b"\x07" + bytes(7)), "length"),  # numbers of eight bytes each
        (field(3, 2, b"\x00") * (FIELDS + 1), "number of fields"),
        (nested(DEPTH), "depth"),
    ],
)
def test_what_no_sender_writes_is_refused(content, word):
    with pytest.raises(NotStrict, match=f"^{word}$"):
        check_wire(content, PUSH)

"""Messages made to take the gate down: each is opened in a process under limits, and the gate goes on."""

import asyncio
import json
import os
import resource
import signal
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from gate_world import KEY, NODE, RUN, deeds, play, world

from glasshouse.integrations.flower_gate import names, opening
from glasshouse.integrations.flower_gate.decoding import BODY_BYTES
from glasshouse.integrations.flower_gate.objects import join, object_id

EMPTY = b"[],"
ROOM = {"budget": {"largest": 2**28}}


def table(filling):
    """JSON of nearly as many bytes as are parsed."""
    body = json.dumps({"dtype": "", "shape": [], "stype": names.STYPE, names.CHUNK_INDEX: [], "x": 0})
    return body.replace('"x": 0', '"x": ' + filling(BODY_BYTES - 200)).encode()


def wide(size):
    """Empty lists: 60 bytes of memory for three bytes of text."""
    return "[" + (EMPTY * (size // 3)).decode()[:-1] + "]"


def deep(size):
    return "[" * (size // 2) + "]" * (size // 2)


def numbers(size):
    """One whole number of a million digits."""
    return "1" * min(size, 1_000_000)


def exponents(size):
    return "[" + ("1e400," * (size // 6))[:-1] + "]"


def bomb(filling, count, metadata):
    """Objects of a message of ``count`` tensors, each with its own large table."""
    contents = {}

    def add(kind, body, *children):
        ids = [child.object_id for child in children]
        content = join(kind, tuple(ids), body)
        contents[object_id(content)] = content
        return names.ProtoTree(object_id=object_id(content), children=children)

    body = table(filling)
    arrays = {f"t{n}": add(names.ARRAY, body + b" " * n) for n in range(count)}
    index = json.dumps({name: tree.object_id for name, tree in arrays.items()}).encode()
    record = add("ArrayRecord", index, *arrays.values())
    records = add(names.RECORD_DICT, json.dumps({"arrays": record.object_id}).encode(), record)
    proto = names.ProtoMessage(metadata=metadata)
    tree = add(names.MESSAGE, proto.SerializeToString(), records)
    proto.metadata.message_id = tree.object_id
    proto.content.SetInParent()
    return proto, tree, contents


async def pushed(made, filling, count):
    """Receive a question, answer it with a bomb; returns the seconds that the last object took."""
    made.link.ask(made.model)
    asked = await made.node.receive()
    metadata = names.ProtoMessage().metadata
    metadata.run_id, metadata.reply_to_message_id = RUN, asked.metadata.message_id
    proto, tree, contents = bomb(filling, count, metadata)
    request = names.CALLS["push-messages"].request(messages_list=[proto], message_object_trees=[tree])
    request.node.node_id = NODE
    answer = await made.node.send("push-messages", request)
    begin = time.monotonic()
    for identity in answer.objects_to_push:
        begin = time.monotonic()
        more = {"run_id": RUN, "object_id": identity, "session_id": answer.session_id}
        while await made.node.call("push-object", object_content=contents[identity], **more) == 503:
            pass
    return time.monotonic() - begin


async def honest(made, turn):
    made.link.ask(made.model, turn=turn)
    asked = await made.node.receive()
    received = {name: array.numpy() for name, array in asked.content["arrays"].items()}
    await made.node.push(Message(deeds.reply("honest", received, seed=0, turn=turn), reply_to=asked))


@pytest.mark.parametrize(
    ("filling", "count", "rule", "word"),
    [
        (wide, 40, "not_opened", "MemoryError"),
        (exponents, 40, "not_opened", "MemoryError"),
        (deep, 2, "malformed", "JSON"),
        (numbers, 2, "malformed", "JSON"),
    ],
)
def test_a_bomb_is_refused_and_the_gate_goes_on(tmp_path, filling, count, rule, word):
    """Forty tables of empty lists would take some 4 GB."""
    with world(tmp_path, ROOM) as made:

        async def turns():
            await made.node.call("activate-node", public_key=b"the node's public key")
            await honest(made, 0)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seconds = await pushed(made, filling, count)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            await honest(made, 1)
            return seconds, grown / 1024

        seconds, grown = play(turns())
        first, second, third = made.entries("out")
        assert [first["action"], second["action"], third["action"]] == ["changed", "refused", "changed"]
        assert second["rules"] == [rule]
        assert word in second["details"][0]
        assert second["tensors"] == 0
        assert seconds < 60
        # this process also holds the message that it pushes
        assert grown < 200 + 4 * second["bytes_in"] / 2**20
        assert KEY.encode() not in made.link.replies[1][0].SerializeToString()


def test_a_killed_opener_is_started_anew(tmp_path):
    with world(tmp_path) as made:

        async def turns():
            await made.node.call("activate-node", public_key=b"the node's public key")
            await honest(made, 0)
            os.kill(opening.opener().pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            await honest(made, 1)

        play(turns())
        assert [entry["action"] for entry in made.entries("out")] == ["changed", "changed"]


def test_without_an_opener_nothing_leaves(tmp_path, monkeypatch):
    with world(tmp_path) as made:

        async def turns():
            await made.node.call("activate-node", public_key=b"the node's public key")
            made.link.ask(made.model)
            asked = await made.node.receive()
            received = {name: array.numpy() for name, array in asked.content["arrays"].items()}

            def broken(*_):
                raise OSError("no more processes")

            monkeypatch.setattr(opening.Opener, "_ask", broken)
            await made.node.push(Message(deeds.reply("honest", received, seed=0, turn=0), reply_to=asked))

        play(turns())
        (entry,) = made.entries("out")
        assert (entry["action"], entry["rules"]) == ("refused", ["not_opened"])
        assert made.link.answer().has_error()


LOADER = """
import pathlib, resource
def load():
    limits = [resource.getrlimit(what) for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU)]
    pathlib.Path("limits.txt").write_text(str(all(soft == hard for soft, hard in limits)))
    raise RuntimeError
"""


def test_the_sites_own_check_runs_without_the_limits(tmp_path):
    (tmp_path / "site_data.py").write_text(LOADER)
    with world(tmp_path, {"out": {"preflight": {"loader": "site_data:load"}}}) as made:

        async def turns():
            await made.node.call("activate-node", public_key=b"the node's public key")
            await honest(made, 0)

        play(turns())
        (entry,) = made.entries("out")
    assert entry["rules"] == ["preflight_unclear"]
    assert entry["details"] == ["the check failed"]
    assert (tmp_path / "limits.txt").read_text() == "True"

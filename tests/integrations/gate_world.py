"""A SuperLink and a SuperNode in memory, with the gate's proxy between them.

The node builds and cuts its messages with Flower's own classes; the SuperLink keeps every byte that it gets.
"""

import asyncio
import base64
import hashlib
import importlib.util
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from starlette.responses import Response

from glasshouse.gate.desk import Desk
from glasshouse.gate.log import Log, create_key, public_path, read_public_key, verify
from glasshouse.gate.policy import parse_policy
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.proxy import Proxy
from glasshouse.integrations.flower_gate.run import application

_spec = importlib.util.spec_from_file_location(
    "gate_app_deeds", Path(__file__).parent / "gate_app/gate_app/deeds.py"
)
deeds = importlib.util.module_from_spec(_spec)
sys.modules["gate_app_deeds"] = deeds
_spec.loader.exec_module(deeds)

RUN, NODE, APP = 7, 3, b"the app"
KEY = base64.b64encode(b"the node's public key").decode()
TABLE = {
    "format": 1,
    "site": "ward",
    "dataset": "rows",
    "out": {"norm": 2.5, "grid": 1e-4, "fields": ("allowed",), "examples": {"least": 32, "multiple": 32}},
}


def merged(base, more):
    """Tables of a policy, the second laid over the first."""
    table = dict(base)
    for key, value in more.items():
        table[key] = merged(table.get(key, {}), value) if isinstance(value, dict) else value
    return table


class SuperLink:
    """Answers the protocol and keeps what it was sent."""

    def __init__(self):
        self.bodies, self.messages, self.objects, self.replies = [], [], {}, []
        self.failing = 0
        self.app = APP

    def ask(self, arrays, *, kind="train", config=None, turn=0, secure=None):
        """Queue a question; ``secure``: an instruction of SecAgg+."""
        content = RecordDict({"arrays": ArrayRecord({n: Array(a) for n, a in arrays.items()})})
        content["task"] = ConfigRecord(config or {"turn": turn})
        if secure is not None:
            content[names.SECURE_RECORD] = ConfigRecord(secure)
        metadata = Metadata(
            run_id=RUN,
            message_id="",
            src_node_id=1,
            dst_node_id=NODE,
            reply_to_message_id="",
            group_id=str(turn),
            created_at=time.time(),
            ttl=3600.0,
            message_type=kind,
        )
        metadata.delivered_at = ""
        message = Message(metadata=metadata, content=content)
        metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {i: o.deflate() for i, o in get_all_nested_objects(message).items()}
        self.messages.append(message)

    async def __call__(self, scope, receive, send):
        body = bytearray()
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        name = scope["path"].removeprefix(names.PREFIX)
        self.bodies.append((name, bytes(body)))
        if self.failing:
            self.failing -= 1
            await Response(status_code=503)(scope, receive, send)
            return
        request = names.CALLS[name].request.FromString(bytes(body))
        reply = getattr(self, name.replace("-", "_"))(request, names.CALLS[name].response())
        await Response(reply.SerializeToString(), media_type=names.MEDIA)(scope, receive, send)

    def activate_node(self, request, reply):
        reply.node_id = NODE
        return reply

    def send_node_heartbeat(self, request, reply):
        reply.success = True
        return reply

    def pull_messages(self, request, reply):
        if self.messages:
            message = self.messages.pop(0)
            bare = Message(metadata=message.metadata, content=RecordDict())
            reply.messages_list.append(message_to_proto(bare))
            reply.message_object_trees.append(get_object_tree(message))
        return reply

    def get_run(self, request, reply):
        reply.run.run_id, reply.run.fab_hash = RUN, hashlib.sha256(self.app).hexdigest()
        return reply

    def get_fab(self, request, reply):
        reply.fab.hash_str, reply.fab.content = request.hash_str, self.app
        return reply

    def pull_object(self, request, reply):
        content = self.objects.get(request.object_id)
        reply.object_found = reply.object_available = content is not None
        reply.object_content = content or b""
        return reply

    def confirm_message_received(self, request, reply):
        return reply

    def push_messages(self, request, reply):
        self.replies.append((request.messages_list[0], request.message_object_trees[0], {}))
        reply.session_id = "s"
        reply.objects_to_push.extend(sorted(_ids(request.message_object_trees[0])))
        return reply

    def push_object(self, request, reply):
        self.replies[-1][2][request.object_id] = request.object_content
        reply.stored = True
        return reply

    def answer(self):
        """The last reply, inflated by Flower."""
        proto, tree, contents = self.replies[-1]
        announced = message_from_proto(proto)
        inflated = inflate_object_from_contents(tree.object_id, dict(contents))
        assert inflated.object_id == tree.object_id == announced.metadata.message_id
        return inflated

    def sent(self):
        """Every byte that it was sent."""
        return b"".join(body for _, body in self.bodies)


def _ids(tree):
    return {tree.object_id}.union(*map(_ids, tree.children))


class Node:
    """A SuperNode: pulls, lets an app answer, pushes."""

    def __init__(self, client):
        self.client = client
        self.headers = {
            names.KEY_HEADER: KEY,
            names.TIME_HEADER: "2026-11-26T12:00:00+00:00",
            names.SIGNATURE_HEADER: base64.b64encode(b"signature").decode(),
            "flwr-package-name": "flwr",
            names.VERSION_HEADER: "1.41.0",
            "flwr-component-name": "SuperNode",
            "content-type": names.MEDIA,
        }

    async def raw(self, path, content, **headers):
        return await self.client.post(path, content=content, headers={**self.headers, **headers})

    async def call(self, name, **fields):
        request = names.CALLS[name].request(**fields)
        if "node" in request.DESCRIPTOR.fields_by_name:
            request.node.node_id = NODE
        return await self.send(name, request)

    async def send(self, name, request):
        reply = await self.raw(names.PREFIX + name, request.SerializeToString())
        if reply.status_code != 200:
            return reply.status_code
        return names.CALLS[name].response.FromString(reply.content)

    async def receive(self):
        """The next question, inflated; None: there is none, or the gate keeps it."""
        pulled = await self.call("pull-messages")
        if not pulled.messages_list:
            return None
        proto, tree = pulled.messages_list[0], pulled.message_object_trees[0]
        run = proto.metadata.run_id
        await self.call("get-run", run_id=run)
        await self.call("get-fab", run_id=run, hash_str=hashlib.sha256(APP).hexdigest())
        contents = {}
        for identity in sorted(_ids(tree), key=lambda i: i == tree.object_id):
            got = await self.call("pull-object", run_id=run, object_id=identity)
            if isinstance(got, int) or not got.object_found:
                return None
            contents[identity] = got.object_content
        await self.call("confirm-message-received", run_id=run, message_object_id=tree.object_id)
        message = inflate_object_from_contents(tree.object_id, contents)
        message.metadata.__dict__["_message_id"] = proto.metadata.message_id
        return message

    async def push(self, reply, *, contents=None, alter=None):
        """Push a reply; returns the statuses of its requests that were not answered well."""
        objects = {i: o.deflate() for i, o in get_all_nested_objects(reply).items()}
        reply.metadata.__dict__["_message_id"] = reply.object_id
        bare = reply if reply.has_error() else Message(metadata=reply.metadata, content=RecordDict())
        request = names.CALLS["push-messages"].request(
            messages_list=[message_to_proto(bare)],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[1.5],
        )
        request.node.node_id = NODE
        if alter is not None:
            alter(request)
        answer = await self.send("push-messages", request)
        if isinstance(answer, int):
            return [answer]
        contents = {**objects, **(contents or {})}
        stored = await asyncio.gather(  # as a real node does: several at a time
            *(
                self.call(
                    "push-object",
                    run_id=RUN,
                    object_id=identity,
                    object_content=contents.get(identity, b""),
                    session_id=answer.session_id,
                )
                for identity in answer.objects_to_push
            )
        )
        return [status for status in stored if isinstance(status, int)]

    async def do(self, deed, *, seed=0, turn=0):
        """Receive, do a deed of the test app, push."""
        asked = await self.receive()
        if asked is None:
            return None
        received = {name: array.numpy() for name, array in asked.content["arrays"].items()}
        try:
            reply = Message(deeds.reply(deed, received, seed=seed, turn=turn), reply_to=asked)
        except RuntimeError as error:
            reply = Message(Error(code=2, reason=str(error)), reply_to=asked)
        return await self.push(reply)


class World:
    """Both ends and the gate."""

    def __init__(self, folder, policy, *, observe=False):
        create_key(folder / "gate.ed25519")
        self.folder = folder
        self.policy = parse_policy(merged(TABLE, policy or {}), folder=folder)
        self.log = Log(folder / "gate.jsonl", folder / "gate.ed25519")
        self.link = SuperLink()
        self.upstream = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.link), base_url="http://superlink"
        )
        self.proxy = Proxy(Desk(self.policy, self.log, observe=observe), self.upstream)
        near = httpx.ASGITransport(app=application(self.proxy))
        self.node = Node(httpx.AsyncClient(transport=near, base_url="http://gate"))
        self.model = deeds.start(64)

    def entries(self, event):
        """Entries of the log, which must verify."""
        checked = verify(
            self.folder / "gate.jsonl", read_public_key(public_path(self.folder / "gate.ed25519"))
        )
        assert checked.fault == ""
        return [entry for entry in checked.entries if entry["event"] == event]


@contextmanager
def world(folder, policy=None, **settings):
    """A world whose log is closed with the block."""
    made = World(folder, policy, **settings)
    try:
        yield made
    finally:
        made.log.close()


def play(coroutine):
    """Run a coroutine to its end."""
    return asyncio.run(coroutine)

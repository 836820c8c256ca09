"""The proxy: answers the node, asks the SuperLink, and lets through only what the desk has decided on.

Every request is rebuilt from known fields before it goes on; responses travel inwards as they are, under
limits.
"""

import asyncio
import base64
import binascii
import hashlib
import re
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, final

import httpx
from google.protobuf.message import DecodeError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from glasshouse.errors import GlasshouseError
from glasshouse.gate.arrivals import Arrival
from glasshouse.gate.desk import Desk
from glasshouse.gate.judge import REPLACED
from glasshouse.gate.message import Decision
from glasshouse.gate.rules import shorten
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.exchange import (
    Gather,
    Pulled,
    encode_allowed,
    original,
    outgoing,
    payload_of,
)
from glasshouse.integrations.flower_gate.objects import (
    BODY_BYTES,
    Decoded,
    Encoded,
    Malformed,
    Parts,
    decode,
    encode,
    object_id,
    tree_ids,
)

OBJECTS: Final = 20_000
DEPTH: Final = 8
"""A message of Flower has five levels: message, records, record, array, chunk."""
NODES: Final = 64
PENDING: Final = 4
"""Answers that are collected at one time, over all nodes."""
KEPT: Final = 32
"""Questions of one node that are remembered."""
PATIENCE: Final = 20.0
"""Seconds that a node waits for a decision before it is told to ask again; it gives up after 30."""
WHOLE_WITHIN: Final = 900.0
"""Seconds within which an announced answer must have come."""
BODY_WITHIN: Final = 60.0
"""Seconds within which the body of one request must have come."""
_HEADER: Final = re.compile(r"[A-Za-z0-9+/=:.\-]{1,400}")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)[A-Za-z0-9.+\-]{0,40}")


@final
class Refused(Exception):
    """The request is not answered; the node is told no more than a status."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status, self.what = status, what


@final
@dataclass(kw_only=True)
class Node:
    """A SuperNode behind the gate.

    Attributes:
        number: its id, as first seen with its key.
        headers: of its latest request; their signature covers a time alone and stays valid for 305 seconds.
        pulled: questions that it was asked, by message id.
        gathers: answers that are collected, by the gate's session.
    """

    number: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pulled: "OrderedDict[str, Pulled]" = field(default_factory=OrderedDict)
    gathers: "OrderedDict[str, Gather]" = field(default_factory=OrderedDict)


@final
class Proxy:
    """Stands between SuperNodes and their SuperLink.

    Args:
        desk: policy, log and totals.
        upstream: client with the SuperLink as its base address.
    """

    def __init__(self, desk: Desk, upstream: httpx.AsyncClient) -> None:
        self.desk, self._upstream = desk, upstream
        self._nodes: dict[str, Node] = {}
        self._fabs: dict[int, str] = {}  # hash of the app by run
        self._most = desk.policy.budget.largest

    async def answer(self, request: Request) -> Response:
        """Answer one request of a node."""
        try:
            name = self._call_name(request)
            message = _parse(names.CALLS[name].request, await _body(request))
            node = self._node(request, message)
            handle = getattr(self, "_" + name.replace("-", "_"))
            reply = await handle(node, message)
        except Refused as error:
            # delays are no news; everything else is what a new release, or an intruder, looks like
            if error.status not in (502, 503, 403):
                self.desk.note("unknown", path=shorten(request.url.path), what=error.what)
            return Response(status_code=error.status)
        except ClientDisconnect:
            return Response(status_code=400)
        except GlasshouseError:
            return Response(status_code=503)  # the log cannot be written: nothing leaves
        except Exception as error:  # noqa: BLE001 — outermost handler: fails closed, and the log says so
            self.desk.note("failed", path=shorten(request.url.path), what=type(error).__name__)
            return Response(status_code=500)
        return Response(reply.SerializeToString(), media_type=names.MEDIA)

    def _call_name(self, request: Request) -> str:
        name = request.url.path.removeprefix(names.PREFIX)
        if request.method != "POST" or request.url.query or name not in names.CALLS:
            raise Refused(404, "unknown path")
        if not request.url.path.startswith(names.PREFIX):
            raise Refused(404, "unknown path")
        version = _VERSION.fullmatch(request.headers.get(names.VERSION_HEADER, ""))
        if version is None or (int(version[1]), int(version[2])) < names.OLDEST:
            raise Refused(400, "Flower older than 1.40, or of no known version")
        return name

    def _node(self, request: Request, message: Any) -> Node:
        """The node that asks, told by its key; its number may not change."""
        headers = {n: request.headers.get(n, "") for n in (*names.NODE_HEADERS, *names.RUNTIME_HEADERS)}
        if not all(_HEADER.fullmatch(value) for value in headers.values()):
            raise Refused(401, "headers")
        key = headers[names.KEY_HEADER]
        if key not in self._nodes and len(self._nodes) >= NODES:
            raise Refused(503, "too many nodes")
        node = self._nodes.setdefault(key, Node())
        node.headers = headers
        fields = message.DESCRIPTOR.fields_by_name
        number = message.node.node_id if "node" in fields else getattr(message, "node_id", 0)
        if number:
            node.number = node.number or number
            if number != node.number:
                raise Refused(401, "one key, two nodes")
        elif "public_key" in fields:
            if message.public_key != _decode_key(key):
                raise Refused(401, "one key in the header, another in the request")
        else:
            raise Refused(401, "no node")
        return node

    # What is asked of the SuperLink in the node's name.

    async def _ask(self, node: Node, name: str, request: Any) -> Any:
        """Send a request upstream; its answer is parsed under limits.

        Raises:
            Refused: the SuperLink answered with an error, or not at all; the node is told the same.
        """
        headers = {**node.headers, "content-type": names.MEDIA, "accept": names.MEDIA}
        most = self._most + BODY_BYTES if name == "get-fab" else names.CHUNK * 4 + BODY_BYTES
        body = bytearray()
        content = request.SerializeToString(deterministic=True)
        try:
            async with self._upstream.stream(
                "POST", names.PREFIX + name, content=content, headers=headers
            ) as reply:
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > most:
                        raise Refused(502, "the answer is too large")
        except httpx.HTTPError as error:
            raise Refused(503, "the SuperLink does not answer") from error
        if reply.status_code != 200:
            raise Refused(reply.status_code if 400 <= reply.status_code < 600 else 502, "refused upstream")
        return _parse(names.CALLS[name].response, bytes(body))

    async def _register_node(self, node: Node, message: Any) -> Any:
        return await self._ask(node, "register-node", type(message)(public_key=message.public_key))

    async def _activate_node(self, node: Node, message: Any) -> Any:
        request = type(message)(public_key=message.public_key, heartbeat_interval=names.HEARTBEAT)
        reply = await self._ask(node, "activate-node", request)
        node.number = reply.node_id
        return reply

    async def _deactivate_node(self, node: Node, message: Any) -> Any:
        return await self._ask(node, "deactivate-node", type(message)(node_id=node.number))

    async def _unregister_node(self, node: Node, message: Any) -> Any:
        return await self._ask(node, "unregister-node", type(message)(node_id=node.number))

    async def _send_node_heartbeat(self, node: Node, message: Any) -> Any:
        await self._end_overdue(node)
        request = type(message)(heartbeat_interval=names.HEARTBEAT)
        request.node.node_id = node.number
        return await self._ask(node, "send-node-heartbeat", request)

    # What arrives.

    async def _pull_messages(self, node: Node, message: Any) -> Any:
        if message.message_ids:
            raise Refused(400, "names in a request")
        reply = await self._ask(node, "pull-messages", self._request(node, "pull-messages"))
        if len(reply.messages_list) != len(reply.message_object_trees):
            raise Refused(502, "messages without trees")
        handed_on = names.CALLS["pull-messages"].response()
        handed_on.reconnect.CopyFrom(reply.reconnect)
        for one, tree in zip(reply.messages_list, reply.message_object_trees, strict=True):
            if await self._admit(node, one, tree):
                handed_on.messages_list.append(one)
                handed_on.message_object_trees.append(tree)
        return handed_on

    async def _admit(self, node: Node, message: Any, tree: Any) -> bool:
        """Remember a question; if its app may not run or its form is odd, answer it with an error."""
        app = await self._app_of(node, message.metadata.run_id)
        try:
            wanted = tree_ids(tree, most=OBJECTS, deepest=DEPTH)
        except Malformed:
            wanted = set()
        pulled = Pulled(metadata=message.metadata, root=tree.object_id, wanted=wanted, app=app)
        node.pulled[message.metadata.message_id] = pulled
        while len(node.pulled) > KEPT:
            node.pulled.popitem(last=False)
        for old in list(node.pulled.values())[:-2]:  # a node works on one question at a time
            old.contents.clear()
            old.arrays = {}
        allowed = self.desk.policy.apps
        if wanted and (not allowed or f"sha256:{app}" in allowed or self.desk.observe):
            return True
        await asyncio.to_thread(self.desk.arrive, self._arrival(pulled), {})
        await self._turn_down(node, pulled)
        return False

    async def _app_of(self, node: Node, run: int) -> str:
        """SHA-256 of the app of a run, from its content."""
        if run not in self._fabs:
            told = await self._ask(node, "get-run", self._request(node, "get-run", run_id=run))
            request = self._request(node, "get-fab", run_id=run, hash_str=told.run.fab_hash)
            fab = (await self._ask(node, "get-fab", request)).fab
            self._fabs[run] = hashlib.sha256(fab.content).hexdigest()
        return self._fabs[run]

    async def _get_run(self, node: Node, message: Any) -> Any:
        self._known_run(message.run_id)
        return await self._ask(node, "get-run", self._request(node, "get-run", run_id=message.run_id))

    async def _get_fab(self, node: Node, message: Any) -> Any:
        self._known_run(message.run_id)
        digest = self._fabs[message.run_id]
        if message.hash_str != digest:
            raise Refused(400, "another app")
        request = self._request(node, "get-fab", run_id=message.run_id, hash_str=digest)
        reply = await self._ask(node, "get-fab", request)
        if hashlib.sha256(reply.fab.content).hexdigest() != digest:
            raise Refused(502, "the app changed")
        return reply

    def _known_run(self, run: int) -> None:
        if run not in self._fabs:
            raise Refused(400, "unknown run")

    async def _pull_object(self, node: Node, message: Any) -> Any:
        pulled = next(
            (
                p
                for p in node.pulled.values()
                if message.object_id in p.wanted and p.metadata.run_id == message.run_id
            ),
            None,
        )
        if pulled is None:
            raise Refused(400, "unknown object")
        if message.object_id != pulled.root:
            return await self._fetch(node, pulled, message.object_id)
        # The root goes last: without it the app cannot read the message, and the gate has judged it by then.
        async with pulled.lock:
            if pulled.state == "open":
                waits = await self._judge_arrival(node, pulled)
                if waits is not None:
                    return waits
        response = names.CALLS["pull-object"].response
        if pulled.state == "refused":
            return response(object_found=False)
        return response(object_found=True, object_available=True, object_content=pulled.kept_root)

    async def _fetch(self, node: Node, pulled: Pulled, identity: str) -> Any:
        """One object from the SuperLink, kept until the message is judged."""
        request = self._request(node, "pull-object", run_id=pulled.metadata.run_id, object_id=identity)
        reply = await self._ask(node, "pull-object", request)
        if not reply.object_available:
            return reply
        if await asyncio.to_thread(object_id, reply.object_content) != identity:
            raise Refused(502, "an object is not what its id says")
        if pulled.state == "open" and identity not in pulled.contents:
            pulled.bytes += len(reply.object_content)
            # beyond the limit nothing more is kept; the message is refused when its root is asked for
            pulled.contents[identity] = reply.object_content if pulled.bytes <= self._most else b""
        return reply

    async def _judge_arrival(self, node: Node, pulled: Pulled) -> Any:
        """Judge a message once all of it is here; returns an answer for the node if it must ask again."""
        for identity in [i for i in pulled.wanted if i not in pulled.contents]:
            reply = await self._fetch(node, pulled, identity)
            if not reply.object_available:
                return reply
        pulled.kept_root = pulled.contents[pulled.root]
        found = await asyncio.to_thread(self._look_at_arrival, pulled)
        pulled.contents.clear()
        pulled.state = "refused" if found else "passed"
        if found:
            await self._turn_down(node, pulled)
        return None

    def _look_at_arrival(self, pulled: Pulled) -> bool:
        """Decode and judge; whether the message is refused."""
        arrival = self._arrival(pulled)
        documents, arrays = 0, {}
        if pulled.bytes <= self._most:
            try:
                decoded = decode(pulled.root, pulled.contents, release=True)
                arrays = decoded.arrays
                documents = sum(config.ByteSize() for config in decoded.configs.values())
            except Malformed:
                self.desk.note("malformed", run=pulled.origin.run)
                return not self.desk.observe
        arrival = Arrival(kind=arrival.kind, origin=arrival.origin, bytes=arrival.bytes, documents=documents)
        found = self.desk.arrive(arrival, arrays)
        pulled.arrays = {} if found else arrays
        return bool(found)

    def _arrival(self, pulled: Pulled) -> Arrival:
        return Arrival(kind=pulled.kind, origin=pulled.origin, bytes=pulled.bytes)

    async def _confirm_message_received(self, node: Node, message: Any) -> Any:
        if not any(message.message_object_id == p.root for p in node.pulled.values()):
            raise Refused(400, "unknown object")
        request = self._request(
            node,
            "confirm-message-received",
            run_id=message.run_id,
            message_object_id=message.message_object_id,
        )
        return await self._ask(node, "confirm-message-received", request)

    # What leaves.

    async def _push_messages(self, node: Node, message: Any) -> Any:
        """Take an answer's announcement: everything is wanted, nothing goes on before it was judged."""
        if len(message.messages_list) != 1 or len(message.message_object_trees) != 1:
            raise Refused(400, "not one message")
        proto, tree = message.messages_list[0], message.message_object_trees[0]
        pulled = node.pulled.get(proto.metadata.reply_to_message_id)
        if pulled is None or pulled.state != "passed":
            raise Refused(400, "an answer to no question")
        if sum(len(one.gathers) for one in self._nodes.values()) >= PENDING:
            raise Refused(503, "too many answers at a time")
        gather = Gather(
            pulled=pulled, proto=proto, tree=tree, wanted=set(), ends=time.monotonic() + WHOLE_WITHIN
        )
        try:
            gather.wanted = tree_ids(tree, most=OBJECTS, deepest=DEPTH)
            if proto.metadata.message_id != tree.object_id:
                gather.refuse("malformed", "another id")
        except Malformed as error:
            gather.refuse("malformed", str(error))
        response = names.CALLS["push-messages"].response
        if pulled.replied:
            # The server has an answer: this one is written down, and nothing at all is sent.
            gather.refuse("answered_twice")
            await asyncio.to_thread(self._decide, gather)
            return response(session_id=gather.session)
        node.gathers[gather.session] = gather
        if gather.oddities:
            await self._conclude(node, gather)
            return response(session_id=gather.session)
        return response(objects_to_push=sorted(gather.wanted), session_id=gather.session)

    async def _push_object(self, node: Node, message: Any) -> Any:
        """Take one object of an answer; the last one is answered when the SuperLink has the message."""
        response = names.CALLS["push-object"].response
        gather = node.gathers.get(message.session_id)
        if gather is None or gather.done:
            return response(stored=gather is not None)
        if not gather.oddities and gather.payload is None and message.object_id not in gather.contents:
            content = message.object_content
            gather.size += len(content)
            if message.object_id not in gather.wanted:
                gather.refuse("malformed", "an object that was not announced")
            elif gather.size > self._most:
                gather.refuse("too_large", f"more than {self._most:,} bytes")
            elif await asyncio.to_thread(object_id, content) != message.object_id:
                gather.refuse("malformed", "an object is not what its id says")
            else:
                gather.contents[message.object_id] = content
        if gather.oddities or gather.payload is not None or gather.is_whole:
            await self._conclude(node, gather)
        return response(stored=True)

    async def _conclude(self, node: Node, gather: Gather) -> None:
        """Decide and deliver, once; a node that waits too long is told to ask again."""
        if gather.done:
            return
        if gather.task is None or gather.task.done():
            gather.task = asyncio.create_task(self._decide_and_deliver(node, gather))
        try:
            await asyncio.wait_for(asyncio.shield(gather.task), PATIENCE)
        except TimeoutError as error:
            raise Refused(503, "not yet decided") from error

    async def _decide_and_deliver(self, node: Node, gather: Gather) -> None:
        if gather.payload is None:
            gather.pulled.replied = True
            gather.payload = await asyncio.to_thread(self._decide, gather)
            gather.pulled.arrays = {}
        try:
            await self._deliver(node, gather.pulled, gather.payload)
        except Refused as error:
            if error.status == 503:  # the node asks again, and the same payload is delivered
                raise
            self._forget(node, gather)
            raise
        self._forget(node, gather)

    def _forget(self, node: Node, gather: Gather) -> None:
        gather.done, gather.payload = True, None
        gather.contents.clear()
        while len(node.gathers) > 1 and next(iter(node.gathers.values())).done:
            node.gathers.popitem(last=False)

    def _decide(self, gather: Gather) -> Encoded:
        """What is sent for an answer: what the judge allows, or an error in fixed words."""
        records, observe = self.desk.policy.out.records, self.desk.observe
        message, decoded = outgoing(gather, records=records, keep=observe)
        decision: Decision
        decision, payload = self.desk.decide(
            message,
            gather.pulled.arrays or None,
            lambda allowed: payload_of(
                encode_allowed(allowed, decoded or Decoded(proto=None), gather.pulled, records)
            ),
        )
        if observe:
            return original(gather)
        del decision, message
        return payload.content if payload else self._error(gather.pulled)

    def _error(self, pulled: Pulled) -> Encoded:
        return encode(pulled.reply_metadata(), Parts(error=REPLACED))

    async def _turn_down(self, node: Node, pulled: Pulled) -> None:
        """Answer a question that the app never sees."""
        pulled.state, pulled.replied = "refused", True
        try:
            await self._deliver(node, pulled, self._error(pulled))
        except Refused:
            self.desk.note("undelivered", run=pulled.origin.run, reply_to=pulled.origin.reply_to)

    async def _deliver(self, node: Node, pulled: Pulled, encoded: Encoded) -> None:
        """Send a decided message upstream, object by object, with the node's latest headers."""
        request = self._request(node, "push-messages")
        request.messages_list.append(encoded.proto)
        request.message_object_trees.append(encoded.tree)
        request.clientapp_runtime_list.append(0.0)  # how long the app took is not told
        reply = await self._ask(node, "push-messages", request)
        total = request.ByteSize()
        for identity in reply.objects_to_push:
            if identity not in encoded.small and identity not in encoded.chunks:
                raise Refused(502, "an object is wanted that was not announced")
            one = self._request(
                node,
                "push-object",
                run_id=pulled.metadata.run_id,
                object_id=identity,
                object_content=encoded.content(identity),
                session_id=reply.session_id,
            )
            total += one.ByteSize()
            if not (await self._ask(node, "push-object", one)).stored:
                raise Refused(503, "not stored")
        await asyncio.to_thread(
            lambda: self.desk.note(
                "delivered",
                run=pulled.origin.run,
                node=pulled.origin.node,
                reply_to=pulled.origin.reply_to,
                sent=encoded.root,
                bytes=total,
            )
        )

    async def _end_overdue(self, node: Node) -> None:
        """Refuse answers that were announced and never came."""
        for gather in list(node.gathers.values()):
            if not gather.done and gather.payload is None and time.monotonic() > gather.ends:
                gather.refuse("incomplete")
                await self._conclude(node, gather)

    def _request(self, node: Node, name: str, **fields: object) -> Any:
        request = names.CALLS[name].request(**fields)
        request.node.node_id = node.number
        return request


async def _body(request: Request) -> bytes:
    """The body of a request, under limits of size and time."""
    most = names.CHUNK * 4 + BODY_BYTES if request.url.path.endswith("/push-object") else BODY_BYTES
    if request.headers.get("content-encoding") or request.headers.get("content-type") != names.MEDIA:
        raise Refused(415, "another content type")
    body = bytearray()

    async def read() -> None:
        async for part in request.stream():
            body.extend(part)
            if len(body) > most:
                raise Refused(413, "too large")

    try:
        await asyncio.wait_for(read(), BODY_WITHIN)
    except TimeoutError as error:
        raise Refused(408, "too slow") from error
    return bytes(body)


def _parse(kind: type[Any], body: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(body)
    except (DecodeError, RecursionError) as error:
        raise Refused(400, "protobuf") from error
    if names.has_unknown_fields(message):
        raise Refused(400, "unknown field")
    return message


def _decode_key(header: str) -> bytes:
    try:
        return base64.b64decode(header, validate=True)
    except binascii.Error as error:
        raise Refused(401, "headers") from error

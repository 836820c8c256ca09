"""The proxy: answers the node, asks the SuperLink, and lets through only what the desk has decided on.

Every request is rebuilt from known fields before it goes on; responses travel inwards as they are, under
limits.
"""

import asyncio
import hashlib
import time
from dataclasses import replace
from typing import Any, Final, final

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from glasshouse.errors import GlasshouseError
from glasshouse.gate.apart.spool import Spool
from glasshouse.gate.arrivals import Arrival
from glasshouse.gate.desk import Desk
from glasshouse.gate.judge import REPLACED
from glasshouse.gate.message import Outgoing
from glasshouse.gate.rules import shorten
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.encoding import Encoded, Parts, encode
from glasshouse.integrations.flower_gate.exchange import Answer, Gather, Pulled, Question, original
from glasshouse.integrations.flower_gate.objects import Malformed, object_id, tree_ids
from glasshouse.integrations.flower_gate.opening import judged_answer, opened_question
from glasshouse.integrations.flower_gate.requests import Node, Nodes, Refused, call_name, parse, read_body
from glasshouse.integrations.flower_gate.upstream import Upstream, build_request

OBJECTS: Final = 20_000
DEPTH: Final = 8
"""A message of Flower has five levels: message, records, record, array, chunk."""
PENDING: Final = 4
"""Answers that are collected at one time, over all nodes."""
KEPT: Final = 32
"""Questions of one node that are remembered."""
PATIENCE: Final = 20.0
"""Seconds that a node waits for a decision before it is told to ask again; it gives up after 30."""
WHOLE_WITHIN: Final = 900.0
"""Seconds within which an announced answer must have come."""


@final
class Proxy:
    """Stands between SuperNodes and their SuperLink.

    Args:
        desk: policy, log and totals.
        upstream: client with the SuperLink as its base address.
    """

    def __init__(self, desk: Desk, upstream: httpx.AsyncClient) -> None:
        self.desk, self._link = desk, Upstream(upstream, desk.policy.budget.largest)
        self._nodes = Nodes()
        self._fabs: dict[int, str] = {}  # hash of the app by run
        self._most = desk.policy.budget.largest

    async def answer(self, request: Request) -> Response:
        """Answer one request of a node."""
        try:
            name = call_name(request)
            message = parse(names.CALLS[name].request, await read_body(request))
            node = self._nodes.identify(request, message)
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

    # What is asked of the SuperLink in the node's name.

    async def _register_node(self, node: Node, message: Any) -> Any:
        return await self._link.ask(node, "register-node", type(message)(public_key=message.public_key))

    async def _activate_node(self, node: Node, message: Any) -> Any:
        request = type(message)(public_key=message.public_key, heartbeat_interval=names.HEARTBEAT)
        reply = await self._link.ask(node, "activate-node", request)
        node.number = reply.node_id
        return reply

    async def _deactivate_node(self, node: Node, message: Any) -> Any:
        return await self._link.ask(node, "deactivate-node", type(message)(node_id=node.number))

    async def _unregister_node(self, node: Node, message: Any) -> Any:
        return await self._link.ask(node, "unregister-node", type(message)(node_id=node.number))

    async def _send_node_heartbeat(self, node: Node, message: Any) -> Any:
        await self._end_overdue(node)
        request = type(message)(heartbeat_interval=names.HEARTBEAT)
        request.node.node_id = node.number
        return await self._link.ask(node, "send-node-heartbeat", request)

    # What arrives.

    async def _pull_messages(self, node: Node, message: Any) -> Any:
        if message.message_ids:
            raise Refused(400, "names in a request")
        reply = await self._link.ask(node, "pull-messages", build_request(node, "pull-messages"))
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
        pulled = Pulled(
            metadata=message.metadata,
            app=app,
            secure=node.secure.setdefault(message.metadata.run_id, {}),
            root=tree.object_id,
            wanted=wanted,
            contents=self._spool(),
        )
        while len(node.secure) > KEPT:
            del node.secure[next(iter(node.secure))]
        node.pulled[message.metadata.message_id] = pulled
        while len(node.pulled) > KEPT:
            node.pulled.popitem(last=False)
        for old in list(node.pulled.values())[:-2]:  # a node works on one question at a time
            old.contents.clear()
            old.shelf = None
        allowed = self.desk.policy.apps
        if wanted and (not allowed or f"sha256:{app}" in allowed or self.desk.observe):
            return True
        await asyncio.to_thread(self.desk.arrive, self._arrival(pulled), {})
        await self._turn_down(node, pulled)
        return False

    def _spool(self) -> Spool:
        return Spool.inside(self.desk.policy.folder)

    async def _app_of(self, node: Node, run: int) -> str:
        """SHA-256 of the app of a run, from its content."""
        if run not in self._fabs:
            told = await self._link.ask(node, "get-run", build_request(node, "get-run", run_id=run))
            request = build_request(node, "get-fab", run_id=run, hash_str=told.run.fab_hash)
            fab = (await self._link.ask(node, "get-fab", request)).fab
            self._fabs[run] = hashlib.sha256(fab.content).hexdigest()
        return self._fabs[run]

    async def _get_run(self, node: Node, message: Any) -> Any:
        self._known_run(message.run_id)
        return await self._link.ask(node, "get-run", build_request(node, "get-run", run_id=message.run_id))

    async def _get_fab(self, node: Node, message: Any) -> Any:
        self._known_run(message.run_id)
        digest = self._fabs[message.run_id]
        if message.hash_str != digest:
            raise Refused(400, "another app")
        request = build_request(node, "get-fab", run_id=message.run_id, hash_str=digest)
        reply = await self._link.ask(node, "get-fab", request)
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
        request = build_request(node, "pull-object", run_id=pulled.metadata.run_id, object_id=identity)
        reply = await self._link.ask(node, "pull-object", request)
        if not reply.object_available:
            return reply
        if await asyncio.to_thread(object_id, reply.object_content) != identity:
            raise Refused(502, "an object is not what its id says")
        if identity == pulled.root:
            pulled.kept_root = reply.object_content
        if pulled.state == "open" and identity not in pulled.contents:
            pulled.bytes += len(reply.object_content)
            # beyond the limit nothing more is kept; the message is refused when its root is asked for
            kept = reply.object_content if pulled.bytes <= self._most else b""
            await asyncio.to_thread(pulled.contents.__setitem__, identity, kept)
        return reply

    async def _judge_arrival(self, node: Node, pulled: Pulled) -> Any:
        """Judge a message once all of it is here; returns an answer for the node if it must ask again."""
        for identity in [i for i in pulled.wanted if i not in pulled.contents]:
            reply = await self._fetch(node, pulled, identity)
            if not reply.object_available:
                return reply
        found = await asyncio.to_thread(self._look_at_arrival, pulled)
        pulled.contents.clear()
        pulled.state = "refused" if found else "passed"
        if found:
            await self._turn_down(node, pulled)
        return None

    def _look_at_arrival(self, pulled: Pulled) -> bool:
        """Decode and judge; whether the message is refused."""
        arrival = self._arrival(pulled)
        shelf = None
        if pulled.bytes <= self._most:
            try:
                shelf, documents, broken = opened_question(pulled, self._spool())
            except Malformed as error:
                self.desk.note("malformed", run=pulled.origin.run, what=str(error))
                return not self.desk.observe
            arrival = replace(arrival, documents=documents, broken=broken)
        found = self.desk.arrive(arrival, shelf.arrays() if shelf else {})
        pulled.shelf = None if found else shelf
        return bool(found)

    def _arrival(self, pulled: Pulled) -> Arrival:
        return Arrival(kind=pulled.kind, origin=pulled.origin, bytes=pulled.bytes)

    async def _confirm_message_received(self, node: Node, message: Any) -> Any:
        if not any(message.message_object_id == p.root for p in node.pulled.values()):
            raise Refused(400, "unknown object")
        request = build_request(
            node,
            "confirm-message-received",
            run_id=message.run_id,
            message_object_id=message.message_object_id,
        )
        return await self._link.ask(node, "confirm-message-received", request)

    # What leaves.

    async def _push_messages(self, node: Node, message: Any) -> Any:
        """Take an answer's announcement: everything is wanted, nothing goes on before it was judged."""
        if len(message.messages_list) != 1 or len(message.message_object_trees) != 1:
            raise Refused(400, "not one message")
        proto, tree = message.messages_list[0], message.message_object_trees[0]
        pulled = node.pulled.get(proto.metadata.reply_to_message_id)
        if pulled is None or pulled.state != "passed":
            raise Refused(400, "an answer to no question")
        if self._nodes.pending >= PENDING:
            raise Refused(503, "too many answers at a time")
        answer = Answer(
            question=Question(metadata=pulled.metadata, app=pulled.app, secure=pulled.secure),
            root=tree.object_id,
            wanted=set(),
        )
        gather = Gather(
            pulled=pulled,
            proto=proto,
            tree=tree,
            answer=answer,
            contents=self._spool(),
            ends=time.monotonic() + WHOLE_WITHIN,
        )
        try:
            answer.wanted = tree_ids(tree, most=OBJECTS, deepest=DEPTH)
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
        if answer.oddities:
            await self._conclude(node, gather)
            return response(session_id=gather.session)
        return response(objects_to_push=sorted(answer.wanted), session_id=gather.session)

    async def _push_object(self, node: Node, message: Any) -> Any:
        """Take one object of an answer; the last one is answered when the SuperLink has the message."""
        response = names.CALLS["push-object"].response
        gather = node.gathers.get(message.session_id)
        if gather is None or gather.done:
            return response(stored=gather is not None)
        if not gather.answer.oddities and gather.task is None and message.object_id not in gather.contents:
            gather.answer.size += len(message.object_content)
            await asyncio.to_thread(self._collect, gather, message.object_id, message.object_content)
        if gather.answer.oddities or gather.task is not None or gather.is_whole:
            await self._conclude(node, gather)
        return response(stored=True)

    def _collect(self, gather: Gather, identity: str, content: bytes) -> None:
        """Check one object by its id and its size, and put it into the file.

        A node pushes several at a time.
        """
        if identity not in gather.answer.wanted:
            gather.refuse("malformed", "an object that was not announced")
        elif gather.answer.size > self._most:
            gather.refuse("too_large", f"more than {self._most:,} bytes")
        elif object_id(content) != identity:
            gather.refuse("malformed", "an object is not what its id says")
        else:
            gather.contents[identity] = content

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
            gather.pulled.shelf = None
        try:
            await self._deliver(node, gather.pulled, gather.payload)
        except Refused as error:
            if error.status == 503:  # the node asks again, and the same payload is delivered
                raise
            self._forget(node, gather)
            raise
        except OSError:  # what is to be sent cannot be read
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
        question = gather.answer.question
        message = Outgoing(kind=question.kind, origin=question.origin, bytes=gather.answer.size)
        judged = self.desk.settle(message, lambda bench: judged_answer(bench, gather, self._spool()))
        if self.desk.observe:
            return original(gather)
        if judged.payload:  # it may need objects as they came
            return judged.payload.content
        gather.contents.clear()
        return self._error(gather.pulled)

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
        """Send a decided message, and write down that it went."""
        total = await self._link.deliver(node, pulled.metadata.run_id, encoded)
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

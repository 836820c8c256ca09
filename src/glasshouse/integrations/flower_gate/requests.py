"""Requests of nodes: read under limits of size and time, parsed strictly, each from a node that is known."""

import asyncio
import base64
import binascii
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, final

from google.protobuf.message import DecodeError
from starlette.requests import Request

from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import BODY_BYTES
from glasshouse.integrations.flower_gate.exchange import Gather, Pulled
from glasshouse.integrations.flower_gate.strict import NotStrict, check_wire

NODES: Final = 64
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
        secure: what the server has said so far of secure sums, by run.
    """

    number: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pulled: "OrderedDict[str, Pulled]" = field(default_factory=OrderedDict)
    gathers: "OrderedDict[str, Gather]" = field(default_factory=OrderedDict)
    secure: dict[int, dict[str, Any]] = field(default_factory=dict)


@final
class Nodes:
    """The nodes behind the gate, by their keys."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    @property
    def pending(self) -> int:
        """Answers that are collected, decided on or being sent."""
        return sum(not gather.done for node in self._nodes.values() for gather in node.gathers.values())

    def identify(self, request: Request, message: Any) -> Node:
        """The node that asks, told by its key; its number may not change.

        Raises:
            Refused: odd headers, a key with two numbers, or too many nodes.
        """
        headers = {n: request.headers.get(n, "") for n in (*names.NODE_HEADERS, *names.RUNTIME_HEADERS)}
        if not all(_HEADER.fullmatch(value) for value in headers.values()):
            raise Refused(401, "headers")
        key = headers[names.KEY_HEADER]
        if key not in self._nodes and len(self._nodes) >= NODES:
            raise Refused(503, "too many nodes")
        node = self._nodes.setdefault(key, Node())
        # The server gives a node its number once; a key that comes with another one is somebody else's.
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


def call_name(request: Request) -> str:
    """The call that a request makes.

    Raises:
        Refused: its path is none that the gate knows, or its Flower is too old.
    """
    name = request.url.path.removeprefix(names.PREFIX)
    if request.method != "POST" or request.url.query or name not in names.CALLS:
        raise Refused(404, "unknown path")
    if not request.url.path.startswith(names.PREFIX):
        raise Refused(404, "unknown path")
    version = _VERSION.fullmatch(request.headers.get(names.VERSION_HEADER, ""))
    if version is None or (int(version[1]), int(version[2])) < names.OLDEST:
        raise Refused(400, "Flower older than 1.40, or of no known version")
    return name


async def read_body(request: Request) -> bytes:
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


def parse(kind: type[Any], body: bytes) -> Any:
    """A request or response of known fields.

    Raises:
        Refused: it is none, or carries others.
    """
    message = kind()
    try:
        check_wire(body, kind)
        message.ParseFromString(body)
    except NotStrict as error:
        raise Refused(400, str(error)) from error
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

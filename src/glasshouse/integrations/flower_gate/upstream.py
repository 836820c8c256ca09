"""What the gate asks of the SuperLink, in a node's name and with its headers."""

from typing import Any, final

import httpx

from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import BODY_BYTES
from glasshouse.integrations.flower_gate.encoding import Encoded
from glasshouse.integrations.flower_gate.requests import Node, Refused, parse


@final
class Upstream:
    """The SuperLink, as the gate sees it.

    Args:
        client: with the SuperLink as its base address.
        most: bytes of the largest message.
    """

    def __init__(self, client: httpx.AsyncClient, most: int) -> None:
        self._client, self._most = client, most

    async def ask(self, node: Node, name: str, request: Any) -> Any:
        """Send a request upstream; its answer is parsed under limits.

        Raises:
            Refused: the SuperLink answered with an error, or not at all; the node is told the same.
        """
        headers = {**node.headers, "content-type": names.MEDIA, "accept": names.MEDIA}
        most = self._most + BODY_BYTES if name == "get-fab" else names.CHUNK * 4 + BODY_BYTES
        body = bytearray()
        content = request.SerializeToString(deterministic=True)
        try:
            async with self._client.stream(
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
        return parse(names.CALLS[name].response, bytes(body))

    async def deliver(self, node: Node, run: int, encoded: Encoded) -> int:
        """Send a decided message, object by object, with the node's latest headers; returns the bytes sent.

        Raises:
            Refused: the SuperLink did not take all of it.
        """
        request = build_request(node, "push-messages")
        request.messages_list.append(encoded.proto)
        request.message_object_trees.append(encoded.tree)
        request.clientapp_runtime_list.append(0.0)  # how long the app took is not told
        reply = await self.ask(node, "push-messages", request)
        total = int(request.ByteSize())
        for identity in reply.objects_to_push:
            if identity not in encoded.small and identity not in encoded.chunks:
                raise Refused(502, "an object is wanted that was not announced")
            one = build_request(
                node,
                "push-object",
                run_id=run,
                object_id=identity,
                object_content=encoded.content(identity),
                session_id=reply.session_id,
            )
            total += one.ByteSize()
            if not (await self.ask(node, "push-object", one)).stored:
                raise Refused(503, "not stored")
        return total


def build_request(node: Node, name: str, **fields: object) -> Any:
    """A request of a node, from these fields and no others."""
    request = names.CALLS[name].request(**fields)
    request.node.node_id = node.number
    return request

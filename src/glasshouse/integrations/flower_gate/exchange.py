"""One question of the server and the app's answer to it, as the gate holds them."""

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from glasshouse.gate.apart.bench import Payload
from glasshouse.gate.apart.spool import Spool
from glasshouse.gate.message import Arrays, Origin, Outgoing, Reason
from glasshouse.gate.rules import shorten
from glasshouse.gate.shelf import Shelf
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import Decoded, decode
from glasshouse.integrations.flower_gate.encoding import (
    Encoded,
    Parts,
    chunk_ids,
    config_record,
    encode,
)
from glasshouse.integrations.flower_gate.objects import Malformed
from glasshouse.integrations.flower_gate.secure import BadShare, rebuilt_share


@dataclass(kw_only=True)
class Question:
    """What a server asked.

    Attributes:
        metadata: as the server sent it.
        app: SHA-256 of the app that will answer.
        secure: what the server has said so far of the secure sum of this run to this node.
    """

    metadata: Any
    app: str
    secure: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What is asked for: ``train`` of ``train.custom``."""
        return str(self.metadata.message_type).partition(".")[0]

    @property
    def origin(self) -> Origin:
        """Where it belongs."""
        return Origin(
            run=str(self.metadata.run_id),
            node=str(self.metadata.dst_node_id),
            round=shorten(self.metadata.group_id),
            reply_to=self.metadata.message_id,
            app=self.app,
        )

    def reply_metadata(self) -> Any:
        """Metadata of an answer, none of which is the app's."""
        asked, now = self.metadata, time.time()
        answer = type(asked)(
            run_id=asked.run_id,
            src_node_id=asked.dst_node_id,
            dst_node_id=asked.src_node_id,
            reply_to_message_id=asked.message_id,
            group_id=asked.group_id,
            message_type=asked.message_type,
            created_at=now,
            ttl=asked.created_at + asked.ttl - now,
        )
        if asked.HasField("dst_task_id"):
            answer.src_task_id = asked.dst_task_id
        if asked.HasField("src_task_id"):
            answer.dst_task_id = asked.src_task_id
        return answer


@final
@dataclass(kw_only=True)
class Pulled(Question):
    """A message of the server, on its way to the node.

    Attributes:
        root: id of its root object, which is handed on last, after the message was judged.
        wanted: ids of all its objects.
        contents: objects as they pass, until the message is judged.
        kept_root: the root object.
        bytes: size so far.
        state: what became of it.
        shelf: its tensors, until it was answered.
        replied: an answer was decided on.
    """

    root: str
    wanted: set[str]
    contents: Spool
    kept_root: bytes = b""
    bytes: int = 0
    state: Literal["open", "passed", "refused"] = "open"
    shelf: Shelf | None = None
    replied: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(kw_only=True)
class Answer:
    """An app's answer, unopened; its objects stand elsewhere.

    Attributes:
        question: that it answers.
        root: id of its root object.
        wanted: ids of its objects.
        size: bytes that have come.
        oddities: what is wrong with its form; any ends the collecting.
    """

    question: Question
    root: str
    wanted: set[str]
    size: int = 0
    oddities: list[Reason] = field(default_factory=list)


@final
@dataclass(kw_only=True)
class Gather:
    """An app's answer, collected until it is whole.

    Attributes:
        pulled: the message that it answers.
        proto: the answer as it was announced.
        tree: ids of its objects, nested.
        answer: what is known of it.
        contents: objects that have come.
        ends: time (monotonic) at which it must be whole.
        payload: what is to be sent, once decided.
        session: the gate's own name for it.
        task: the decision or delivery in progress.
        done: it was delivered.
    """

    pulled: Pulled
    proto: Any
    tree: Any
    answer: Answer
    contents: Spool
    ends: float
    payload: Encoded | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    task: "asyncio.Task[None] | None" = None
    done: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether everything announced has come."""
        return self.answer.wanted <= self.contents.keys()

    def refuse(self, rule: str, detail: str = "") -> None:
        """Note an oddity and drop what has come, unless it is decided on already."""
        self.answer.oddities.append(Reason(rule=rule, detail=detail))
        if self.task is None:
            self.contents.clear()


def outgoing(
    answer: Answer, contents: Spool, records: tuple[str, ...], received: Arrays | None
) -> tuple[Outgoing, Decoded]:
    """The answer as the judge sees it, and as it was decoded.

    Args:
        answer: whole, or with oddities.
        contents: its objects.
        records: names of records that the policy lists.
        received: the tensors that it answers.
    """
    oddities, decoded = list(answer.oddities), Decoded(proto=None)
    # An answer that was odd on its way is refused whatever it holds: it is not even decoded.
    if not oddities:
        try:
            decoded = decode(answer.root, contents, release=True)
            _take_numbers(decoded)
            oddities += _oddities(decoded, answer, records)
            oddities += _rebuild_share(decoded, answer.question, received)
        except Malformed as error:
            oddities.append(Reason(rule="malformed", detail=str(error)))
            decoded = Decoded(proto=None)
    prints = {n: " ".join(decoded.chunks.get(n) or chunk_ids(a)) for n, a in decoded.arrays.items()}
    message = Outgoing(
        kind=answer.question.kind,
        origin=answer.question.origin,
        arrays=decoded.arrays,
        fields=decoded.fields,
        documents=_documents(decoded),
        error=decoded.proto.error.reason if decoded.proto and decoded.proto.HasField("error") else None,
        oddities=tuple(oddities),
        masked=names.SECURE_RECORD in decoded.configs,
        bytes=answer.size,
        prints=prints,
    )
    return message, decoded


def encode_allowed(
    message: Outgoing,
    decoded: Decoded,
    question: Question,
    *,
    order: tuple[str, ...],
    received: Iterable[str],
    objects: Mapping[str, bytes],
) -> Encoded:
    """Flower's form of what the judge allows.

    Args:
        message: what may be sent.
        decoded: the app's answer, for which record holds what.
        question: that is answered.
        order: names of records, in the policy's order.
        received: names of the question's tensors, in their order: the app's order may say something.
        objects: of the answer as it was handed in; chunks that did not change are not hashed again.
    """
    if message.error is not None:
        return encode(question.reply_metadata(), Parts(error=message.error))
    # Every order is ours or the question's: in an order of its own choice the app could say something.
    numbers: dict[str, dict[str, object]] = {
        record: {} for name, record in decoded.record_of.items() if name != ""
    }
    for name in sorted(message.fields):
        numbers[decoded.record_of[name]][name] = message.fields[name]
    fields = {record: values for record, values in numbers.items() if record not in decoded.configs}
    configs = {
        record: config_record(names.STATUS if record in names.STATUS_RECORDS else numbers.get(record, {}))
        for record in decoded.configs
    }
    if message.masked:
        configs[names.SECURE_RECORD] = message.documents[names.SECURE_RECORD]
    arrays = {name: message.arrays[name] for name in received if name in message.arrays}
    has_record = "" in decoded.record_of
    parts = Parts(
        arrays=arrays if has_record else None,
        fields=fields,
        configs=configs,
        order=(*order, names.SECURE_RECORD) if message.masked else order,
        array_record=decoded.record_of.get("", ""),
        chunks=decoded.chunks,
        objects=objects,
    )
    return encode(question.reply_metadata(), parts)


def payload_of(encoded: Encoded) -> Payload[Encoded]:
    """What the desk logs of an encoded message."""
    return Payload(content=encoded, bytes=encoded.size, digest=encoded.root)


def original(gather: Gather) -> Encoded:
    """The answer as the app made it, for a gate that only observes."""
    return Encoded(
        root=gather.answer.root,
        proto=gather.proto,
        tree=gather.tree,
        small=gather.contents,
        size=gather.answer.size,
    )


def _oddities(decoded: Decoded, collected: Answer, records: tuple[str, ...]) -> list[Reason]:
    """What is wrong with an answer's form that its decoding did not notice."""
    found = []
    if decoded.reached != collected.wanted:
        found.append(Reason(rule="malformed", detail="objects beside the message"))
    asked = collected.question.metadata
    answer = decoded.proto.metadata
    if (answer.run_id, answer.reply_to_message_id) != (asked.run_id, asked.message_id):
        found.append(Reason(rule="malformed", detail="answers another message"))
    present = {*decoded.record_of.values(), *decoded.configs}
    allowed = {*records, names.SECURE_RECORD}
    found += [Reason(rule="record", detail=shorten(name)) for name in sorted(present - allowed)[:3]]
    return found


def _rebuild_share(decoded: Decoded, question: Question, received: Arrays | None) -> list[Reason]:
    """Write the record of a secure sum anew; reasons to refuse it."""
    masked, own = decoded.configs.get(names.SECURE_RECORD), question.metadata.dst_node_id
    if masked is None:
        return []
    try:
        built = rebuilt_share(masked, question.secure, own=own, received=received)
    except BadShare as error:
        return [Reason(rule="secure_form", detail=str(error))]
    decoded.configs[names.SECURE_RECORD] = built
    return []


def _take_numbers(decoded: Decoded) -> None:
    """Count single numbers in ConfigRecords as fields: the older ``NumPyClient`` sends its metrics there.

    Raises:
        Malformed: two records have a number of one name.
    """
    for record, config in decoded.configs.items():
        if record == names.SECURE_RECORD or record in names.STATUS_RECORDS:
            continue
        for item in config.items:
            kind = item.value.WhichOneof("value")
            if kind not in names.NUMBERS:
                continue
            if item.key in decoded.fields:
                raise Malformed("metrics")
            decoded.fields[item.key] = getattr(item.value, kind)
            decoded.record_of[item.key] = record


def _documents(decoded: Decoded) -> dict[str, object]:
    """Values of ConfigRecords that are no numbers, by record and key; a secure sum's record stays whole."""
    documents: dict[str, object] = {}
    for record, config in decoded.configs.items():
        if record == names.SECURE_RECORD:
            documents[record] = config
            continue
        known = names.STATUS.keys() if record in names.STATUS_RECORDS else ()
        for item in config.items:
            is_field = decoded.record_of.get(item.key) == record
            if not is_field and item.key not in known:
                documents[f"{record}/{item.key}"] = True
    return documents

"""Conversion of Flower's messages to the types of ``glasshouse.wire``.

Two generations of apps send different records: the Message API sends an ``ArrayRecord`` with the names of the
``state_dict``, and a ``ConfigRecord`` with ``server-round``; legacy strategies and ``NumPyClient`` send lists
of arrays, whose names come from the model, and the round as the message's group.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.integrations.documents import Documents, Parts
from glasshouse.integrations.recording import Instruction, Reply
from glasshouse.outside import limits
from glasshouse.wire import Stage, Value

_LOG = logging.getLogger(__name__)

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]

COUNTS = ("num-examples", "num_examples")
"""Names under which clients report their number of examples."""
_STAGES: Final[Mapping[str, Stage]] = {
    MessageType.TRAIN: "train",
    MessageType.EVALUATE: "evaluate",
    MessageType.QUERY: "query",
}
_PROTOCOL = (RECORD_KEY_CONFIGS, "fitres.status", "evaluateres.status")
"""Internal records of a protocol, such as masked vectors and key shares."""


def stage_of(message: Message) -> Stage | None:
    """The stage of an instruction; None: neither training, evaluation nor a query."""
    return _STAGES.get(message.metadata.message_type.partition(".")[0])


def round_of(message: Message) -> int | None:
    """Number of the round, from 0, as stated in an instruction to a client; None: not stated."""
    for record in message.content.config_records.values() if message.has_content() else ():
        stated = record.get("server-round")
        if isinstance(stated, int):
            return stated - 1
    group = message.metadata.group_id if stage_of(message) != "query" else ""  # queries count as they like
    return int(group) - 1 if group.isdecimal() and int(group) > 0 else None


def config_of(message: Message) -> dict[str, Value]:
    """The settings that a server sends beside the model."""
    records = message.content.config_records.values() if message.has_content() else ()
    pairs = (pair for record in records for pair in record.items())
    return {name: value for name, value in pairs if isinstance(value, int | float | str)}


def is_secure(message: Message) -> bool:
    """Whether the message belongs to SecAgg+."""
    return message.has_content() and RECORD_KEY_CONFIGS in message.content.config_records


def arrays_of(content: RecordDict) -> ArrayRecord | None:
    """The record of parameters; None: there is none, or it is empty."""
    filled = [record for record in content.array_records.values() if any(a.data for a in record.values())]
    return filled[0] if filled else None


def tensors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of a record, by its own names: those of the model, or numbers in legacy apps."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def instruction_of(message: Message, sends: Documents | None = None) -> Instruction | None:
    """What a message asks of a client; None: neither training, evaluation nor a query.

    Args:
        message: to a client.
        sends: what the app sends in the place of a network's tensors; None: it trains one.
    """
    stage = stage_of(message)
    if stage is None:
        return None
    if sends is not None:
        return _asks_for_document(message, stage, sends) if _concerns(sends, stage) else None
    arrays = arrays_of(message.content) if message.has_content() else None
    return Instruction(
        node=message.metadata.dst_node_id,
        stage=stage,
        round=round_of(message),
        load=None if arrays is None else lambda: tensors_of(arrays),
        content=None if arrays is None else [array.data for array in arrays.values()],
        secure=is_secure(message),
        config={} if is_secure(message) else config_of(message),
    )


def reply_of(message: Message, sends: Documents | None = None) -> Reply | None:
    """What a client answers; None: neither to training, evaluation nor a query. As above."""
    node, stage = message.metadata.src_node_id, stage_of(message)
    if stage is None:
        return None
    if message.has_error():
        return Reply(node=node, stage=stage, error=message.error.reason or f"error {message.error.code}")
    if sends is not None:
        return _answers_with_document(message, stage, sends) if _concerns(sends, stage) else None
    values, arrays = values_of(message.content), arrays_of(message.content)
    return Reply(
        node=node,
        stage=stage,
        values=values,
        load=None if arrays is None else lambda: tensors_of(arrays),
        examples=examples_of(values),
    )


def told_of(message: Message, sends: Documents) -> Reply | None:
    """What the server tells a client in an instruction, as the document of that client; None: nothing.

    Where a federation is vertical, gradients go from the party of the labels to the client, who reads them.
    """
    stage = stage_of(message)
    if stage is None or not sends.concerns(stage) or not message.has_content():
        return None
    return _with_document(message.metadata.dst_node_id, stage, parts_of(message.content), sends)


def _concerns(sends: Documents, stage: Stage) -> bool:
    """Values that clients send in clear after an evaluation are kept, too."""
    return stage == "evaluate" or sends.concerns(stage)


def parts_of(content: RecordDict) -> Parts:
    """Every array, every value (lists as they are) and all bytes of a message."""
    arrays = {n: a.numpy() for r in content.array_records.values() for n, a in r.items() if a.data}
    records: tuple[Mapping[str, Any], ...] = (
        *content.metric_records.values(),
        *content.config_records.values(),
    )
    values = {n: value for record in records for n, value in record.items()}
    payloads = {n: value for n, value in values.items() if isinstance(value, bytes)}
    return Parts(arrays=arrays, values=values, payloads=payloads)


def _asks_for_document(message: Message, stage: Stage, sends: Documents) -> Instruction:
    """The server's document, empty if it sends none; one that does not fit is not stored."""
    document, tensors = b"", None
    if stage != "evaluate":
        try:
            parts = parts_of(message.content) if message.has_content() else Parts()
            document = sends.broadcast(parts)
            tensors = sends.tensors(document)
        except BadValue as error:
            _LOG.warning(
                "capture: what the server sends is not stored: needs %s; got %s", error.needs, error.got
            )
    return Instruction(
        node=message.metadata.dst_node_id,
        stage=stage,
        round=round_of(message),
        load=None if tensors is None else (lambda: tensors),
        content=document,
    )


def _answers_with_document(message: Message, stage: Stage, sends: Documents) -> Reply | None:
    """A client's document and every value beside it; None: it is not one of those that are read."""
    node, parts = message.metadata.src_node_id, parts_of(message.content)
    if stage == "evaluate":
        return Reply(node=node, stage=stage, values=values_of(message.content))
    if sends.told or not sends.counts(parts):
        return None
    return _with_document(node, stage, parts, sends, values_of(message.content))


def _with_document(
    node: int, stage: Stage, parts: Parts, sends: Documents, values: Mapping[str, Value] | None = None
) -> Reply:
    """A reply that holds a document; what is none stands as an error, by its parts."""
    try:
        document, rows = sends.document(parts)
        tensors = sends.tensors(document)
    except BadValue as error:
        return Reply(node=node, stage=stage, error=f"sent no document: needs {error.needs}; got {error.got}")
    return Reply(
        node=node,
        stage=stage,
        values=values or {},
        load=(lambda: tensors) if document else None,
        kind="document",
        examples=examples_of(values or {}) or rows,
    )


def put_tensors(record: ArrayRecord, tensors: Sequence[Tensor]) -> None:
    """Replace the values of a record, in its order and dtypes."""
    for (name, array), t in zip(list(record.items()), tensors, strict=True):
        record[name] = Array(t.numpy().astype(array.numpy().dtype))  # legacy clients state no type


def values_of(content: RecordDict) -> dict[str, Value]:
    """All numbers and strings sent beside the tensors, by name."""
    records: tuple[tuple[str, Any], ...] = (*content.metric_records.items(), *content.config_records.items())
    values: dict[str, Value] = {}
    for name, value in (entry for key, r in records if key not in _PROTOCOL for entry in r.items()):
        parts = {f"{name}[{i}]": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
        values |= {part: _plain(v) for part, v in parts.items()}
    return dict(list(values.items())[: limits.ARGUMENTS])


def examples_of(values: Mapping[str, Value]) -> int:
    """The number of examples that a client reports; 0 if it reports none."""
    return next((int(values[name]) for name in COUNTS if isinstance(values.get(name), int | float)), 0)


def _plain(value: object) -> Value:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, int) else str(value)[: limits.TEXT]

"""Every name of Flower's protocol that the gate relies on, and that a release may change.

Flower speaks protobuf over HTTP between SuperNode and SuperLink from 1.40 on (gRPC before). What is used of
it: the paths, messages and headers below, and the form of an object: ``TYPE CHILD,CHILD,... LENGTH``, a zero
byte, and a body (protobuf for messages, metrics and configurations; JSON for the rest; raw bytes for chunks
of arrays). Tried on flwr 1.41.0.
"""

from dataclasses import dataclass
from typing import Any, Final, final

from google.protobuf.message import Message as Proto

from glasshouse.errors import not_installed

try:
    from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, recorddict_pb2, run_pb2
except ImportError as error:
    raise not_installed("the gate for Flower", "flwr, 1.40 or newer", error, extra="flower") from error

OLDEST: Final = (1, 40)
"""First release that speaks HTTP."""
MEDIA: Final = "application/protobuf"
KEY_HEADER: Final = "flwr-public-key"
TIME_HEADER: Final = "flwr-timestamp"
SIGNATURE_HEADER: Final = "flwr-signature"
VERSION_HEADER: Final = "flwr-package-version"
NODE_HEADERS: Final = (KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER)
"""The signature covers the time alone, for 305 seconds: any request may carry it, the gate's refusal too."""
RUNTIME_HEADERS: Final = ("flwr-package-name", VERSION_HEADER, "flwr-component-name")

DIVIDER: Final = b"\x00"
CHUNK: Final = 5_242_880
"""Bytes of an array in one object, as Flower cuts it."""
RECORDS: Final[dict[str, Any]] = {
    "ArrayRecord": recorddict_pb2.ArrayRecord,
    "MetricRecord": recorddict_pb2.MetricRecord,
    "ConfigRecord": recorddict_pb2.ConfigRecord,
}
MESSAGE, RECORD_DICT, ARRAY, ARRAY_CHUNK = "Message", "RecordDict", "Array", "ArrayChunk"
STYPE: Final = "numpy.ndarray"
CHUNK_INDEX: Final = "arraychunk_ids"
CRASHED: Final = 2
"""Code of an error reply: the app raised an exception."""
SECURE_RECORD: Final = "secaggplus_configs"
"""Record of SecAgg+; what stands under its masks cannot be judged."""
STATUS_RECORDS: Final = frozenset({"fitres.status", "evaluateres.status"})
"""Records in which the older ``NumPyClient`` says that it went well; sent in fixed words."""
STATUS: Final = {"code": 0, "message": ""}
HEARTBEAT: Final = 30.0
"""Seconds; sent in the place of whatever a node asks for."""


@final
@dataclass(frozen=True)
class Call:
    """One request of the protocol."""

    request: type[Any]
    response: type[Any]


CALLS: Final = {
    "register-node": Call(fleet_pb2.RegisterNodeFleetRequest, fleet_pb2.RegisterNodeFleetResponse),
    "activate-node": Call(fleet_pb2.ActivateNodeRequest, fleet_pb2.ActivateNodeResponse),
    "deactivate-node": Call(fleet_pb2.DeactivateNodeRequest, fleet_pb2.DeactivateNodeResponse),
    "unregister-node": Call(fleet_pb2.UnregisterNodeFleetRequest, fleet_pb2.UnregisterNodeFleetResponse),
    "send-node-heartbeat": Call(
        heartbeat_pb2.SendNodeHeartbeatRequest, heartbeat_pb2.SendNodeHeartbeatResponse
    ),
    "pull-messages": Call(fleet_pb2.PullMessagesRequest, fleet_pb2.PullMessagesResponse),
    "push-messages": Call(fleet_pb2.PushMessagesRequest, fleet_pb2.PushMessagesResponse),
    "get-run": Call(run_pb2.GetRunRequest, run_pb2.GetRunResponse),
    "get-fab": Call(fab_pb2.GetFabRequest, fab_pb2.GetFabResponse),
    "push-object": Call(message_pb2.PushObjectRequest, message_pb2.PushObjectResponse),
    "pull-object": Call(message_pb2.PullObjectRequest, message_pb2.PullObjectResponse),
    "confirm-message-received": Call(
        message_pb2.ConfirmMessageReceivedRequest, message_pb2.ConfirmMessageReceivedResponse
    ),
}
"""By the last part of the path below ``/v1/fleet/``; any other path is refused and logged."""
PREFIX: Final = "/v1/fleet/"
ProtoMessage, ProtoTree = message_pb2.Message, message_pb2.ObjectTree
ProtoMetricValue: Final[Any] = recorddict_pb2.MetricRecordValue
ProtoConfigValue: Final[Any] = recorddict_pb2.ConfigRecordValue
NUMBERS: Final = frozenset({"double", "sint64", "uint64"})
"""Kinds of a record's value that are one number."""


def has_unknown_fields(message: Proto) -> bool:
    """Whether ``message`` carries fields that this release of Flower does not define, at any depth.

    Parsed again without them it is shorter.
    """
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return int(known.ByteSize()) != int(message.ByteSize())

"""A FLARE site's own filters on the gate's policy, and the component that refuses jobs which bypass them.

Grades. A: no uploaded code runs in the job's process at this site (:class:`GateJobs` refuses it). B: uploaded
code shares the process with these filters. It can replace them; then they are a filter, not a gate.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from glasshouse.gate.arrivals import Arrival
from glasshouse.gate.desk import Desk, Payload
from glasshouse.gate.log import Log
from glasshouse.gate.message import Origin, Outgoing, Reason, digest_of
from glasshouse.gate.policy import read_policy
from glasshouse.integrations.nvflare.messages import WEIGHTS, Parts, dxo_of, kind_of, take_apart

REFUSED: Final = "The site did not send this result."
"""The fixed words of a refusal; the reason stands in the site's log alone."""
IN_PROCESS: Final = "InProcessClientAPIExecutor"
"""Ending of the names of executors that run an uploaded script in the job's process."""
COMPONENTS: Final = (
    "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
    "nvflare.app_common.np.np_trainer.NPTrainer",
)
"""Classes that a job may build at a site by default: what trains; no widgets, filters, streamers."""
_EGRESS: Final = "not checked: this filter cannot tell whether a job reaches the server beside it"
_DESKS: Final[dict[str, Desk]] = {}
_RECEIVED: Final[dict[str, dict[str, NDArray[Any]]]] = {}


class _Site(Filter):
    """Shared by both directions: one desk for each policy in a process.

    Args:
        policy: path of the site's policy.
    """

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.policy = policy

    def _desk(self) -> Desk:
        if self.policy not in _DESKS:
            policy = read_policy(Path(self.policy))
            _DESKS[self.policy] = Desk(
                policy, Log(policy.folder / policy.log.file, policy.folder / policy.log.key)
            )
        return _DESKS[self.policy]


class GateIn(_Site):
    """Judges what arrives, and keeps the model that an answer is compared with; a ``task_data_filter``."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The same message.

        Raises:
            ContentBlockedException: the policy keeps it from the job.
        """
        parts, origin = take_apart(shareable), _origin(fl_ctx, shareable)
        arrays = _arrays(parts) if parts.kind in WEIGHTS else {}
        documents = sum(len(str(value)) for value in parts.values.values())
        size = sum(array.nbytes for array in arrays.values()) + documents
        arrival = Arrival(kind=_task(fl_ctx), origin=origin, bytes=size, documents=documents)
        if self._desk().arrive(arrival, arrays):
            raise ContentBlockedException(REFUSED)
        _RECEIVED[self.policy] = arrays
        return shareable


class GateOut(_Site):
    """Rebuilds what leaves from what the policy allows; a ``task_result_filter``."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """A new message with the allowed kind, tensors and meta; nothing else of the old one is in it.

        Raises:
            ContentBlockedException: the policy refuses it. The server receives a return code alone.
        """
        parts, received = take_apart(shareable), _RECEIVED.get(self.policy)
        message = outgoing(shareable, parts, _task(fl_ctx), _origin(fl_ctx, shareable))
        base = received
        if parts.kind == DataKind.WEIGHT_DIFF.value and received is not None:
            # A change is judged as the change it is: against zeros of the agreed form.
            base = {name: np.zeros_like(array) for name, array in received.items()}
        _, payload = self._desk().decide(message, base, lambda allowed: encode(allowed, parts.kind))
        if payload is None:
            raise ContentBlockedException(REFUSED)
        return payload.content


class GateJobs(FLComponent):
    """Refuses jobs that bring what could act after the site's filters, or in their place.

    Args:
        allow: class paths that a job may build here; one that ends in a dot stands for all that begin so.
        in_process: let uploaded scripts run in the job's process; the grade is then B.
    """

    def __init__(self, allow: Sequence[str] = COMPONENTS, *, in_process: bool = False) -> None:
        super().__init__()
        self.allow, self.in_process = list(allow), in_process

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Raise for a component that the job may not build, which ends the job at this site."""
        if event_type != EventType.BEFORE_BUILD_COMPONENT:
            return
        config = fl_ctx.get_prop(FLContextKey.COMPONENT_CONFIG)
        node = fl_ctx.get_prop(FLContextKey.COMPONENT_NODE)
        reason = refuse_component(config, node.path() if node else "", self.allow, in_process=self.in_process)
        if reason:
            raise UnsafeComponentError(f"refused by the site: {reason}")


def refuse_component(config: object, place: str, allow: Sequence[str], *, in_process: bool) -> str:
    """Why a job may not build this component; empty: it may.

    Args:
        config: of the component, as the job's file has it.
        place: its path in the file.
        allow: class paths, or beginnings that end in a dot.
        in_process: uploaded scripts may run in the job's process.

    Examples:
        >>> refuse_component({"path": "mine.Late"}, "components", COMPONENTS, in_process=False)
        'component mine.Late is not among those that jobs may build here'
        >>> refuse_component({"path": COMPONENTS[1]}, "executors.0.executor", COMPONENTS, in_process=False)
        ''
    """
    if "filter" in place:
        return "a job's own filter acts after the site's"
    if not isinstance(config, Mapping):
        return "a component without a class path"
    # Short names are looked up by FLARE in its own packages; only whole paths can be compared.
    path = str(config.get("path") or config.get("class_path") or config.get("name") or "")
    if not any(path == one or (one.endswith(".") and path.startswith(one)) for one in allow):
        return f"component {path or 'without a path'} is not among those that jobs may build here"
    arguments = config.get("args") or {}
    mode = arguments.get("execution_mode", "") if isinstance(arguments, Mapping) else ""
    if not in_process and (path.endswith(IN_PROCESS) or mode == "in_process"):
        return "an uploaded script in the job's process could replace the site's filters"
    return ""


def outgoing(shareable: Shareable, parts: Parts, task: str, origin: Origin) -> Outgoing:
    """The message as the gate's judge reads it: tensors, numbers, and everything else as documents.

    Args:
        shareable: as handed in.
        parts: of it.
        task: that is answered.
        origin: where it belongs.
    """
    if parts.code != ReturnCode.OK:
        return Outgoing(kind=task, origin=origin, error=parts.code)
    dxo = dxo_of(shareable)
    model = dxo is not None and kind_of(dxo) in WEIGHTS
    fields: dict[str, object] = {}
    documents: dict[str, object] = dict(parts.payloads)
    for name, value in parts.values.items():
        short = name.removeprefix("meta.")
        number = isinstance(value, int | float) and not isinstance(value, bool) and name.startswith("meta.")
        (fields if number else documents)[short] = value
    arrays = _arrays(parts) if model else {}
    extra = {name: f"{a.size} numbers" for name, a in parts.arrays.items() if name not in arrays}
    oddities = []
    if not model:
        # No rule of the policy reads trees, statistics or collections: nothing of them is let out unseen.
        oddities.append(Reason(rule="unreadable_kind", detail=parts.kind or "no DXO"))
    size = sum(a.nbytes for a in parts.arrays.values()) + sum(map(len, parts.payloads.values()))
    return Outgoing(
        kind=task,
        origin=origin,
        arrays=arrays,
        fields=fields,
        documents={**documents, **extra},
        oddities=tuple(oddities),
        bytes=size,
    )


def encode(message: Outgoing, kind: str) -> Payload[Shareable]:
    """A new message of FLARE with the parts of ``message`` and nothing else."""
    if message.error is not None:
        answer = Shareable()
        answer.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
        return Payload(content=answer, bytes=0, digest=digest_of({}, "error"))
    meta = dict(message.fields)
    arrays = dict(message.arrays)
    answer = DXO(data_kind=kind, data=arrays, meta=meta).to_shareable()
    size = sum(array.nbytes for array in arrays.values())
    return Payload(content=answer, bytes=size, digest=digest_of(arrays, repr(sorted(meta.items()))))


def _arrays(parts: Parts) -> dict[str, NDArray[Any]]:
    """Copies of a model's tensors, which the gate may change; arrays in meta are no tensors of the model."""
    return {n: np.array(a, order="C") for n, a in parts.arrays.items() if not n.startswith("meta.")}


def _task(context: FLContext) -> str:
    return str(context.get_prop(FLContextKey.TASK_NAME, ""))


def _origin(context: FLContext, message: Shareable) -> Origin:
    current = message.get_header(AppConstants.CURRENT_ROUND)
    return Origin(
        run=str(context.get_job_id() or ""),
        node=str(context.get_identity_name(default="")),
        round="" if current is None else str(current),
    )

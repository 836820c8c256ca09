"""A FLARE site's own filters on the gate's policy, and the component that refuses jobs which bypass them.

They hold as far as no uploaded code runs in their process: the site's launcher
(:mod:`glasshouse.integrations.nvflare.launch`) sees to that. The grades stand in ``install.py``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.gate.apart.bench import Payload
from glasshouse.gate.arrivals import Arrival
from glasshouse.gate.desk import Desk
from glasshouse.gate.log import Log
from glasshouse.gate.message import Origin, Outgoing, Reason, digest_of
from glasshouse.gate.policy import read_policy
from glasshouse.gate.rules import shorten
from glasshouse.gate.shelf import shelve
from glasshouse.integrations.nvflare.components import COMPONENTS, refuse_component
from glasshouse.integrations.nvflare.launch import NOTE
from glasshouse.integrations.nvflare.messages import WEIGHTS, Parts, dxo_of, kind_of, take_apart
from glasshouse.integrations.nvflare.names import (
    DXO,
    HEADERS,
    AppConstants,
    ContentBlockedException,
    DataKind,
    EventScope,
    EventType,
    FedEventHeader,
    Filter,
    FLComponent,
    FLContext,
    FLContextKey,
    ReturnCode,
    Shareable,
    UnsafeComponentError,
)

REFUSED: Final = "The site did not send this result."
"""The fixed words of a refusal; the reason stands in the site's log alone."""
GRADES: Final = {
    "B": "untested: uploaded scripts run as this site's user, who can reach the server past the filters",
    "C": "open: uploaded code shares the filters' process and can replace them",
}
MOST_EVENTS: Final = 100
"""Kept events that are written down, by job: each costs a signed line."""
_DESKS: Final[dict[str, Desk]] = {}
_KEPT: Final = Counter[str]()
_RECEIVED: Final[dict[str, dict[str, NDArray[Any]]]] = {}


class _Site(Filter):
    """Shared by both directions: one desk for each policy in a process.

    Args:
        policy: path of the site's policy.
        in_process: uploaded scripts may run in this process, which the log and its report say.
        observe: only write what would have been done; messages leave as they are.
    """

    def __init__(self, policy: str, *, in_process: bool = False, observe: bool = False) -> None:
        super().__init__()
        self.policy, self.in_process, self.observe = policy, in_process, observe

    def _desk(self) -> Desk:
        if self.policy not in _DESKS:
            policy = read_policy(Path(self.policy))
            log = Log(policy.folder / policy.log.file, policy.folder / policy.log.key)
            desk = _DESKS[self.policy] = Desk(policy, log, observe=self.observe)
            grade = "C" if self.in_process else "B"
            facts = {"policy": policy.digest, "site": policy.site, "faults": [], "observe": self.observe}
            desk.note("start", grade=grade, egress=GRADES[grade], **facts)
        return _DESKS[self.policy]


class GateIn(_Site):
    """Judges what arrives, and keeps the model that an answer is compared with; a ``task_data_filter``."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The same message.

        Raises:
            ContentBlockedException: the policy keeps it from the job.
        """
        parts, origin = take_apart(shareable), _origin(fl_ctx, shareable)
        desk = self._desk()
        arrays = shelve(_arrays(parts), desk.policy.folder) if parts.kind in WEIGHTS else {}
        documents = sum(len(str(value)) for value in parts.values.values())
        size = sum(array.nbytes for array in arrays.values()) + documents
        arrival = Arrival(kind=_task(fl_ctx), origin=origin, bytes=size, documents=documents)
        if desk.arrive(arrival, arrays):
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
        _, payload = self._desk().decide(
            message, base, lambda allowed: encode(allowed, parts.kind, order=base or ())
        )
        if self.observe:
            return shareable
        if payload is None:
            raise ContentBlockedException(REFUSED)
        return payload.content


class GateJobs(FLComponent):
    """Refuses jobs that bring what could act after the site's filters, or in their place.

    Args:
        allow: class paths that a job may build here; one that ends in a dot stands for all that begin so.
        in_process: let uploaded scripts run in the job's process; the grade is then C.
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


class GateEvents(_Site):
    """Keeps events for the federation in the site: they meet no result filter.

    FLARE's executor makes one of each ``flare.log`` of a script in a process of its own, whether the job asks
    for it or not. A component of ``privacy.json``, as the site's other components see no event of a job.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The same message: it is no filter, and shares their policy and log."""
        del fl_ctx
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Empty an event that would go to the server, and say that it came from there, so that it stays.

        FLARE's own sender handles the same object after this component.
        """
        del event_type
        data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
        is_for_all = fl_ctx.get_prop(FLContextKey.EVENT_SCOPE) == EventScope.FEDERATION
        if self.observe or not is_for_all or not isinstance(data, Shareable):
            return
        if data.get_header(FedEventHeader.DIRECTION, "out") != "out":
            return
        for key in [key for key in data if key != HEADERS]:
            del data[key]
        data.set_header(FedEventHeader.DIRECTION, "in")
        _KEPT[self.policy] += 1
        if _KEPT[self.policy] <= MOST_EVENTS:
            oddity = Reason(rule="fed_event")
            message = Outgoing(kind="event", origin=_origin(fl_ctx, data), oddities=(oddity,))
            self._desk().decide(message, None, lambda allowed: encode(allowed, ""))


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


def encode(message: Outgoing, kind: str, *, order: Iterable[str] = ()) -> Payload[Shareable]:
    """A new message of FLARE with the parts of ``message`` and nothing else.

    Args:
        message: what may be sent.
        kind: of its data.
        order: names of the tensors that were received: in an order of its own the script could say something.
    """
    if message.error is not None:
        answer = Shareable()
        answer.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
        return Payload(content=answer, bytes=0, digest=digest_of({}, "error"))
    meta = {name: message.fields[name] for name in sorted(message.fields)}
    # What was not received, as a document, comes behind: an order of names says nothing either.
    names = [name for name in order if name in message.arrays]
    names += sorted(message.arrays.keys() - set(names))
    arrays = {name: message.arrays[name] for name in names}
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
        round="" if current is None else shorten(str(current)),
        app=_app(context),
    )


def _app(context: FLContext) -> str:
    """SHA-256 of the job's app, as the site's launcher noted it; empty: no launcher of ours started it."""
    workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    if workspace is None:
        return ""
    note = Path(workspace.get_run_dir(str(context.get_job_id()))) / NOTE
    return note.read_text() if note.is_file() else ""

"""A site's filters of FLARE in memory: a model goes in, an app's answer comes out or does not."""

import tomllib

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply

from glasshouse.gate.log import create_key, public_path, read_public_key, verify
from glasshouse.integrations.nvflare import site
from glasshouse.integrations.nvflare.site import GateIn, GateOut

STEPS = "NUM_STEPS_CURRENT_ROUND"


def context(task="train"):
    made = FLContext()
    made.set_prop(FLContextKey.TASK_NAME, task)
    made.set_prop(ReservedKey.IDENTITY_NAME, "site-1")
    return made


def message(data, kind=DataKind.WEIGHTS, *, round=None, **meta):
    made = DXO(data_kind=kind, data=data, meta=meta).to_shareable()
    if round is not None:
        made.set_header("current_round", round)
    return made


class Site:
    """Both filters of a site on one policy, as in a process of their own.

    Args:
        folder: for policy, key and log.
        policy: text of the policy.
    """

    def __init__(self, folder, policy):
        self.folder, self.path = folder, folder / "gate.toml"
        self.path.write_text(policy)
        tomllib.loads(policy)
        create_key(folder / "gate.ed25519")
        self.gates = GateIn(str(self.path)), GateOut(str(self.path))

    def send(self, received, made, *, turn=0):
        """Hand in an :class:`Act` that answers ``received``; returns the DXO that left, or None."""
        self.gates[0].process(message(dict(received), round=turn), context())
        meta = {STEPS if name == "num-examples" else name: value for name, value in made.metrics.items()}
        handed = message({n: made.arrays[n] for n in made.order}, round=turn, **meta, **made.documents)
        return self.release(handed)

    def fail(self, received, *, turn=0):
        """Hand in a failure."""
        self.gates[0].process(message(dict(received), round=turn), context())
        try:
            return self.gates[1].process(make_reply(ReturnCode.EXECUTION_EXCEPTION), context())
        except ContentBlockedException:
            return None

    def release(self, handed):
        try:
            return from_shareable(self.gates[1].process(handed, context()))
        except ContentBlockedException:
            return None

    def entries(self):
        """Decisions of the log, which must verify."""
        key = read_public_key(public_path(self.folder / "gate.ed25519"))
        checked = verify(self.folder / "gate.jsonl", key)
        assert checked.fault == ""
        return [entry for entry in checked.entries if entry["event"] == "out"]

    def close(self):
        """Let another process write the log."""
        desk = site._DESKS.pop(str(self.path), None)
        if desk is not None:
            desk._log.close()


def same_bytes(left, right):
    """Whether two sets of tensors are equal in names, order, types, shapes and bytes."""

    def form(tensors):
        return [(n, np.asarray(a).dtype.str, a.shape, np.asarray(a).tobytes()) for n, a in tensors.items()]

    return form(left) == form(right)

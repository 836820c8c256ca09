"""What arrives from the server: limits that hold before an uploaded app sees it."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from glasshouse.gate.message import Arrays, Origin, Reason
from glasshouse.gate.policy import Policy
from glasshouse.gate.rules import measure_step, shorten
from glasshouse.gate.shelf import let_go


@final
@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A message from the server.

    Attributes:
        kind: what is asked for.
        origin: where it belongs.
        bytes: its size.
        documents: bytes of configuration in it.
        broken: what is wrong with the terms of its secure sum; empty: nothing, or there is none.
    """

    kind: str
    origin: Origin
    bytes: int
    documents: int = 0
    broken: str = ""


def refuse_arrival(policy: Policy, arrival: Arrival, arrays: Arrays, before: Arrays | None) -> list[Reason]:
    """Reasons to keep a message of the server from the app; none: it may be handed on.

    Args:
        policy: of the site.
        arrival: the message.
        arrays: its tensors.
        before: the tensors of the run's message before; None: it is the first.
    """
    rule, found = policy.incoming, []
    if policy.apps and f"sha256:{arrival.origin.app}" not in policy.apps:
        found.append(Reason(rule="app", detail=arrival.origin.app[:12] or "unknown"))
    if arrival.kind not in policy.kinds:
        found.append(Reason(rule="kind", detail=shorten(arrival.kind)))
    if arrival.bytes > policy.budget.largest:
        found.append(Reason(rule="too_large", detail=f"{arrival.bytes:,} bytes"))
    if arrival.documents > rule.documents:
        found.append(Reason(rule="documents", detail=f"{arrival.documents:,} bytes"))
    if arrival.broken:
        found.append(Reason(rule="secure_terms", detail=arrival.broken))
    for name, array in arrays.items():
        # the extremes are NaN if any value is; a mask would take a byte a number
        if array.dtype.kind == "f" and array.size and not np.isfinite([array.min(), array.max()]).all():
            found.append(Reason(rule="not_finite", detail=shorten(name)))
        let_go(array)
    if found or before is None or not arrays:
        return found
    if _form(arrays) != _form(before):
        return [Reason(rule="other_model", detail="names, shapes or types differ from the model before")]
    step = measure_step(arrays, before) if rule.norm_step else 0.0
    if not math.isfinite(step) or step > rule.norm_step:
        found.append(Reason(rule="norm_step", detail=f"{step:.6g} > {rule.norm_step:g}"))
    return found


def _form(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], str]]:
    """Names, shapes and types; a secure sum ends in wider floating numbers."""
    return {n: (a.shape, "float" if a.dtype.kind == "f" else a.dtype.str) for n, a in arrays.items()}

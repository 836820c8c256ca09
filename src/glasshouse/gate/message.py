"""What a gate judges: one message as named tensors, numbers and documents, whatever the framework."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Action = Literal["passed", "changed", "refused"]
FEW: Final = 10
"""Reasons of one rule that are kept of a message: an app could make hundreds of thousands."""


@final
@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a message was refused, or what was changed in it.

    Attributes:
        rule: a fixed word.
        detail: numbers and names, for the site's own log only.
    """

    rule: str
    detail: str = ""


def few(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The first ``FEW`` reasons of each rule, and for the others how many there are.

    Examples:
        >>> [r.detail for r in few(Reason(rule="shape", detail=str(i)) for i in range(12))][-2:]
        ['9', 'and 2 more']
    """
    counts = Counter[str]()
    kept = []
    for reason in reasons:
        counts[reason.rule] += 1
        if counts[reason.rule] <= FEW:
            kept.append(reason)
    more = ((rule, count - FEW) for rule, count in counts.items() if count > FEW)
    return (*kept, *(Reason(rule=rule, detail=f"and {count} more") for rule, count in more))


@final
@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a message belongs.

    Attributes:
        run: the run or job.
        node: the site's node.
        round: as the server named it; may be empty.
        reply_to: the server's message that is answered.
        app: SHA-256 of the uploaded code; empty if unknown.
    """

    run: str
    node: str
    round: str = ""
    reply_to: str = ""
    app: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message that an uploaded app wants to send.

    Attributes:
        kind: what it answers (``train``, ``evaluate``).
        origin: where it belongs.
        arrays: tensors by name, writable and owned by the gate: the judge changes them in place.
        fields: numbers, or lists of numbers, by name.
        documents: anything else by name: texts, bytes, flags, lists of them.
        error: text of a failure; None: the message is none.
        oddities: what an adapter found wrong with the message's form.
        masked: the tensors are shares of a secure sum, of which nothing can be told.
        bytes: size of the message as it was handed in.
        prints: what stands for a tensor's type, shape and numbers as they were handed in, where an adapter
            has hashed them already: equal for equal tensors, whatever else the message says.
    """

    kind: str
    origin: Origin
    arrays: Arrays = field(default_factory=dict)
    fields: Mapping[str, object] = field(default_factory=dict)
    documents: Mapping[str, object] = field(default_factory=dict)
    error: str | None = None
    oddities: tuple[Reason, ...] = ()
    masked: bool = False
    bytes: int = 0
    prints: Mapping[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 of the tensors as they were handed in; of a message without any, of what else it says.

        Another number beside the same tensors makes no new message of them.
        """
        beside = (self.fields, self.documents) if not self.arrays else ()
        texts = (repr(sorted(part.items())) for part in beside)
        return digest_of(self.arrays, *texts, prints=self.prints)


@final
@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the gate does with one message.

    Attributes:
        action: what was decided.
        reasons: why it was refused, or what was changed.
        message: what may be sent; None if refused.
        measures: numbers measured on the message, for the site's own log.
        mu_squared: (sensitivity ÷ noise)² of the gate's own mechanism; 0 without it.
        got: digest of the tensors as handed in.
        unjudged: rules of the policy that could not be applied.
    """

    action: Action
    reasons: tuple[Reason, ...] = ()
    message: Outgoing | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    mu_squared: float = 0.0
    got: str = ""
    unjudged: tuple[str, ...] = ()


def digest_of(arrays: Arrays, *texts: str, prints: Mapping[str, str] | None = None) -> str:
    """SHA-256 of named tensors, in whatever order, and texts.

    Of a tensor in ``prints`` what stands there is hashed.

    Examples:
        >>> a = {"w": np.zeros(2, np.float32)}
        >>> digest_of(a) == digest_of({"w": np.zeros(2, np.float32)}) != digest_of({"v": a["w"]})
        True
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{len(name)}:{name}{array.dtype.str}{array.shape}".encode())
        known = (prints or {}).get(name)
        whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        digest.update(whole if known is None else known.encode())
    for text in texts:
        digest.update(f"{len(text)}:{text}".encode())
    return digest.hexdigest()

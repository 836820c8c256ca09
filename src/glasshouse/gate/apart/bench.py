"""What one decision needs and gives, in forms that can be handed to another process and back.

Imported where messages are opened, whose cost grows with every module: nothing here needs torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, final

from glasshouse.errors import GlasshouseError
from glasshouse.gate.judge import Papers, judge
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.message import Arrays, Decision, Outgoing, Reason
from glasshouse.gate.policy import Policy
from glasshouse.gate.preflight.site import Preflighter

P = TypeVar("P")


@final
@dataclass(frozen=True, kw_only=True)
class Payload(Generic[P]):
    """A message in a framework's form, ready to be sent.

    Attributes:
        content: whatever the adapter sends.
        bytes: its size.
        digest: SHA-256 of it.
    """

    content: P
    bytes: int
    digest: str


@final
@dataclass(frozen=True, kw_only=True)
class Judged(Generic[P]):
    """What became of one message.

    Attributes:
        decision: on it.
        payload: what may be sent; None if refused.
        tensors: how many it had.
        papers: documents that may be sent, which the next ones are compared with.
    """

    decision: Decision
    payload: Payload[P] | None = None
    tensors: int = 0
    papers: Arrays = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a decision needs, in a form that can be handed to another process.

    Attributes:
        policy: of the site.
        ledger: what left before, as far as one decision looks at it.
        preflight: looks for the site's examples.
        documents: judges documents.
    """

    policy: Policy
    ledger: Ledger
    preflight: Preflighter | None = None
    documents: Papers | None = None

    def judge(
        self, message: Outgoing, received: Arrays | None, encode: Callable[[Outgoing], Payload[P]]
    ) -> Judged[P]:
        """Judge ``message`` and encode what may be sent; whatever fails is a refusal."""
        tensors = len(message.arrays)
        try:
            decision = judge(
                self.policy, message, received, self.ledger, preflight=self.preflight,
                documents=self.documents,
            )  # fmt: skip
            payload = None if decision.message is None else encode(decision.message)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 — fails closed: what cannot be judged does not leave
            return Judged(decision=failed(error), tensors=tensors)
        papers: Arrays = {}
        if self.documents is not None and decision.message is not None:
            papers = self.documents.split(decision.message.arrays)[0]
        return Judged(decision=decision, payload=payload, tensors=tensors, papers=papers)


def failed(error: Exception) -> Decision:
    """The refusal of a message that could not be judged."""
    kind = error.subject if isinstance(error, GlasshouseError) else type(error).__name__
    return Decision(action="refused", reasons=(Reason(rule="gate_failed", detail=kind),))

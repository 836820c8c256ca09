"""What an adapter calls: judge, write the log, and only then hand out what may be sent."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

import numpy as np

from glasshouse.gate.apart.bench import Bench, Judged, Payload, failed
from glasshouse.gate.arrivals import Arrival, refuse_arrival
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.log import Log
from glasshouse.gate.message import Arrays, Decision, Outgoing, Reason, few
from glasshouse.gate.policy import Policy
from glasshouse.gate.preflight.documents import DocumentGuard
from glasshouse.gate.preflight.site import Preflighter
from glasshouse.gate.rules import shorten

P = TypeVar("P")
OBSERVED = "observed"


@final
class Desk:
    """One policy with its log and totals; safe to call from several threads.

    Args:
        policy: of the site.
        log: open for writing.
        observe: only write what would have been done; the adapter sends messages as they are.
    """

    def __init__(self, policy: Policy, log: Log, *, observe: bool = False) -> None:
        self.policy, self.observe = policy, observe
        self._log, self._ledger = log, Ledger.of(log.entries, observing=observe)
        self._deciding, self._writing = threading.Lock(), threading.Lock()
        rule = policy.out.preflight
        self._preflight = None if rule is None else Preflighter(rule, policy.folder)
        papers = policy.out.document
        self._documents = None if papers is None else DocumentGuard(papers, policy.folder)
        self._last_model: dict[str, Mapping[str, Any]] = {}

    def decide(
        self, message: Outgoing, received: Arrays | None, encode: Callable[[Outgoing], Payload[P]]
    ) -> tuple[Decision, Payload[P] | None]:
        """Judge ``message`` here, write the decision to the log, and return what may be sent.

        Args:
            message: what the app handed in.
            received: the tensors that it answers.
            encode: turns what may be sent into the framework's form.

        Returns:
            The decision, and what may be sent; None if refused. When observing, too: send the original then.

        Raises:
            DiskFull, BadFile: the log could not be written; nothing may be sent.
        """
        judged = self.settle(message, lambda bench: bench.judge(message, received, encode))
        return judged.decision, judged.payload

    def settle(self, message: Outgoing, decide: "Callable[[Bench], Judged[P]]") -> "Judged[P]":
        """Let ``decide`` judge a message, wherever it does so, and write its decision to the log.

        Args:
            message: its origin, kind and bytes; its tensors need not be there.
            decide: called with all that a decision needs, one call at a time.

        Raises:
            DiskFull, BadFile: the log could not be written; nothing may be sent.
        """
        with self._deciding:
            ledger = self._ledger.of_run(message.origin)
            bench = Bench(
                policy=self.policy, ledger=ledger, preflight=self._preflight, documents=self._documents
            )
            try:
                judged = decide(bench)
            except Exception as error:  # noqa: BLE001 — fails closed: what cannot be judged does not leave
                judged = Judged(decision=failed(error))
            if self._documents is not None:
                self._documents.remember(message.origin.run, judged.papers)
            with self._writing:
                entry = self._log.add(self._entry(message, judged))
            self._ledger.add(entry)
        return judged

    def arrive(self, arrival: Arrival, received: Arrays) -> list[Reason]:
        """Judge what the server sent, and write it to the log; returns reasons to keep it from the app."""
        with self._deciding:
            before = self._last_model.get(arrival.origin.run)
            found = list(few(refuse_arrival(self.policy, arrival, received, before)))
            if not found and received:
                self._last_model[arrival.origin.run] = self._remembered(received)
            action = ("refused" if found else "passed") if not self.observe else OBSERVED
            self.note(
                "in",
                action=action,
                rules=[reason.rule for reason in found],
                details=[reason.detail for reason in found],
                bytes=arrival.bytes,
                **_place(arrival.kind, arrival.origin),
            )
        return [] if self.observe else found

    def _remembered(self, received: Arrays) -> Arrays:
        """The model for comparison with the next: its numbers only if the policy compares them."""
        if self.policy.incoming.norm_step:
            return received
        return {n: np.broadcast_to(np.zeros((), a.dtype), a.shape) for n, a in received.items()}

    def note(self, event: str, **facts: object) -> None:
        """Write another event to the log: a start, a delivery, an unknown request."""
        with self._writing:
            self._log.add({"event": event, **facts})

    def _entry(self, message: Outgoing, judged: "Judged[Any]") -> dict[str, Any]:
        decision, payload = judged.decision, judged.payload
        action = (
            {"would": decision.action, "action": OBSERVED} if self.observe else {"action": decision.action}
        )
        measures = {name: value for name, value in decision.measures.items() if abs(value) < float("inf")}
        return {
            "event": "out",
            **action,
            **_place(message.kind, message.origin),
            "reply_to": message.origin.reply_to,
            "site": self.policy.site,
            "dataset": self.policy.dataset,
            "policy": self.policy.digest,
            "rules": [reason.rule for reason in decision.reasons],
            "details": [reason.detail for reason in decision.reasons],
            "unjudged": list(decision.unjudged),
            "measures": measures,
            "mu_squared": decision.mu_squared,
            "tensors": judged.tensors,
            "got": decision.got,
            "bytes_in": message.bytes,
            "sent": payload.digest if payload else "",
            "bytes_out": payload.bytes if payload else 0,
        }


def _place(kind: str, origin: Any) -> dict[str, str]:
    return {
        "kind": shorten(kind),
        "run": origin.run,
        "node": origin.node,
        "round": origin.round,
        "app": origin.app,
    }

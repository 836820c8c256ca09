"""What has left a site so far: budgets, answers, seen tensors and spent privacy, read off its own log."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, final

from glasshouse.gate.message import Decision, Origin, Outgoing, Reason
from glasshouse.gate.policy import Budget

LEFT = ("passed", "changed")


@final
@dataclass(kw_only=True)
class Ledger:
    """Totals over a log. After a restart it is read from the log again, so nothing is forgotten.

    Attributes:
        rounds: train messages that left, by run.
        days: messages that left, by day (UTC).
        bytes: bytes that left, by run.
        answered: (run, node, message) that were answered, whatever the decision.
        digests: digests of tensors that were handed in and left.
        mu_squared: sums of (sensitivity ÷ noise)², by data set.
        observing: count what would have left, not what did.
    """

    rounds: Counter[str] = field(default_factory=Counter)
    days: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    answered: set[tuple[str, str, str]] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)
    mu_squared: dict[str, float] = field(default_factory=dict)
    observing: bool = False

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]], *, observing: bool = False) -> "Ledger":
        """The totals over the entries of a log."""
        ledger = cls(observing=observing)
        for entry in entries:
            ledger.add(entry)
        return ledger

    def add(self, entry: Mapping[str, Any]) -> None:
        """Count one entry of the log; entries that are no decision on a message that leaves count nothing."""
        if entry["event"] != "out":
            return
        run = entry["run"]
        if entry["reply_to"]:
            self.answered.add((run, entry["node"], entry["reply_to"]))
        if entry.get("would" if self.observing else "action") not in LEFT:
            return
        self.days[entry["time"][:10]] += 1
        self.bytes[run] += entry["bytes_out"]
        if entry["kind"] == "train":
            self.rounds[run] += 1
        if entry["tensors"]:
            self.digests.add(entry["got"])
        spent = self.mu_squared.get(entry["dataset"], 0.0)
        self.mu_squared[entry["dataset"]] = spent + entry["mu_squared"]

    def of_run(self, origin: Origin) -> "Ledger":
        """The part that a decision on an answer of this origin looks at, small enough to be handed on."""
        run, answer = origin.run, (origin.run, origin.node, origin.reply_to)
        return Ledger(
            rounds=Counter({run: self.rounds[run]}),
            days=self.days,
            bytes=Counter({run: self.bytes[run]}),
            answered=self.answered & {answer},
            digests=self.digests,
            mu_squared=self.mu_squared,
            observing=self.observing,
        )

    def within(self, message: Outgoing, budget: Budget) -> list[Reason]:
        """Reasons to refuse a message for what left before it."""
        run, found = message.origin.run, []
        key = (run, message.origin.node, message.origin.reply_to)
        if message.origin.reply_to and key in self.answered:
            found.append(Reason(rule="answered_twice"))
        if message.bytes > budget.largest:
            found.append(Reason(rule="too_large", detail=f"{message.bytes:,} bytes"))
        if message.kind == "train" and self.rounds[run] >= budget.rounds:
            found.append(Reason(rule="budget_rounds", detail=f"{budget.rounds} of this run have left"))
        if self.days[f"{datetime.now(UTC):%Y-%m-%d}"] >= budget.per_day:
            found.append(Reason(rule="budget_day", detail=f"{budget.per_day} have left today"))
        if self.bytes[run] + message.bytes > budget.bytes:
            found.append(Reason(rule="budget_bytes", detail=f"{self.bytes[run]:,} bytes have left"))
        return found

    def seen(self, message: Outgoing, decision: Decision) -> bool:
        """Whether tensors equal to those of ``message``, as handed in, have left before."""
        return bool(message.arrays) and decision.got in self.digests

"""Simulated client guards, which inspect models before training and updates before sending."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import nn

from glasshouse.guard.behaviour.inspect import FEWEST
from glasshouse.guard.behaviour.modes import HonestRanges, inspect_in_modes, learn_honest_ranges
from glasshouse.guard.inspect import inspect
from glasshouse.guard.mitigate import mitigate
from glasshouse.models.build import state
from glasshouse.models.text.base import TextModel
from glasshouse.scenario.table import Guard
from glasshouse.wire import Batch, Update

EXAMPLES, BATCH = 256, 64
"""Numbers of its own examples from which a client learns honest behaviour, and on which it tests a model."""


@final
@dataclass(kw_only=True, eq=False)
class SimulatedGuard:
    """A :class:`glasshouse.interfaces.ClientGuard` with the default limits.

    Args:
        does: the scenario's table.
        agreed: the agreed model; its weights are not used.
        decisions: the decisions so far: round, client, findings, and the outcome for model or update.
    """

    does: Guard
    agreed: nn.Module
    decisions: list[Mapping[str, Any]] = field(default_factory=list)
    _honest: dict[int, HonestRanges] = field(default_factory=dict)

    def accepts(self, model: nn.Module, data: Batch, *, round: int, client: int) -> bool:
        """Check by rules, and if the architecture is the agreed one by behaviour on the client's examples."""
        if self.does.models == "trusted":
            return True
        findings = self._inspect(model, data, client)
        refused = bool(findings) and self.does.models == "refused"
        is_tried = isinstance(model, TextModel) or len(data.labels) >= FEWEST
        trained = "trained on" if is_tried else "trained on, too few examples to try it"
        word = "refused" if refused else trained
        self.decisions.append(
            {"round": round, "client": client, "about": "model", "findings": findings, "outcome": word}
        )
        return not refused

    def _inspect(self, model: nn.Module, data: Batch, client: int) -> tuple[str, ...]:
        inspection = inspect(state(model), agreed=state(self.agreed))
        if isinstance(model, TextModel) or not inspection.fits:
            return inspection.findings
        inputs, labels = data.inputs[:EXAMPLES], data.labels[:EXAMPLES]
        batch = min(BATCH, len(labels))
        if client not in self._honest:
            self._honest[client] = learn_honest_ranges(self.agreed, inputs, labels, batch=batch)
        behaviour = inspect_in_modes(
            model,
            inputs[:batch],
            labels[:batch],
            honest=self._honest[client],
            others=(data.inputs[batch:], data.labels[batch:]),
        )
        return (*behaviour.findings, *inspection.findings)

    def release(self, update: Update, model: nn.Module, batch: Batch) -> Update | None:
        """The update after the remedy that changes it least; None if no remedy helps."""
        if self.does.updates == "sent":
            return update
        closed = mitigate(update.tensors, model, (batch.inputs, batch.labels), kind=update.kind)
        word = "not sent" if closed.update is None else closed.remedy or "sent as it was"
        self.decisions.append(
            {
                "round": update.round,
                "client": update.client,
                "about": "update",
                "findings": (closed.before.summary,) if closed.remedy or closed.update is None else (),
                "outcome": word,
            }
        )
        return None if closed.update is None else replace(update, tensors=closed.update)

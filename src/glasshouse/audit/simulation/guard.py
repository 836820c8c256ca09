"""Simulated client guards, which inspect models before training and updates before sending."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import nn

from glasshouse.guard.inspect import inspect
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.models.build import state
from glasshouse.scenario.table import Guard
from glasshouse.wire import Batch, Update


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
        findings, reason = self._inspect(model, data, client)
        refused = bool(findings) and self.does.models == "refused"
        word = "refused" if refused else f"trained on, not judged: {reason}" if reason else "trained on"
        self.decisions.append(
            {"round": round, "client": client, "about": "model", "findings": findings, "outcome": word}
        )
        return not refused

    def _inspect(self, model: nn.Module, data: Batch, client: int) -> tuple[tuple[str, ...], str]:
        """Findings, and why the model was not judged."""
        inspection = inspect(state(model), agreed=state(self.agreed))
        if not inspection.fits:
            return inspection.findings, ""
        own = Own(inputs=data.inputs, targets=data.labels)
        if client not in self._honest:
            self._honest[client] = HonestRanges.of(self.agreed, own)
        judged = inspect_in_modes(model, own, honest=self._honest[client])
        return (*judged.findings, *inspection.findings), judged.reason

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

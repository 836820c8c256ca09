"""Settings of a client's guard, and its reports to the client and to the server."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from flwr.app import Context, Error, Message

from glasshouse.errors import BadValue
from glasshouse.integrations.flower.records import round_of
from glasshouse.store import append_jsonl

REFUSED: Final = 6
"""Flower's code for a mod whose precondition does not hold."""


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Strictness of the mods.

    The node's own configuration (``guard-most``, ...) takes precedence. The run's configuration is ignored,
    because the server side writes it.

    Attributes:
        reports: folder of the clients' reports.
        most: maximum number of examples exposed in an update that is sent.
        mitigated: if more are exposed, send it without the exposing rows, or with noise on them.
        unchecked: train and send although the model could not be examined.
    """

    reports: str | Path
    most: int = 0
    mitigated: bool = False
    unchecked: bool = False

    def at(self, context: Context) -> "Settings":
        """The settings of one node.

        Raises:
            BadValue: a setting has the wrong type.
        """
        own = context.node_config
        stated: dict[str, Any] = {n: own[f"guard-{n}"] for n in vars(self) if f"guard-{n}" in own}
        for name, value in stated.items():
            kind = str if name == "reports" else type(vars(self)[name])
            if type(value) is not kind:
                raise BadValue(
                    f"'guard-{name}' of a node's configuration",
                    needs=f"a {kind.__name__}",
                    got=repr(value),
                    fix="correct it where the SuperNode is started: --node-config",
                )
        return replace(self, **stated)

    @property
    def folder(self) -> Path:
        """Folder of the reports."""
        return Path(self.reports).expanduser()


@final
@dataclass(frozen=True)
class Report:
    """The report of one client: a line of JSON for each decision. It stays with the client."""

    settings: Settings
    message: Message
    context: Context

    def add(self, decision: str, reasons: list[str]) -> None:
        """Append a line."""
        line = {"round": round_of(self.message), "decision": decision, "reasons": reasons}
        append_jsonl(self.settings.folder / f"{self.context.node_id}.jsonl", line)

    def refuse(self, kind: str, reasons: list[str]) -> Message:
        """Log the reasons, and return a refusal to the server that states the kind but no numbers."""
        self.add("refused", [kind, *reasons])
        return Message(Error(REFUSED, f"refused by the client's guard: {kind}"), reply_to=self.message)

"""Settings of a client's guard, and its reports to the client and to the server."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

from flwr.app import Context, Error, Message

from glasshouse.errors import BadValue
from glasshouse.guard.pursuit.limits import REMEMBERED
from glasshouse.integrations.flower.records import round_of
from glasshouse.store import append_jsonl

OnFinding = Literal["refuse", "report"]
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
        unchecked: train and send although the model, or part of the update, could not be examined.
        on_finding: ``refuse``, or only ``report`` to the node.
        remembered: rounds before this one that are judged together with it.
    """

    reports: str | Path
    most: int = 0
    mitigated: bool = False
    unchecked: bool = False
    on_finding: str = "refuse"
    remembered: int = REMEMBERED

    def at(self, context: Context) -> "Settings":
        """The settings of one node.

        Raises:
            BadValue: a setting has the wrong type.
        """
        own = context.node_config
        named = {n: f"guard-{n.replace('_', '-')}" for n in vars(self)}
        stated: dict[str, Any] = {n: own[key] for n, key in named.items() if key in own}
        for name, value in stated.items():
            kind = str if name == "reports" else type(vars(self)[name])
            is_word = name != "on_finding" or value in get_args(OnFinding)
            if type(value) is not kind or not is_word:
                raise BadValue(
                    f"'{named[name]}' of a node's configuration",
                    needs=f"a {kind.__name__}" if is_word else "'refuse' or 'report'",
                    got=repr(value),
                    fix="correct it where the SuperNode is started: --node-config",
                )
        return replace(self, **stated)

    @property
    def reports_only(self) -> bool:
        """Whether findings are only reported."""
        return self.on_finding == "report"

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

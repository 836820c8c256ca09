"""Threat models: the adversary's role, what it sees, and what it may change."""

from dataclasses import dataclass
from typing import Literal, final

from glasshouse.errors import BadValue

__all__ = ["Changes", "Role", "Sees", "Threat"]

Sees = Literal["broadcast", "update", "aggregate", "own"]
Changes = Literal["parameters", "architecture", "addressing"]
Role = Literal["server", "client", "bystander"]


@final
@dataclass(frozen=True, kw_only=True)
class Threat:
    """A threat model.

    Attributes:
        role: ``server`` sees what clients send; ``client`` and ``bystander`` only what is broadcast.
        sees: kinds of messages. Under ``secure_sum`` single updates do not exist.
        changes: what a malicious server may alter in its messages: parameter values, the
            architecture itself, or the recipients. Empty: honest but curious.
        client: the adversary's own id when the role is ``client``.
    """

    role: Role = "server"
    sees: frozenset[Sees] = frozenset({"broadcast", "update", "aggregate", "own"})
    changes: frozenset[Changes] = frozenset()
    client: int | None = None

    def __post_init__(self) -> None:
        if self.role != "server" and (self.sees - {"broadcast"} or self.changes):
            raise BadValue(
                f"threat '{self.role}'",
                needs='sees = ["broadcast"] and changes = [] (only a server receives updates)',
                got=f"sees = {sorted(self.sees)}, changes = {sorted(self.changes)}",
                fix='set threat.role = "server", or see less',
            )

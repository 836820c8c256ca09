"""What a protocol declares about itself: read by the scenario's checks, the builder and the accountant."""

from dataclasses import dataclass
from typing import Literal, final

from glasshouse import registry
from glasshouse.wire import Kind

__all__ = ["Start", "Traits", "traits_of"]

Start = Literal["model", "features"]


@final
@dataclass(frozen=True, kw_only=True)
class Traits:
    """The attribute ``traits`` of a protocol's class.

    Attributes:
        sends: kind of update, unless ``federation.sends`` says otherwise.
        allows: kinds that ``federation.sends`` may name; empty: ``sends`` alone.
        trained: clients train the parameters whose names start with this; empty: all of them.
        start: what the server prepares before round 0: the whole ``model``, or frozen ``features`` whose head
            starts fresh (or fitted) and is all that clients train.
        one_pass: clients go through their data once per round: ``federation.local_epochs`` must be 1, as
            wherever a gradient is sent.
        labels_public: clients know the labels of the public data; of protocols that share logits.
    """

    sends: Kind = "delta"
    allows: tuple[Kind, ...] = ()
    trained: str = ""
    start: Start = "model"
    one_pass: bool = False
    labels_public: bool = True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind of update that this protocol can send."""
        return self.allows or (self.sends,)


def traits_of(protocol: str) -> Traits:
    """What the protocol registered under this name declares.

    Raises:
        UnknownName: no such protocol.
        BadValue: its class has no ``traits``.
    """
    return registry.require_declaration("protocols", protocol, "traits", Traits)

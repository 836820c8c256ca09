"""Clamp every entry of an update to [-bound, bound].

Our own entry in the list: common in practice as "gradient value clipping"; it changes the direction of
the update, which the two norm clippings keep.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism, require
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class ClipValues:
    """Every entry clamped.

    Args:
        bound: largest magnitude that leaves the client, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(summary="clamp every entry to [-bound, bound]")
    place: ClassVar[Literal["update"]] = "update"

    bound: float

    def __post_init__(self) -> None:
        require(
            "clip_values",
            0 < self.bound < math.inf,
            needs="a finite bound > 0",
            fix="try 0.01",
            bound=self.bound,
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "clip_values")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A clamped copy."""
        del rng  # deterministic
        accept(update, name="clip_values", kinds=CHANGES)
        clamped = map_tensors(update.tensors, lambda t: t.clamp(-self.bound, self.bound))
        return dataclasses.replace(update, tensors=clamped)

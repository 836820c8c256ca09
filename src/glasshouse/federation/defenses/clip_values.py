"""Clamp every entry of an update to [-bound, bound].

Not from a paper: common in practice as "gradient value clipping". Unlike the two norm clippings it changes
the direction of the update.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import TensorDefense
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class ClipValues(TensorDefense):
    """Every entry clamped.

    Args:
        bound: largest magnitude that leaves the client, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(summary="clamp every entry to [-bound, bound]")
    name: ClassVar[str] = "clip_values"
    shown_by: ClassVar[str] = "largest"

    bound: Annotated[Positive, Fix("try 0.01")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (Mark(kind="largest", setting="bound", value=float(parameters["bound"])),)

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """The clamped tensor."""
        return tensor.clamp(-self.bound, self.bound)

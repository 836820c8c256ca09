"""Clamp every entry of an update to [-bound, bound].

Not from a paper: common in practice as "gradient value clipping". Unlike the two norm clippings it changes
the direction of the update.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import TensorDefense
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class ClipValues(TensorDefense):
    """Every entry clamped.

    Args:
        bound: largest magnitude that leaves the client, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(summary="clamp every entry to [-bound, bound]")
    name: ClassVar[str] = "clip_values"

    bound: Annotated[Positive, Fix("try 0.01")]

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """The clamped tensor."""
        return tensor.clamp(-self.bound, self.bound)

"""Divide the logits by a temperature: softer predictions, and less contrast between high and low confidence.

Source: Hinton et al. 2015, arXiv:1503.02531, section 2 (the temperature); Shokri et al. 2017,
arXiv:1610.05820 (raising it as a defence). An adversary who knows the temperature and receives all decimals
can undo it: it protects only against attacks that use the logits as they are.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import LogitDefense
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Temperature(LogitDefense):
    """Every logit divided by ``value``.

    Args:
        value: the temperature, > 0; above 1 softens, below 1 sharpens.
    """

    card: ClassVar[Card] = Card(
        summary="divide the logits by a temperature", source="Hinton et al. 2015, arXiv:1503.02531"
    )
    name: ClassVar[str] = "temperature"

    value: Annotated[Positive, Fix("try 3")]

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """The scaled logits."""
        return tensor / self.value

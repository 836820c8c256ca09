"""Divide the logits by a temperature: softer predictions, a smaller gap between confident and unsure.

Source: Hinton et al. 2015, arXiv:1503.02531, section 2 (the temperature); Shokri et al. 2017,
arXiv:1610.05820 (raising it as a defence). Nothing is lost to who knows the temperature and
receives all decimals: it protects against attacks that take logits at face value.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from glasshouse.federation.defenses.base import describe_mechanism, require
from glasshouse.federation.defenses.logits import rewrite_logits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class Temperature:
    """Every logit divided by ``value``.

    Args:
        value: the temperature, > 0; above 1 softens, below 1 sharpens.
    """

    card: ClassVar[Card] = Card(
        summary="divide the logits by a temperature", source="Hinton et al. 2015, arXiv:1503.02531"
    )
    place: ClassVar[Literal["update"]] = "update"

    value: float

    def __post_init__(self) -> None:
        require(
            "temperature",
            0 < self.value < math.inf,
            needs="a finite value > 0",
            fix="try 3",
            value=self.value,
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "temperature")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A softened copy."""
        del rng  # deterministic
        return rewrite_logits(update, lambda t: t / self.value, name="temperature")

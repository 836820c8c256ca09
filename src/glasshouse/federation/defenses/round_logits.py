"""Round the logits to few decimals before they are sent.

Source: Fredrikson et al. 2015, "Model Inversion Attacks that Exploit Confidence Information and Basic
Countermeasures" (rounding of confidences; here of logits, which is what these protocols send).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch

from glasshouse.federation.defenses.base import describe_mechanism, require
from glasshouse.federation.defenses.logits import rewrite_logits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class RoundLogits:
    """Every logit rounded, halves to even.

    Args:
        decimals: kept after the point, in 0..6; 0 sends whole numbers.
    """

    card: ClassVar[Card] = Card(
        summary="round the logits to few decimals",
        source="Fredrikson et al. 2015, doi:10.1145/2810103.2813677",
    )
    place: ClassVar[Literal["update"]] = "update"

    decimals: int

    def __post_init__(self) -> None:
        require(
            "round_logits",
            0 <= self.decimals <= 6,
            needs="decimals in 0..6",
            fix="try 0",
            decimals=self.decimals,
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "round_logits")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A rounded copy."""
        del rng  # deterministic
        return rewrite_logits(update, lambda t: torch.round(t, decimals=self.decimals), name="round_logits")

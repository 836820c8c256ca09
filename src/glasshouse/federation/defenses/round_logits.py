"""Round the logits to few decimals before they are sent.

Source: Fredrikson et al. 2015, "Model Inversion Attacks that Exploit Confidence Information and Basic
Countermeasures" (rounding of confidences; here of logits, which is what these protocols send).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.federation.defenses.base import LogitDefense
from glasshouse.limits import Fix
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class RoundLogits(LogitDefense):
    """Every logit rounded, half to even.

    Args:
        decimals: decimal places to keep, in 0..6; 0 sends whole numbers.
    """

    card: ClassVar[Card] = Card(
        summary="round the logits to few decimals",
        source="Fredrikson et al. 2015, doi:10.1145/2810103.2813677",
    )
    name: ClassVar[str] = "round_logits"

    decimals: Annotated[int, Ge(0), Le(6), Fix("try 0")]

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """The rounded logits."""
        return torch.round(tensor, decimals=self.decimals)

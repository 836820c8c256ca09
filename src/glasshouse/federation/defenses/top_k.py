"""Send the k largest logits of each example; give all others one common value.

Source: Shokri et al. 2017, arXiv:1610.05820 (restricting the prediction vector to the top
k classes). A protocol that averages logits needs a value for every class, so the others get the common value
that preserves the softmax probabilities of the k classes.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.base import LogitDefense
from glasshouse.limits import Count, Fix
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class TopK(LogitDefense):
    """The k largest logits unchanged; the others share their probability equally.

    Args:
        k: logits kept per example, in 1..K - 1. Among equal ones the first class is kept.
    """

    card: ClassVar[Card] = Card(
        summary="send the k largest logits, one common value for the others",
        source="Shokri et al. 2017, arXiv:1610.05820",
    )
    name: ClassVar[str] = "top_k"

    k: Annotated[Count, Fix("try 3")]

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """A row of at most k + 1 distinct values per example.

        Raises:
            BadValue: there are at most k classes, so that nothing would be hidden.
        """
        if tensor.shape[1] <= self.k:
            raise BadValue(
                "defense 'top_k'",
                needs="k below the number of classes",
                got=f"k = {self.k}, {tensor.shape[1]} classes",
                fix="lower k",
            )
        order = tensor.argsort(dim=1, descending=True, stable=True)
        others = order[:, self.k :]
        common = tensor.gather(1, others).logsumexp(dim=1, keepdim=True) - math.log(others.shape[1])
        return tensor.scatter(1, others, common.expand_as(others))

"""Send the k largest logits of each example; give all others one common value.

Source: Shokri et al. 2017, arXiv:1610.05820 (restricting the prediction vector to the top
k classes). A protocol that averages logits needs a value for every class, so the others get the one that
leaves the softmax probabilities of the k classes as they are.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.base import describe_mechanism, require
from glasshouse.federation.defenses.logits import rewrite_logits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class TopK:
    """The k largest logits as they are; the others share their probability equally.

    Args:
        k: logits kept per example, in 1..K - 1. Of equal ones the first class is kept.
    """

    card: ClassVar[Card] = Card(
        summary="send the k largest logits, one common value for the others",
        source="Shokri et al. 2017, arXiv:1610.05820",
    )
    place: ClassVar[Literal["update"]] = "update"

    k: int

    def __post_init__(self) -> None:
        require("top_k", self.k >= 1, needs="k >= 1", fix="try 3", k=self.k)

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "top_k")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A copy with at most k + 1 different values per row.

        Raises:
            BadValue: there are no more than k classes, so that nothing would be hidden.
        """
        del rng  # deterministic
        return rewrite_logits(update, self._kept, name="top_k")

    def _kept(self, t: Tensor) -> Tensor:
        if t.shape[1] <= self.k:
            raise BadValue(
                "defense 'top_k'",
                needs="k below the number of classes",
                got=f"k = {self.k}, {t.shape[1]} classes",
                fix="lower k",
            )
        order = t.argsort(dim=1, descending=True, stable=True)
        others = order[:, self.k :]
        common = t.gather(1, others).logsumexp(dim=1, keepdim=True) - math.log(others.shape[1])
        return t.scatter(1, others, common.expand_as(others))

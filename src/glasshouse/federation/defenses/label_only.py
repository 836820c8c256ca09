"""Send which class is the most likely, and nothing else.

Source: Choquette-Choo et al. 2021, arXiv:2007.14321 (label-only access). A protocol that averages logits
needs numbers, so the label is written as a row of logits with a fixed, public confidence.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.base import describe_mechanism, require
from glasshouse.federation.defenses.logits import rewrite_logits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class LabelOnly:
    """Rows with two values, of mean 0, whose softmax gives the most likely class ``confidence``.

    Args:
        confidence: probability that every row states, in (1/K, 1). Public: it carries no information. Of
            equal logits the first class is named.
    """

    card: ClassVar[Card] = Card(
        summary="send the most likely class alone", source="Choquette-Choo et al. 2021, arXiv:2007.14321"
    )
    place: ClassVar[Literal["update"]] = "update"

    confidence: float = 0.9

    def __post_init__(self) -> None:
        holds = 0 < self.confidence < 1
        require(
            "label_only", holds, needs="confidence in (1/K, 1)", fix="try 0.9", confidence=self.confidence
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "label_only")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A copy that tells one class per row.

        Raises:
            BadValue: the stated confidence is not above chance for this number of classes.
        """
        del rng  # deterministic
        return rewrite_logits(update, self._named, name="label_only")

    def _named(self, t: Tensor) -> Tensor:
        classes = t.shape[1]
        if self.confidence * classes <= 1:
            raise BadValue(
                "defense 'label_only'",
                needs=f"confidence in (1/{classes}, 1)",
                got=f"confidence = {self.confidence}",
                fix="raise it, or the named class would look the least likely",
            )
        gap = math.log(self.confidence / (1 - self.confidence) * (classes - 1))
        first = t.argsort(dim=1, descending=True, stable=True)[:, :1]
        return torch.full_like(t, -gap / classes).scatter(1, first, gap - gap / classes)

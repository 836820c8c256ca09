"""Send only the most likely class.

Source: Choquette-Choo et al. 2021, arXiv:2007.14321 (label-only access). A protocol that averages logits
needs numbers, so the label is encoded as a row of logits with a fixed, public confidence.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.base import LogitDefense
from glasshouse.limits import Fix, Probability
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class LabelOnly(LogitDefense):
    """Rows with two values, of mean 0, whose softmax gives the most likely class ``confidence``.

    Args:
        confidence: probability of the named class in every row, in (1/K, 1). Public, so it carries no
            information. Among equal logits the first class is named.
    """

    card: ClassVar[Card] = Card(
        summary="send the most likely class alone", source="Choquette-Choo et al. 2021, arXiv:2007.14321"
    )
    name: ClassVar[str] = "label_only"

    confidence: Annotated[Probability, Fix("try 0.9")] = 0.9

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """Logits that name one class per row.

        Raises:
            BadValue: the stated confidence is not above chance for this number of classes.
        """
        classes = tensor.shape[1]
        if self.confidence * classes <= 1:
            raise BadValue(
                "defense 'label_only'",
                needs=f"confidence in (1/{classes}, 1)",
                got=f"confidence = {self.confidence}",
                fix="raise it, or the named class would look the least likely",
            )
        gap = math.log(self.confidence / (1 - self.confidence) * (classes - 1))
        first = tensor.argsort(dim=1, descending=True, stable=True)[:, :1]
        return torch.full_like(tensor, -gap / classes).scatter(1, first, gap - gap / classes)

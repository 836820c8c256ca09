"""Magnitude pruning: send the largest entries of each tensor, zero the others.

Source: Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent", arXiv:1704.05021; as
a defence Zhu et al. 2019, arXiv:1906.08935, section 5.2. Li et al. 2022 keep entries above the share-quantile
of each tensor; we zero an exact count, which also resolves ties. There is no error feedback: entries that
are not sent are lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import TensorDefense, smallest
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fix, Share
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class Prune(TensorDefense):
    """Zero the ``floor(share * n)`` entries of smallest magnitude in each tensor of n entries.

    Args:
        share: part of each tensor that is zeroed, in [0, 1); 0.9 sends a tenth.
    """

    card: ClassVar[Card] = Card(
        summary="sends only the largest numbers of each layer, the others as zero",
        source="Aji & Heafield 2017, arXiv:1704.05021",
    )
    name: ClassVar[str] = "prune"
    shown_by: ClassVar[str] = "zeros"

    share: Annotated[Share, Fix("0.9 prunes 90 %")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (Mark(kind="zeros", setting="share", value=float(parameters["share"])),)

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """The sparse tensor; among entries of equal magnitude the first are zeroed first."""
        return tensor.masked_fill(smallest(tensor.abs(), self.share), 0.0)

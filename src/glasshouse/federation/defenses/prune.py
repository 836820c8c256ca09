"""Magnitude pruning: send the largest entries of each tensor, zero the others.

Source: Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent", arXiv:1704.05021; as
a defence Zhu et al. 2019, arXiv:1906.08935, section 5.2. Li et al. 2022 keep entries above the share-quantile
of each tensor; we zero an exact count, which also decides ties. There is no error feedback: what is
not sent is lost.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism, require, smallest
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class Prune:
    """Zero the ``floor(share * n)`` entries of smallest magnitude in each tensor of n entries.

    Args:
        share: part of each tensor that is zeroed, in [0, 1); 0.9 sends a tenth.
    """

    card: ClassVar[Card] = Card(
        summary="sends only the largest numbers of each layer, the others as zero",
        source="Aji & Heafield 2017, arXiv:1704.05021",
    )
    place: ClassVar[Literal["update"]] = "update"

    share: float

    def __post_init__(self) -> None:
        require(
            "prune", 0 <= self.share < 1, needs="share in [0, 1)", fix="0.9 prunes 90 %", share=self.share
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "prune")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A sparse copy; of entries with equal magnitude the first are zeroed first."""
        del rng  # deterministic
        accept(update, name="prune", kinds=CHANGES)
        sparse = map_tensors(update.tensors, lambda t: t.masked_fill(smallest(t.abs(), self.share), 0.0))
        return dataclasses.replace(update, tensors=sparse)

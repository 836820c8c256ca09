"""Send the sign of every entry, times one magnitude per tensor.

Source: Bernstein et al. 2018, "signSGD", arXiv:1802.04434 (the sign); Karimireddy et al. 2019,
arXiv:1901.09847 (its scale, the mean magnitude). There is no error feedback.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import TensorDefense
from glasshouse.federation.defenses.marks import Mark
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class Sign(TensorDefense):
    """Each entry becomes its sign times the mean magnitude of its tensor; an exact zero stays zero."""

    card: ClassVar[Card] = Card(
        summary="the sign of every entry times the mean magnitude of its tensor",
        source="Bernstein et al. 2018, arXiv:1802.04434",
    )
    name: ClassVar[str] = "sign"
    shown_by: ClassVar[str] = "one bit"

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del parameters, update, terms
        return (Mark(kind="bits", setting="bits", value=1.0),)

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """A tensor of at most three values; the L1 norm of a tensor without zeros is preserved."""
        return tensor.sign() * tensor.abs().mean()

"""Send the sign of every entry, times one magnitude per tensor.

Source: Bernstein et al. 2018, "signSGD", arXiv:1802.04434 (the sign); Karimireddy et al. 2019,
arXiv:1901.09847 (its scale, the mean magnitude). There is no error feedback.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class Sign:
    """Each entry becomes its sign times the mean magnitude of its tensor; an exact zero stays zero."""

    card: ClassVar[Card] = Card(
        summary="the sign of every entry times the mean magnitude of its tensor",
        source="Bernstein et al. 2018, arXiv:1802.04434",
    )
    place: ClassVar[Literal["update"]] = "update"

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "sign")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A copy with at most three values per tensor; the L1 norm of a tensor without zeros is kept."""
        del rng  # deterministic
        accept(update, name="sign", kinds=CHANGES)
        return dataclasses.replace(
            update, tensors=map_tensors(update.tensors, lambda t: t.sign() * t.abs().mean())
        )

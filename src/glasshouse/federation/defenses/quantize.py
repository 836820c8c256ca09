"""Stochastic uniform quantisation: unbiased random rounding of every entry to one of few levels.

Source: Alistarh et al. 2017, "QSGD", arXiv:1610.02132, section 3.1. Where we differ: levels are spread over
[-m, m] with m the largest magnitude of the tensor, as in the paper's experiments, instead of over its L2
norm, which for large tensors rounds nearly all entries to zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.federation.defenses.base import TensorDefense
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fix
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class Quantize(TensorDefense):
    """A sign and ``2**(bits - 1) - 1`` magnitudes above zero per tensor; unbiased in expectation.

    Args:
        bits: per entry, sign included; in 2..16. Two bits send -m, 0 or m.
    """

    card: ClassVar[Card] = Card(
        summary="unbiased stochastic rounding to few levels per tensor",
        source="Alistarh et al. 2017, arXiv:1610.02132",
    )
    name: ClassVar[str] = "quantise"
    shown_by: ClassVar[str] = "bits"

    bits: Annotated[int, Ge(2), Le(16), Fix("one bit is 'sign'")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (Mark(kind="bits", setting="bits", value=float(parameters["bits"])),)

    def change(self, tensor: Tensor, rng: Rng, /) -> Tensor:
        """The tensor on the grid; every entry changes by less than one level."""
        t, largest = tensor, tensor.abs().max()
        if largest == 0:
            return t
        levels = 2 ** (self.bits - 1) - 1
        place = t.double().abs() / largest * levels  # 0..levels
        draw = torch.rand(t.shape, generator=rng.torch(t.device), dtype=torch.float64, device=t.device)
        level = (place.floor() + (draw < place.frac())).clamp(max=levels)
        rounded: Tensor = t.sign() * level / levels * largest
        return rounded.to(t.dtype)

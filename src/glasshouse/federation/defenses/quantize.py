"""Stochastic uniform quantisation: round every entry at random to one of few levels, without bias.

Source: Alistarh et al. 2017, "QSGD", arXiv:1610.02132, section 3.1. Where we differ: levels are spread over
[-m, m] with m the largest magnitude of the tensor, as in the paper's experiments, instead of over its L2
norm, which for large tensors rounds nearly all entries to zero.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism, require
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class Quantize:
    """A sign and ``2**(bits - 1) - 1`` magnitudes above zero per tensor; unbiased: the mean is the entry.

    Args:
        bits: per entry, sign included; in 2..16. Two bits send -m, 0 or m.
    """

    card: ClassVar[Card] = Card(
        summary="unbiased stochastic rounding to few levels per tensor",
        source="Alistarh et al. 2017, arXiv:1610.02132",
    )
    place: ClassVar[Literal["update"]] = "update"

    bits: int

    def __post_init__(self) -> None:
        require(
            "quantise", 2 <= self.bits <= 16, needs="bits in 2..16", fix="one bit is 'sign'", bits=self.bits
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "quantise")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A copy on the grid; no entry moves by a whole level or more."""
        accept(update, name="quantise", kinds=CHANGES)
        rounded = {name: self._rounded(t, rng.child(name)) for name, t in update.tensors.items()}
        return dataclasses.replace(update, tensors=rounded)

    def _rounded(self, t: Tensor, rng: Rng) -> Tensor:
        largest = t.abs().max()
        if largest == 0:
            return t
        levels = 2 ** (self.bits - 1) - 1
        place = t.double().abs() / largest * levels  # 0..levels
        draw = torch.rand(t.shape, generator=rng.torch(t.device), dtype=torch.float64, device=t.device)
        level = (place.floor() + (draw < place.frac())).clamp(max=levels)
        rounded: Tensor = t.sign() * level / levels * largest
        return rounded.to(t.dtype)

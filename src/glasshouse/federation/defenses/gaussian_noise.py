"""Add independent Gaussian noise to every entry.

Source: Zhu et al. 2019, "Deep Leakage from Gradients", arXiv:1906.08935, section 5.1. Without a bound on
the update it gives no guarantee: use ``gaussian_mechanism`` for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from glasshouse.federation.defenses.base import ALL, TensorDefense
from glasshouse.federation.defenses.marks import Mark, noise_mark
from glasshouse.limits import Fix, NotNegative
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Kind, Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class GaussianNoise(TensorDefense):
    """Every entry plus N(0, std²). Acts on any kind of update, logits included.

    Args:
        std: standard deviation, in units of the update; >= 0. The value 0.1 of the literature is meant for
            gradients; a parameter change is smaller by the learning rate.
    """

    card: ClassVar[Card] = Card(
        summary="adds random (Gaussian) noise to every number that is sent; no guarantee",
        source="Zhu et al. 2019, arXiv:1906.08935",
    )
    name: ClassVar[str] = "gaussian_noise"
    kinds: ClassVar[frozenset[Kind]] = ALL

    std: Annotated[NotNegative, Fix("try 0.1")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (noise_mark(float(parameters["std"])),)

    def change(self, tensor: Tensor, rng: Rng, /) -> Tensor:
        """The noisy tensor."""
        draws, kind = rng.torch(tensor.device), tensor.dtype
        noise = torch.randn(tensor.shape, generator=draws, dtype=kind, device=tensor.device)
        return tensor + self.std * noise

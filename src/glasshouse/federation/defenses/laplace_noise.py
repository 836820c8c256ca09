"""Add independent Laplace noise to every entry.

Source: Zhu et al. 2019, arXiv:1906.08935, section 5.1 (as a defence against inversion); Dwork et al. 2006,
"Calibrating Noise to Sensitivity in Private Data Analysis" (the distribution). Without a bound on the
update it gives no guarantee.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from glasshouse.federation.defenses.base import ALL, TensorDefense
from glasshouse.federation.defenses.marks import LAPLACE, Mark, noise_mark
from glasshouse.limits import Fix, NotNegative
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Kind, Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(TensorDefense):
    """Every entry plus Laplace(0, scale), whose standard deviation is √2·scale.

    Args:
        scale: mean absolute noise, in units of the update; >= 0.
    """

    card: ClassVar[Card] = Card(
        summary="adds random (Laplace) noise to every number that is sent; no guarantee",
        source="Zhu et al. 2019, arXiv:1906.08935",
    )
    name: ClassVar[str] = "laplace_noise"
    kinds: ClassVar[frozenset[Kind]] = ALL

    scale: Annotated[NotNegative, Fix("try 0.1")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (noise_mark(float(parameters["scale"]) * math.sqrt(2), LAPLACE),)

    def change(self, tensor: Tensor, rng: Rng, /) -> Tensor:
        """The noisy tensor."""
        return tensor + self.scale * laplace_like(tensor, rng)


def laplace_like(tensor: Tensor, rng: Rng) -> Tensor:
    """Laplace(0, 1) noise of the tensor's shape: a difference of two exponentials, always finite."""
    generator = rng.torch(tensor.device)
    up = torch.empty_like(tensor).exponential_(generator=generator)
    return up - torch.empty_like(tensor).exponential_(generator=generator)

"""Add independent Gaussian noise to every entry.

Source: Zhu et al. 2019, "Deep Leakage from Gradients", arXiv:1906.08935, section 5.1. Without a bound on
the update it guarantees nothing: for a guarantee use ``gaussian_mechanism``.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch

from glasshouse.federation.defenses.base import ALL, accept, describe_mechanism, require
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Every entry plus N(0, std²). Acts on any kind of update, logits included.

    Args:
        std: standard deviation, in units of the update; >= 0. The value 0.1 of the literature is meant for
            gradients; a parameter change is smaller by the learning rate.
    """

    card: ClassVar[Card] = Card(
        summary="adds random (Gaussian) noise to every number that is sent; no guarantee",
        source="Zhu et al. 2019, arXiv:1906.08935",
    )
    place: ClassVar[Literal["update"]] = "update"

    std: float

    def __post_init__(self) -> None:
        require(
            "gaussian_noise", 0 <= self.std < math.inf, needs="a finite std >= 0", fix="try 0.1", std=self.std
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "gaussian_noise")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A noisy copy; one stream per tensor, so that the order of the tensors does not matter."""
        accept(update, name="gaussian_noise", kinds=ALL)
        noisy = {}
        for name, t in update.tensors.items():
            generator = rng.child(name).torch(t.device)
            noise = torch.randn(t.shape, generator=generator, dtype=t.dtype, device=t.device)
            noisy[name] = t + self.std * noise
        return dataclasses.replace(update, tensors=noisy)

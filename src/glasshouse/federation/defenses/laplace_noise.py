"""Add independent Laplace noise to every entry.

Source: Zhu et al. 2019, arXiv:1906.08935, section 5.1 (as a defence against inversion); Dwork et al. 2006,
"Calibrating Noise to Sensitivity in Private Data Analysis" (the distribution). Without a bound on the
update it guarantees nothing.
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
class LaplaceNoise:
    """Every entry plus Laplace(0, scale), whose standard deviation is √2·scale.

    Args:
        scale: mean absolute noise, in units of the update; >= 0.
    """

    card: ClassVar[Card] = Card(
        summary="adds random (Laplace) noise to every number that is sent; no guarantee",
        source="Zhu et al. 2019, arXiv:1906.08935",
    )
    place: ClassVar[Literal["update"]] = "update"

    scale: float

    def __post_init__(self) -> None:
        require(
            "laplace_noise",
            0 <= self.scale < math.inf,
            needs="a finite scale >= 0",
            fix="try 0.1",
            scale=self.scale,
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "laplace_noise")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A noisy copy. The difference of two exponentials is Laplace, and never infinite."""
        accept(update, name="laplace_noise", kinds=ALL)
        noisy = {}
        for name, t in update.tensors.items():
            generator = rng.child(name).torch(t.device)
            up = torch.empty_like(t).exponential_(generator=generator)
            down = torch.empty_like(t).exponential_(generator=generator)
            noisy[name] = t + self.scale * (up - down)
        return dataclasses.replace(update, tensors=noisy)

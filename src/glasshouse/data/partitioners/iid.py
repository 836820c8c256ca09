"""Every client draws from the same distribution."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.data.partition import Demand
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Iid:
    """A random permutation in equal parts; the first clients get one more image of a remainder."""

    card: ClassVar[Card] = Card(summary="images dealt at random, in equal numbers")
    demand: ClassVar[Demand] = Demand()

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """One index tensor per client."""
        order = torch.randperm(len(labels), generator=rng.torch())
        return tuple(part.clone() for part in torch.tensor_split(order, clients))

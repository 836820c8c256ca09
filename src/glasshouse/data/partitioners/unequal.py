"""Clients that draw from the same distribution and differ in how much they have."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from glasshouse.data.partition import Demand
from glasshouse.limits import Fix, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Unequal:
    """A random permutation in parts whose sizes grow in equal steps; which client has which size is drawn.

    Args:
        ratio: examples of the largest client for one of the smallest.
    """

    card: ClassVar[Card] = Card(summary="images dealt at random; sizes of clients grow in equal steps")
    demand: ClassVar[Demand] = Demand()

    ratio: Annotated[float, Ge(1), Fix("set data.ratio")] = 3.0

    def __post_init__(self) -> None:
        check_ranges(self, "partition 'unequal'")

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """One index tensor per client."""
        draws = rng.torch()
        order = torch.randperm(len(labels), generator=draws)
        shares = np.cumsum(np.linspace(1, self.ratio, clients))
        ends = np.rint(shares / shares[-1] * len(labels)).astype(int).tolist()
        parts = [part.clone() for part in torch.tensor_split(order, ends[:-1])]
        return tuple(parts[place] for place in torch.randperm(clients, generator=draws).tolist())

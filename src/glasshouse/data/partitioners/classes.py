"""Every class belongs to one client, as in face recognition across institutions."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.data.partition import Demand
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Classes:
    """Whole classes at random, equally many per client; the first clients get one more of a remainder."""

    card: ClassVar[Card] = Card(
        summary="whole classes dealt at random", source="Takahashi et al. 2023, Breaching FedMD, CVPR"
    )
    demand: ClassVar[Demand] = Demand(whole_classes=True)

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """One index tensor per client; empty for clients beyond the number of classes."""
        present = torch.tensor(sorted(set(labels.tolist())))
        order = present[torch.randperm(len(present), generator=rng.torch())]
        return tuple(
            torch.isin(labels, own).nonzero().squeeze(1) for own in torch.tensor_split(order, clients)
        )

"""Train on a fresh random subset of the client's data in every round.

Source: Kerkouche et al. 2023, "Client-specific Property Inference against Secure Aggregation in Federated
Learning", arXiv:2303.03908, names it among the countermeasures in its discussion: an update then reveals less
about the client's data. It slows convergence where clients are small.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import nn

from glasshouse.federation.defenses.base import NamedDefense
from glasshouse.interfaces import Trainer
from glasshouse.limits import Fix, Fraction
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Trained


@final
@dataclass(frozen=True, kw_only=True)
class Subsample(NamedDefense):
    """Each round uses ``ceil(share * n)`` of the client's n examples, sampled without replacement.

    The client's weight remains that of all its data. List it after ``dp_sgd`` if both are used.

    Args:
        share: part of the client's data used in a round, in (0, 1].
    """

    card: ClassVar[Card] = Card(
        summary="train on a fresh random part of the client's data in every round",
        source="Kerkouche et al. 2023, arXiv:2303.03908",
    )
    name: ClassVar[str] = "subsample"
    place: ClassVar[Literal["local"]] = "local"

    share: Annotated[Fraction, Fix("try 0.5")]

    def local(self, train: Trainer) -> Trainer:
        """``train`` on a subset of the data."""
        return SubsampledTraining(inner=train, share=self.share)


@final
@dataclass(frozen=True, kw_only=True)
class SubsampledTraining:
    """``inner`` on a random subset of the data. ``order`` still refers to rows of all the client's data."""

    inner: Trainer
    share: float

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Draw, then train."""
        count = math.ceil(self.share * len(data) - 1e-9)
        rows = torch.randperm(len(data), generator=rng.child("subsample").torch())[:count].sort().values
        trained = self.inner(model, data.pick(rows), rng=rng, ascend=ascend)
        return dataclasses.replace(trained, order=tuple(rows[step] for step in trained.order))

"""Canaries: examples or clients crafted for an audit, each included at random, independently.

A canary is the largest contribution that the defence admits, concentrated in one entry of the update. No two
share an entry, so they do not interfere. Source: Steinke, Nasr & Jagielski 2023, arXiv:2305.08846 (random
inclusion); Nasr et al. 2023, arXiv:2302.07956 (one entry: the Dirac canary).
"""

import dataclasses
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.dp_sgd import PrivateTraining
from glasshouse.interfaces import Trainer
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Trained


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClientCanary:
    """A behaviour: instead of training, send ``size`` in one entry, or nothing at all.

    Attributes:
        place: index of the entry, over all tensors of the update in their order.
        size: value of the entry; 0: this canary is excluded.
    """

    place: int
    size: float

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The trainer that sends the canary.

        Raises:
            Inapplicable: clients send whole models or logits, or a defence acts inside training.
        """
        del round, rng
        if not isinstance(train, LocalTraining) or train.kind not in ("gradient", "delta"):
            raise Inapplicable(
                "canary clients",
                needs="gradients or changes of parameters, and no defence inside local training",
                got=type(train).__name__,
                fix='set unit = "example" under dp_sgd',
            )

        def send(model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
            del data, rng, ascend
            tensors = {name: torch.zeros_like(p) for name, p in train.parameters(model).items()}
            if self.size:
                flat = torch.cat([t.flatten() for t in tensors.values()])
                flat[self.place] = self.size
                parts = torch.split(flat, [t.numel() for t in tensors.values()])
                tensors = {name: p.view_as(t) for (name, t), p in zip(tensors.items(), parts, strict=True)}
            return Trained(tensors=tensors, kind=train.kind, steps=1, order=(torch.zeros(1).long(),))

        return send


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleCanaries:
    """A behaviour: train as DP-SGD does, with canaries among the examples.

    Attributes:
        places: indices of the entries of the included canaries.
    """

    places: Tensor

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The same trainer with the canaries.

        Raises:
            Inapplicable: training does not clip and noise each example's gradient.
        """
        del round, rng
        if not isinstance(train, PrivateTraining):
            raise Inapplicable(
                "canary examples",
                needs="a defence that forms each example's gradient (dp_sgd)",
                got=type(train).__name__,
                fix='add dp_sgd, or set unit = "client"',
            )
        return dataclasses.replace(train, canaries=self.places)

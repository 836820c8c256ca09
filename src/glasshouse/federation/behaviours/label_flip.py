"""Train on wrong labels: data poisoning.

Source: Tolpegin et al. 2020, arXiv:2007.08432 (label flipping by malicious participants).
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.federation.behaviours.base import NamedBehaviour
from glasshouse.interfaces import Trainer
from glasshouse.limits import Count, Natural
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Trained


@final
@dataclass(frozen=True, kw_only=True)
class LabelFlip(NamedBehaviour):
    """Every label y becomes ``to``, or y + ``shift`` modulo the number of classes.

    Args:
        shift: added to the label, >= 1; unused if ``to`` is given.
        to: the label given to all examples; None: shift labels instead.
    """

    card: ClassVar[Card] = Card(
        summary="train on shifted labels, or on one label for all",
        source="Tolpegin et al. 2020, arXiv:2007.08432",
    )
    name: ClassVar[str] = "label_flip"

    shift: Count = 1
    to: Natural | None = None

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The trainer on wrong labels; the same in every round."""
        del round, rng  # always the same
        return MislabellingTrainer(inner=train, flip=self)

    def flipped(self, labels: Tensor, *, classes: int) -> Tensor:
        """The wrong labels.

        Raises:
            BadValue: there is no class ``to``, or the shift leaves every label unchanged.
        """
        if (self.to is not None and self.to >= classes) or (self.to is None and self.shift % classes == 0):
            raise BadValue(
                "behaviour 'label_flip'",
                needs=f"to < {classes}, or a shift that is no multiple of {classes}",
                got=f"to = {self.to}, shift = {self.shift}",
                fix="choose a class that the model has",
            )
        if self.to is not None:
            return torch.full_like(labels, self.to)
        return (labels + self.shift) % classes


@final
@dataclass(frozen=True, kw_only=True)
class MislabellingTrainer:
    """``inner`` on wrong labels."""

    inner: Trainer
    flip: LabelFlip

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Relabel a copy of the data, then train."""
        model.eval()
        with torch.no_grad():
            classes = model(data.inputs[:1]).shape[1]
        labels = self.flip.flipped(data.labels, classes=classes)
        return self.inner(model, Batch(inputs=data.inputs, labels=labels), rng=rng, ascend=ascend)

"""Inspection in both modes of a model: one that is harmless in training mode may leak in evaluation mode.

Batch normalisation with batch statistics shifts the inputs of later layers, so that thresholds that a server
set there miss; with the statistics sent with the model they hit. The server knows which mode the clients use.
The guard tries both.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from glasshouse.guard.behaviour.inspect import (
    LONGER,
    HonestRange,
    inspect_behaviour,
    learn_honest_range,
)
from glasshouse.wire import Inspection

TRAINING, EVALUATION = "train", "eval"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HonestRanges:
    """Ranges of honest models, by mode.

    Attributes:
        known: for fresh and briefly trained models.
        learn: measures the range of models that are trained longer, in a mode.
    """

    known: Mapping[str, HonestRange]
    learn: Callable[[str], HonestRange]
    _learnt: dict[str, HonestRange] = field(default_factory=dict)

    def longer(self, mode: str) -> HonestRange:
        """The range of models that are trained longer; measured once per mode."""
        if mode not in self._learnt:
            self._learnt[mode] = self.learn(mode)
        return self._learnt[mode]


def modes_of(model: nn.Module) -> tuple[str, ...]:
    """The modes in which ``model`` may behave differently; only training mode if it has none."""
    two = any(isinstance(part, (_NormBase, _DropoutNd)) for part in model.modules())
    return (TRAINING, EVALUATION) if two else (TRAINING,)


def learn_honest_ranges(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int) -> HonestRanges:
    """What :func:`~glasshouse.guard.behaviour.inspect.learn_honest_range` learns, in each mode.

    Args:
        model: as there; not modified.
        inputs: as there.
        labels: as there.
        batch: as there.
    """
    own = copy.deepcopy(model)
    return HonestRanges(
        known={
            mode: learn_honest_range(in_mode(own, mode), inputs, labels, batch=batch)
            for mode in modes_of(model)
        },
        learn=partial(_learn_longer, own, inputs, labels, batch),
    )


def _learn_longer(model: nn.Module, inputs: Tensor, labels: Tensor, batch: int, mode: str) -> HonestRange:
    return learn_honest_range(in_mode(model, mode), inputs, labels, batch=batch, steps=LONGER)


def inspect_each_mode(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    honest: HonestRanges,
    others: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Inspection]:
    """What :func:`~glasshouse.guard.behaviour.inspect.inspect_behaviour` finds, by mode, training first.

    Args:
        model: as received; not modified.
        inputs: one batch of the client's own examples.
        labels: their classes.
        honest: from :func:`learn_honest_ranges`.
        others: as in :func:`~glasshouse.guard.behaviour.inspect.inspect_behaviour`.
    """
    return {
        mode: inspect_behaviour(
            in_mode(model, mode),
            inputs,
            labels,
            honest=known,
            longer=partial(honest.longer, mode),
            others=others,
        )
        for mode, known in honest.known.items()
    }


def inspect_in_modes(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    honest: HonestRanges,
    others: tuple[Tensor, Tensor] | None = None,
) -> Inspection:
    """What :func:`~glasshouse.guard.behaviour.inspect.inspect_behaviour` finds in any mode.

    Args:
        model: as in :func:`inspect_each_mode`.
        inputs: as there.
        labels: as there.
        honest: as there.
        others: as there.

    Returns:
        The inspection of the first mode that has findings, else that of training.
    """
    every = list(inspect_each_mode(model, inputs, labels, honest=honest, others=others).values())
    return next((one for one in every if one.findings), every[0])


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """A copy of ``model`` in one of its modes."""
    return copy.deepcopy(model).train(mode == TRAINING)

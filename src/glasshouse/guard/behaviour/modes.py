"""A model in both of its modes: what is harmless in training may leak where statistics are frozen.

Batch normalisation by the batch moves what enters the layers behind it, so that thresholds that a server
set there are off; by the statistics that came with the model it does not. The server knows which of the two
the clients use. The guard tries both.
"""

import copy
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from glasshouse.guard.behaviour.inspect import HonestRange, inspect_behaviour, learn_honest_range
from glasshouse.wire import Inspection

TRAINING, EVALUATION = "train", "eval"
HonestRanges = Mapping[str, HonestRange]
"""By mode."""


def modes_of(model: nn.Module) -> tuple[str, ...]:
    """The modes in which ``model`` may compute different things: training alone where there is one."""
    two = any(isinstance(part, (_NormBase, _DropoutNd)) for part in model.modules())
    return (TRAINING, EVALUATION) if two else (TRAINING,)


def learn_honest_ranges(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int) -> HonestRanges:
    """What :func:`~glasshouse.guard.behaviour.inspect.learn_honest_range` learns, in each mode.

    Args:
        model: as there; it is left as it was.
        inputs: as there.
        labels: as there.
        batch: as there.
    """
    return {
        mode: learn_honest_range(_in_mode(model, mode), inputs, labels, batch=batch)
        for mode in modes_of(model)
    }


def inspect_in_modes(model: nn.Module, inputs: Tensor, labels: Tensor, *, honest: HonestRanges) -> Inspection:
    """What :func:`~glasshouse.guard.behaviour.inspect.inspect_behaviour` finds in any mode.

    Args:
        model: as received; it is left as it was.
        inputs: one batch of the client's own examples.
        labels: their classes.
        honest: from :func:`learn_honest_ranges`.

    Returns:
        The inspection of the first mode that has findings, else that of training.
    """
    every = [
        inspect_behaviour(_in_mode(model, mode), inputs, labels, honest=known)
        for mode, known in honest.items()
    ]
    return next((one for one in every if one.findings), every[0])


def _in_mode(model: nn.Module, mode: str) -> nn.Module:
    return copy.deepcopy(model).train(mode == TRAINING)

"""Does an example pass through a model alone, and the same way in training and in evaluation?

What is said of single examples holds only where the others of a batch do not change what one of them adds.
"""

import copy
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from glasshouse.guard.layers.trace import left_as_it_was
from glasshouse.guard.pursuit.examples import Own

_SAME: Final = 1e-3  # of the largest output
_TRIED: Final = 16


def depends_on_others(model: nn.Module, own: Own) -> bool:
    """Whether outputs for an example change with the others in the batch, batch normalisation aside.

    A model that draws random numbers, or normalises with a batch in training, is tried in evaluation mode.
    """
    some, work = own[:_TRIED].inputs, model
    if any(isinstance(part, _NormBase) for part in model.modules()):
        work = copy.deepcopy(model).eval()
        if any(isinstance(p, _NormBase) and p.running_mean is None for p in work.modules()):
            return False  # it always normalises with the batch
    whole = _outputs(work, some, seed=0)
    if work.training and not _alike(whole, _outputs(work, some, seed=1)):
        work = copy.deepcopy(model).eval()
        whole = _outputs(work, some, seed=0)
    parts = [_outputs(work, one, seed=0) for one in torch.split(some, _TRIED // 4)]
    if whole is None or any(part is None or part.ndim == 0 for part in parts):
        return False
    joined = torch.cat([part for part in parts if part is not None])
    return not _alike(joined, whole)


def differs_in_evaluation(model: nn.Module, own: Own) -> bool:
    """Whether a module without statistics and dropout of torch's own does something else in evaluation."""
    some, work = own[:_TRIED].inputs, copy.deepcopy(model).train()
    for part in work.modules():
        if isinstance(part, _DropoutNd | _NormBase):
            part.eval()
    first = _outputs(work, some, seed=0)
    return not _alike(first, _outputs(work.eval(), some, seed=0))


def _outputs(model: nn.Module, inputs: Tensor, *, seed: int) -> Tensor | None:
    with left_as_it_was(model), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        outputs = model(inputs)
    return outputs if isinstance(outputs, Tensor) else None


def _alike(first: Tensor | None, other: Tensor | None) -> bool:
    if first is None or other is None:
        return True
    if first.shape != other.shape:
        return False
    apart = (first - other).abs().amax() if first.numel() else first.new_zeros(())
    return not bool(apart > _SAME * first.abs().amax().clamp_min(1e-12))

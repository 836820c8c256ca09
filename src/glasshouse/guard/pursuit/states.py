"""The states in which a model is judged: training and evaluation, as it came and after some own steps.

A factor of zero behind a layer keeps every gradient from it, so that it gives nothing away when it arrives.
The first local step moves the factor, and the next ones send the layer's rows. Where such a read-out stays
open, a few steps show it. One that closes again has to guess how many are taken here: their number is drawn
from the client's own examples, which a server does not know.

What is said of single examples holds only where the others of a batch do not change what one of them adds.
"""

import copy
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from glasshouse.cache import digest
from glasshouse.guard.layers.trace import left_as_it_was
from glasshouse.guard.pursuit.examples import Own, train_loss
from glasshouse.guard.pursuit.limits import AHEAD, LONGEST
from glasshouse.interfaces.modes import find_draws, put_off

TRAINING, EVALUATION = "train", "eval"
BATCH: Final = 32
"""Examples of a step."""
RATE: Final = 0.05
"""Rate of the steps. Crafted layers open at any rate: 0.01, 0.05 and 0.1 showed the same of three of them."""
_SAME: Final = 1e-3  # of the largest output
_TRIED: Final = 16


def modes_of(model: nn.Module, own: Own | None = None) -> tuple[str, ...]:
    """The modes in which ``model`` behaves differently; only training mode if it has none."""
    two = any(isinstance(part, (_NormBase, _DropoutNd)) for part in model.modules())
    two = two or (own is not None and differs_in_evaluation(model, own))
    return (TRAINING, EVALUATION) if two else (TRAINING,)


def in_mode(model: nn.Module, mode: str, inputs: Tensor) -> nn.Module:
    """A copy of ``model`` in one of its modes; dropout is off in both, as its draws are nobody's design.

    Args:
        model: left as it is.
        mode: training or evaluation.
        inputs: some examples, (B, ...), on which it is tried whether its own code draws, too.
    """
    work = copy.deepcopy(model)
    work.train(mode == TRAINING)  # somebody's own method may return nothing
    for part in work.modules():
        if isinstance(part, _DropoutNd):
            part.eval()
    put_off(work, find_draws(work, inputs[:2]))
    return work


def steps_ahead(own: Own) -> int:
    """How many steps are taken, drawn from the examples: the same for the same ones.

    Examples:
        >>> own = Own(inputs=torch.zeros(4, 2), targets=torch.zeros(4, dtype=torch.long))
        >>> AHEAD[0] <= steps_ahead(own) <= AHEAD[1]
        True
    """
    fewest, most = AHEAD
    return fewest + int(digest(own.inputs), 16) % (most - fewest + 1)


def train_ahead(model: nn.Module, own: Own) -> nn.Module | None:
    """A copy of ``model`` after :func:`steps_ahead` steps of plain SGD on ``own``, in its mode.

    Steps that would move the weights by more than ``LONGEST`` of their length are cut to that, so that a
    model does not hide by gradients so large that it falls apart.

    Returns:
        The copy; None if a gradient is not finite, so that nobody can train the model.
    """
    ahead = copy.deepcopy(model)
    weights = [p for p in ahead.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps_ahead(own)):
        rows = torch.randint(len(own), (BATCH,), generator=generator)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            train_loss(ahead, own[rows]), weights, allow_unused=True
        )
        step = _length([g for g in gradients if g is not None])
        if not bool(step.isfinite()):
            return None
        longest = LONGEST * _length([p.detach() for p in weights])
        rate = min(RATE, float(longest / step.clamp_min(1e-30)))
        with torch.no_grad():
            for p, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    p.sub_(gradient, alpha=rate)
    return ahead


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


def _length(tensors: list[Tensor]) -> Tensor:
    return torch.stack([t.double().square().sum() for t in tensors] or [torch.zeros(())]).sum().sqrt()

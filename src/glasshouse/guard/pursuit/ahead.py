"""A received model as the client's own training leaves it after some steps: a read-out may open only then.

A factor of zero behind a layer keeps every gradient from it, so that it gives nothing away when it arrives.
The first local step moves the factor, and the next ones send the layer's rows. Where such a read-out stays
open, a few steps show it. One that closes again has to guess how many are taken here: their number is drawn
from the client's own examples, which a server does not know.
"""

import copy
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from glasshouse.cache import digest
from glasshouse.guard.pursuit.examples import Own, train_loss
from glasshouse.guard.pursuit.limits import AHEAD, LONGEST

BATCH: Final = 32
"""Examples of a step."""
RATE: Final = 0.05
"""Rate of the steps. Crafted layers open at any rate: 0.01, 0.05 and 0.1 showed the same of three of them."""


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


def _length(tensors: list[Tensor]) -> Tensor:
    return torch.stack([t.double().square().sum() for t in tensors] or [torch.zeros(())]).sum().sqrt()

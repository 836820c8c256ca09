"""Gradients of each example: of tensors of which no layer's pass says what the examples add to them."""

import copy
import warnings
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from glasshouse.guard.pursuit.examples import Own, goals
from glasshouse.guard.pursuit.rows import Rows, as_rows

TOGETHER: Final = 64
"""Examples in one pass: statistics of batch normalisation are those of a batch."""
_TINY: Final = torch.finfo(torch.float).tiny


ODD: Final = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
"""What torch raises where a model cannot be differentiated example by example."""


class Goal(nn.Module):
    """A model as a function from one example to its goal."""

    def __init__(self, model: nn.Module, balanced: bool) -> None:
        super().__init__()
        self.model, self.balanced = model, balanced

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        one = Own(inputs=inputs[None], targets=targets[None])
        return goals(self.model, one, balanced=self.balanced)[0]


def each_gradient(goal: Goal, some: Own, names: Sequence[str]) -> dict[str, Tensor]:
    """The gradient of each example's goal, (b, ...), by name: all at once, or one by one where that fails."""
    work = copy.deepcopy(goal)  # a call that fails leaves shared tensors in disorder
    known = {name: p.detach() for name, p in work.named_parameters()}
    chosen = {f"model.{name}": known[f"model.{name}"] for name in names}
    rest = {name: t for name, t in [*known.items(), *work.named_buffers()] if name not in chosen}

    def of_one(tensors: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = functional_call(work, {**rest, **tensors}, (inputs, targets))
        return value

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            gradients = vmap(grad(of_one), in_dims=(None, 0, 0))(chosen, some.inputs, some.targets)
        return {name: gradients[f"model.{name}"].detach() for name in names}
    except ODD:
        return _one_by_one(goal, some, names)


def _one_by_one(goal: Goal, some: Own, names: Sequence[str]) -> dict[str, Tensor]:
    weights = [goal.model.get_parameter(name) for name in names]
    rows: list[list[Tensor]] = []
    for inputs, targets in zip(some.inputs, some.targets, strict=True):
        found: Sequence[Tensor | None] = torch.autograd.grad(
            goal(inputs, targets), weights, allow_unused=True
        )
        rows.append([torch.zeros_like(p) if g is None else g for g, p in zip(found, weights, strict=True)])
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def with_batch_statistics(model: nn.Module, own: Own) -> nn.Module:
    """A copy in which one example passes as in its mode: normalised with a batch's own statistics."""
    work = copy.deepcopy(model)
    norms = [part for part in work.modules() if isinstance(part, _NormBase) and part.training]
    if norms:
        for part in norms:
            part.momentum, part.track_running_stats = 1.0, True
            if getattr(part, "running_mean", None) is None:  # batch statistics alone
                part.running_mean = torch.zeros(part.num_features, device=own.inputs.device)
                part.running_var = torch.ones(part.num_features, device=own.inputs.device)
                part.num_batches_tracked = torch.zeros((), dtype=torch.long)
        with torch.no_grad():
            work(own.inputs[:TOGETHER])
    return work.eval()


def project(gradients: Tensor, ways: Sequence[Rows]) -> tuple[Tensor, ...]:
    """Lengths (b,), and for each way to count rows pulls (b, R), sizes (b, R), directions (b, n)."""
    parts: list[Tensor] = [torch.linalg.vector_norm(gradients.flatten(1), dim=1)]
    for axes in ways:
        rows = torch.stack([as_rows(one, axes) for one in gradients])
        mixture = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
        along = F.normalize(mixture @ rows, dim=1, eps=_TINY)
        parts += [
            torch.einsum("bmn,bn->bm", rows, along),
            torch.linalg.vector_norm(rows, dim=2),
            along,
        ]
    return tuple(parts)

"""One candidate in pieces: its gradient, and the gradient of a loss of that, from a few images at a time.

Where examples do not influence each other, the update is the mean of gradients of single examples. So

- g(x) is a sum over pieces of the batch, none of which is kept;
- of a loss L(g(x)), dL / dx_m = d <g_m(x_m), v> / dx_m with v = dL / dg: a vector-Jacobian product per piece.

Memory is that of one piece instead of the batch's; each piece runs forward and backward once more. Equal to
the unsplit gradient up to the order of sums.

Shape letters: R candidates, B images of one, C channels, H and W pixels, P parameter tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from glasshouse.attacks.parts.matching.ghost_layers import explicit
from glasshouse.attacks.parts.matching.targets import Moments, moments
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.examples import Batch
from glasshouse.federation.defenses.independence import check_independence
from glasshouse.interfaces import task_of

ROOM: Final = 0.45
"""Share of the memory of one graph that a piece may keep: differentiating it takes as much again (2.1 times
for a ResNet-18 at 224 pixels: benchmarks/split.py)."""


def mixed_by(model: nn.Module, inputs: Tensor, targets: Tensor) -> str:
    """What makes these examples (B, ...) influence each other, in words; empty: none does when tried.

    Names what :func:`joined_by` knows; a network's own computations over the batch are found by running it.
    """
    if reason := joined_by(model):
        return reason
    batch = Batch(inputs=inputs.detach(), labels=targets.detach())
    try:
        check_independence(model, batch, subject="a candidate in pieces", sizes=(2, len(batch)))
    except Inapplicable as error:
        return error.got
    return ""


def joined_by(model: nn.Module) -> str:
    """The layer or loss that is known to join the examples of a batch, in words; empty: none is.

    Examples:
        >>> joined_by(nn.BatchNorm2d(4).eval()), joined_by(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        ('', "'1' (BatchNorm1d) normalises with the statistics of the batch")
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            return f"'{name}' ({type(module).__name__}) normalises with the statistics of the batch"
    if not task_of(model).separable:
        return f"the loss of {task_of(model)!r} weights examples by their batch"
    return ""


@final
class Split:
    """Moments of candidates whose batch is split; for a model whose examples do not influence each other.

    Args:
        model: in the mode in which clients train it, without dropout.
        received: parameters before training, by name.
        targets: g* of every victim, by parameter name.
        masks: for every victim the entries that count; see ``Ghost``.
        size: images of a piece.

    Raises:
        BadValue: examples influence each other; says by which layer.
    """

    def __init__(
        self,
        model: nn.Module,
        received: Mapping[str, Tensor],
        targets: Sequence[Mapping[str, Tensor]],
        masks: Sequence[Mapping[str, Tensor]],
        *,
        size: int,
    ) -> None:
        if reason := joined_by(model):
            raise BadValue(
                "a candidate in pieces",
                needs="examples that do not influence each other",
                got=reason,
                fix="match it whole, on a machine with more memory, or match a smaller batch",
            )
        self._pieces = Pieces(model, {name: received[name].detach() for name in targets[0]}, size=size)
        self._against = [
            {name: (t[None], mask[name].expand_as(t) if name in mask else None) for name, t in target.items()}
            for target, mask in zip(targets, masks, strict=True)
        ]

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        create_graph: bool = True,
        victims: Sequence[int] | None = None,
    ) -> Moments:
        """Moments of R candidate batches; see ``Ghost.__call__``."""
        each, count = [], len(self._against)
        whose = victims or [victim for victim in range(count) for _ in range(len(inputs) // count)]
        with torch.set_grad_enabled(create_graph):
            for x, y, victim in zip(inputs, targets, whose, strict=True):
                update = self._pieces.gradient(x, y)
                against = self._against[victim]
                each.append(moments([explicit(update[n][None], *against[n], exact=True) for n in against]))
        return Moments(
            dot=torch.cat([m.dot for m in each], 1),
            square=torch.cat([m.square for m in each], 1),
            gap=torch.cat([m.gap for m in each if m.gap is not None], 1),
        )


@final
class Pieces:
    """The gradient of the mean loss over a batch, computed and differentiated piece by piece.

    Args:
        model: whose examples do not influence each other.
        parameters: those that are sent, by name.
        size: images of a piece.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor], *, size: int) -> None:
        self._model, self._task, self.size = model, task_of(model), size
        self._parameters = {name: t.detach().clone().requires_grad_() for name, t in parameters.items()}

    def gradient(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The gradient by parameter name, differentiable once in inputs and in targets that are real."""
        sums = _Gradient.apply(self, inputs, targets)  # type: ignore[no-untyped-call]  # torch's own
        return dict(zip(self._parameters, sums, strict=True))

    def share(self, inputs: Tensor, targets: Tensor, batch: int, *, create_graph: bool) -> tuple[Tensor, ...]:
        """What a piece contributes to the gradient of the mean over ``batch`` images."""
        state = {**dict(self._model.named_buffers()), **self._parameters}
        outputs = functional_call(self._model, state, (inputs,))
        loss = self._task.loss(outputs, targets, inputs, reduction="sum") / batch
        return torch.autograd.grad(
            loss,
            list(self._parameters.values()),
            create_graph=create_graph,
            allow_unused=True,
            materialize_grads=True,
        )

    def bytes_of_one(self, inputs: Tensor, targets: Tensor) -> int:
        """Bytes that the graph of one image's gradient keeps, without the weights themselves."""
        saved: dict[int, int] = {}
        weights = {t.untyped_storage().data_ptr() for t in self._parameters.values()}

        def weigh(t: Tensor) -> Tensor:
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        kept = torch.autograd.graph.saved_tensors_hooks(weigh, lambda t: t)
        with torch.enable_grad(), kept:
            one = self.share(inputs[:1].detach().requires_grad_(), targets[:1].detach(), 1, create_graph=True)
        count = sum(size for place, size in saved.items() if place not in weights)
        del one
        return count


class _Gradient(Function):
    @staticmethod
    def forward(ctx: Any, pieces: Pieces, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        ctx.pieces = pieces
        ctx.save_for_backward(inputs, targets)
        sums: list[Tensor] = []
        parts = zip(torch.split(inputs, pieces.size), torch.split(targets, pieces.size), strict=True)
        for x, y in parts:
            with torch.enable_grad():
                share = pieces.share(x.detach(), y.detach(), len(inputs), create_graph=False)
            sums = (
                [total.add_(part) for total, part in zip(sums, share, strict=True)] if sums else list(share)
            )
        return tuple(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, Tensor, Tensor | None]:
        inputs, targets = ctx.saved_tensors
        pieces, searched = ctx.pieces, ctx.needs_input_grad[2]
        by_inputs: list[Tensor] = []
        by_targets: list[Tensor] = []
        parts = zip(torch.split(inputs, pieces.size), torch.split(targets, pieces.size), strict=True)
        for x, y in parts:
            with torch.enable_grad():
                x, y = x.detach().requires_grad_(), y.detach().requires_grad_(searched)
                share = pieces.share(x, y, len(inputs), create_graph=True)
                wanted = [x, y] if searched else [x]
                found = torch.autograd.grad(share, wanted, slopes, allow_unused=True, materialize_grads=True)
            by_inputs.append(found[0])
            by_targets += found[1:]
        return None, torch.cat(by_inputs), torch.cat(by_targets) if searched else None

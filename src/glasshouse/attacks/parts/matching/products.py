"""Inner products and squared norms of gradients, with derivatives written out.

They are what matching differentiates, once, in tensors as large as the network's weights. Autograd would pass
over these several times, to multiply, to transpose and to add up what arrives from each use.

Shape letters: R restarts, V victims, whose targets differ; the R restarts are R / V of each victim, in order.
E entries of a gradient; P positions that share one weight gradient, O outputs, D inputs of one output.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def products_of_gradients(gradient: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """<g, g*> and |g|² of formed gradients.

    Args:
        gradient: g of R restarts, (V, R / V, E).
        target: g* of V victims, (V, 1, E).

    Returns:
        Both (V, R / V).
    """
    dot, square = _OfGradients.apply(gradient, target)  # type: ignore[no-untyped-call]  # torch's own
    return dot, square


def products_of_pairs(left: Tensor, right: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """<g, g*> and |g|² of gradients ``g = left rightᵀ`` that are not formed.

    Args:
        left: (R, O, P).
        right: (R, D, P), of the same precision.
        target: g*, (V, O, D), of that precision, too.

    Returns:
        Both (R,), summed in float32 if the arguments are in bfloat16.
    """
    dot, square = _OfPairs.apply(left, right, target)  # type: ignore[no-untyped-call]  # torch's own
    return dot, square


@final
class _OfGradients(Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(gradient, target)
        with torch.autocast(gradient.device.type, enabled=False):
            dot = (gradient @ target.mT)[..., 0]
        return dot, gradient.square().sum(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_dot: Tensor, on_square: Tensor) -> tuple[Tensor, None]:
        gradient, target = ctx.saved_tensors
        slope = gradient * (2 * on_square)[..., None]
        return slope.addcmul_(target.expand_as(slope), on_dot[..., None]), None


@final
class _OfPairs(Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.float32 if left.dtype == torch.bfloat16 else left.dtype
        lefts, rights = left.mT @ left, right.mT @ right  # (R, P, P)
        # One product per victim over all of its restarts: a broadcast target would be copied for each.
        through = _apart(target @ _side_by_side(right, len(target)), len(left))  # (R, O, P)
        ctx.save_for_backward(left, right, target, lefts, rights, through)
        square = (lefts.to(wide) * rights.to(wide)).sum((1, 2))
        return (through * left).to(wide).sum((1, 2)), square

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_dot: Tensor, on_square: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right, target, lefts, rights, through = ctx.saved_tensors
        dot = on_dot.to(left.dtype)[:, None, None]
        square = (2 * on_square).to(left.dtype)[:, None, None]
        # target.mT @ left would copy the transposed target; the transposed product does not.
        back = _side_by_side(left * dot, len(target)).mT @ target  # (V, R / V * P, D)
        on_left = torch.baddbmm(through * dot, left, rights * square)
        on_right = torch.baddbmm(back.reshape(len(right), -1, right.shape[1]).mT, right, lefts * square)
        return on_left, on_right, None


def _side_by_side(each: Tensor, victims: int) -> Tensor:
    """(R, X, P) → (V, X, R / V * P): the restarts of a victim beside each other."""
    count, size, positions = each.shape
    if count == victims:
        return each
    apart = each.reshape(victims, count // victims, size, positions)
    return apart.transpose(1, 2).reshape(victims, size, -1)


def _apart(joined: Tensor, count: int) -> Tensor:
    """The inverse of :func:`_side_by_side`."""
    victims, size = joined.shape[:2]
    if count == victims:
        return joined
    parts = joined.reshape(victims, size, count // victims, -1).transpose(1, 2)
    return parts.reshape(count, size, -1)

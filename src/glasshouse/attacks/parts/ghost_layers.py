"""The formulas behind ghost norms, layer by layer: input and output gradient in, moments out.

Shape letters: R restarts, B images of one restart, N = R * B, P positions that share one weight gradient
(B images times L output positions), O outputs, D inputs of one output (for a convolution: channels times
kernel area). All functions are differentiable in their arguments.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Form = Literal["auto", "explicit", "pairs"]
Triple = tuple[Tensor, Tensor, Tensor | None]
"""dot (R,), square (R,) and gap (R,) or None of one parameter tensor; see ``ghost.Moments``."""


def refusal(module: nn.Module) -> str | None:
    """Why this layer has no ghost norm here, in words; None: it has."""
    if isinstance(module, nn.Conv2d):
        odd = module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str)
        return "is grouped, or not padded with a fixed number of zeros" if odd else None
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        coupled = module.training or not module.track_running_stats
        return "mixes the examples of a batch (train mode)" if coupled else None
    if isinstance(module, (nn.Linear, nn.GroupNorm, nn.LayerNorm)):
        return None
    return "is of a kind without a ghost norm"


def explicit(gradient: Tensor, target: Tensor, mask: Tensor | None, *, exact: bool) -> Triple:
    """Moments of a gradient that was formed, (R, ...) against (...). ``exact`` fills the gap."""
    gradient, target = gradient.flatten(1).to(target.dtype), target.flatten()
    if mask is not None:
        gradient = gradient * mask.flatten()
    with torch.autocast(gradient.device.type, enabled=False):
        dot = gradient @ target
    square = gradient.square().sum(1)
    return dot, square, (gradient - target).square().sum(1) if exact else None


def weight(
    module: nn.Module,
    given: Tensor,
    delta: Tensor,
    *,
    restarts: int,
    target: Tensor,
    mask: Tensor | None,
    form: Form,
) -> Triple:
    """Moments of a linear or convolutional weight, from its input (N, ...) and d loss / d output (N, ...).

    A mask of shape (1, ...) keeps or drops whole columns (inputs) and allows both forms; a full mask only
    the explicit one.
    """
    left, right = rows(module, given, delta, restarts)  # (R, O, P), (R, D, P)
    matrix = target.flatten(1)  # (O, D)
    columns = None
    if mask is not None:
        mask = mask.flatten(1)
        columns, mask = (mask, None) if mask.shape[0] == 1 and matrix.shape[0] != 1 else (None, mask)
    if columns is not None:
        right = right * columns.T
    outputs, inputs, positions = left.shape[1], right.shape[1], left.shape[2]
    cheap = positions * (outputs + inputs) < outputs * inputs
    if mask is not None or form == "explicit" or (form == "auto" and not cheap):
        return explicit(left @ right.mT, matrix, mask, exact=form == "explicit")
    square = _wide((left.mT @ left), matrix) * _wide((right.mT @ right), matrix)  # (R, P, P)
    through = _wide(matrix @ right, matrix) * left  # (R, O, P)
    return through.sum((1, 2)), square.sum((1, 2)), None


def _wide(product: Tensor, like: Tensor) -> Tensor:
    return product.to(like.dtype)


def rows(module: nn.Module, given: Tensor, delta: Tensor, restarts: int) -> tuple[Tensor, Tensor]:
    """(R, O, P) and (R, D, P) whose product over P is the weight gradient (R, O, D)."""
    if isinstance(module, nn.Conv2d):
        patches = F.unfold(given, module.kernel_size, module.dilation, _fixed(module), module.stride)
        return _gather(delta.flatten(2), restarts), _gather(patches, restarts)
    left = delta.reshape(restarts, -1, delta.shape[-1])
    right = given.reshape(restarts, -1, given.shape[-1])
    return left.mT, right.mT


def _fixed(module: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(module.padding, str)  # refusal() has turned it away
    return module.padding


def _gather(tensor: Tensor, restarts: int) -> Tensor:
    """(N, O, L) → (R, O, B * L)."""
    images = tensor.shape[0] // restarts
    if images == 1:
        return tensor
    outputs, positions = tensor.shape[1:]
    return tensor.reshape(restarts, images, outputs, positions).transpose(1, 2).flatten(2)


def bias(module: nn.Module, delta: Tensor, restarts: int) -> Tensor:
    """Gradient of an additive parameter, (R, *its shape)."""
    return _per_restart(module, delta, restarts)


def gain(module: nn.Module, given: Tensor, delta: Tensor, restarts: int) -> Tensor:
    """Gradient of the multiplicative parameter of a normalisation layer, (R, *its shape)."""
    return _per_restart(module, delta * _normalised(module, given), restarts)


def _per_restart(module: nn.Module, values: Tensor, restarts: int) -> Tensor:
    """(N, ...) summed over everything but the restart and the parameter's own dimensions."""
    if isinstance(module, nn.LayerNorm):
        return values.reshape(restarts, -1, *module.normalized_shape).sum(1)
    if isinstance(module, nn.Linear):
        return values.reshape(restarts, -1, values.shape[-1]).sum(1)
    if values.ndim > 2:
        values = values.flatten(2).sum(2)
    return values.reshape(restarts, -1, values.shape[1]).sum(1)


def _normalised(module: nn.Module, given: Tensor) -> Tensor:
    """The layer's output before its own gain and shift, (N, ...)."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(given, module.normalized_shape, None, None, module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(given, module.num_groups, None, None, module.eps)
    assert isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))  # refusal() has turned away the rest
    assert module.running_mean is not None
    assert module.running_var is not None
    shape = (1, -1) + (1,) * (given.ndim - 2)
    inverse = (module.running_var + module.eps).rsqrt()
    return (given - module.running_mean.view(shape)) * inverse.view(shape)

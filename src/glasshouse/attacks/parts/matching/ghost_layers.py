"""The formulas behind ghost norms, per layer type: from a layer's input and output gradient to moments.

Shape letters: R restarts, B images of one restart, N = R * B, P positions that share one weight gradient
(B images times output positions), O outputs, D inputs of one output (for a convolution: channels C times
kernel area), V victims, whose targets differ; the R restarts are R / V of each victim, in order. All
functions are differentiable, once, in input and output gradient.
"""

from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from glasshouse.attacks.parts.matching.fixed import is_ordinary, slopes
from glasshouse.attacks.parts.matching.products import products_of_gradients, products_of_pairs

Form = Literal["auto", "explicit", "pairs"]
Triple = tuple[Tensor, Tensor, Tensor | None]
"""dot (R,), square (R,) and gap (R,) or None of one parameter tensor; see ``ghost.Moments``."""

GROUPED = 128 * 128
"""Up to this many channel pairs a grouped convolution is faster than a loop over restarts (measured, CPU)."""


def refusal(module: nn.Module) -> str | None:
    """The reason why this layer has no ghost norm here, in words; None: it has one."""
    if isinstance(module, nn.Conv2d):
        ordinary = is_ordinary(module)
        return None if ordinary else "is grouped, or not padded with a fixed number of zeros"
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        coupled = module.training or not module.track_running_stats
        return "mixes the examples of a batch (train mode)" if coupled else None
    if isinstance(module, (nn.Linear, nn.GroupNorm, nn.LayerNorm)):
        return None
    return "is of a kind without a ghost norm"


def explicit(gradient: Tensor, target: Tensor, mask: Tensor | None, *, exact: bool) -> Triple:
    """Moments of a formed gradient (R, ...) against targets (V, ...). ``exact`` fills the gap."""
    restarts, victims = len(gradient), len(target)
    mask = None if mask is None else mask.expand_as(target)
    target = target.reshape(victims, 1, -1)  # (V, 1, entries); a number alone has no further dimension
    gradient = gradient.reshape(victims, restarts // victims, -1).to(target.dtype)
    if mask is not None:
        gradient = gradient * mask.reshape(victims, 1, -1)
    dot, square = products_of_gradients(gradient, target)
    gap = (gradient - target).square().sum(2).flatten() if exact else None
    return dot.flatten(), square.flatten(), gap


def forms(target: Tensor, mask: Tensor | None, size: int, *, form: Form) -> bool:
    """Whether the gradient of a weight is formed; else only its moments are computed, by :func:`pairs`.

    ``size``: number of the layer's outputs for one candidate.
    A mask of shape (V, 1, ...) keeps or drops whole columns (inputs) and allows both forms; a full mask
    requires the gradient.
    """
    if form == "explicit" or (mask is not None and mask.shape[1] > 1):
        return True
    _, outputs, inputs = target.flatten(2).shape
    return form == "auto" and size // outputs * (outputs + inputs) >= outputs * inputs


def pairs(
    module: nn.Linear | nn.Conv2d,
    activations: Tensor,
    delta: Tensor,
    *,
    restarts: int,
    target: Tensor,
    mask: Tensor | None,
) -> Triple:
    """Moments of a linear or convolutional weight, from its input (N, ...) and d loss / d output (N, ...).

    The target is in bfloat16 if these products are.
    """
    left, right = rows(module, activations, delta, restarts)  # (R, O, P), (R, D, P)
    if mask is not None:
        each = restarts // len(target)
        right = right * mask.reshape(len(target), -1).repeat_interleave(each, 0)[:, :, None]
    left, right = left.to(target.dtype), right.to(target.dtype)  # autocast leaves some in float32
    dot, square = products_of_pairs(left, right, target.flatten(2))
    return dot, square, None


def rows(
    module: nn.Linear | nn.Conv2d, activations: Tensor, delta: Tensor, restarts: int
) -> tuple[Tensor, Tensor]:
    """(R, O, P) and (R, D, P) whose product over P is the weight gradient (R, O, D)."""
    if isinstance(module, nn.Conv2d):
        patches = F.unfold(activations, module.kernel_size, module.dilation, _fixed(module), module.stride)
        return _gather(delta.flatten(2), restarts), _gather(patches, restarts)
    left = delta.reshape(restarts, -1, delta.shape[-1])
    right = activations.reshape(restarts, -1, activations.shape[-1])
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


def weight_gradient(
    module: nn.Linear | nn.Conv2d, activations: Tensor, delta: Tensor, restarts: int
) -> Tensor:
    """The weight gradient of every restart, (R, *weight.shape)."""
    if isinstance(module, nn.Linear):
        left, right = rows(module, activations, delta, restarts)
        return left @ right.mT
    shape = tuple(module.weight.shape)
    # Restarts per convolution: all in one grouped convolution, or one each.
    parts = restarts if shape[0] * shape[1] <= GROUPED else 1
    geometry = (module.stride, _fixed(module), module.dilation), shape, restarts, parts
    gradient: Tensor = _ConvolutionGradient.apply(activations.to(delta.dtype), delta, geometry)  # type: ignore[no-untyped-call]  # torch's own
    return gradient


@final
class _ConvolutionGradient(Function):
    """Weight gradients of a convolution, one per restart, (R, O, C, kernel), without unfolding patches.

    They and their own derivatives are again convolutions, with R times the channels in R groups; wide layers,
    for which grouped kernels are slow, use a loop over restarts.
    """

    @staticmethod
    def forward(ctx: Any, activations: Tensor, delta: Tensor, geometry: Any) -> Tensor:
        ctx.save_for_backward(activations, delta)
        ctx.geometry = geometry
        options, shape, restarts, parts = geometry
        blank = activations.new_empty(()).expand(parts * shape[0], *shape[1:])
        gradients = [
            slopes(d, x, blank, options, (False, True))[1]
            for x, d in zip(_stack(activations, restarts, parts), _stack(delta, restarts, parts), strict=True)
        ]
        joined = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        return joined.reshape(restarts, *shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        activations, delta = ctx.saved_tensors
        options, shape, restarts, parts = ctx.geometry
        kernels = grad.reshape(-1, parts * shape[0], *shape[1:])
        stride, padding, dilation = options
        pieces = _stack(activations, restarts, parts), _stack(delta, restarts, parts), kernels
        on_activations, on_delta = [], []
        for x, d, k in zip(*pieces, strict=True):
            on_delta.append(F.conv2d(x, k, None, stride, padding, dilation, parts))
            if ctx.needs_input_grad[0]:
                on_activations.append(slopes(d, x, k, options, (True, False))[0])
        first = _unstack(on_activations, activations) if on_activations else None
        return first, _unstack(on_delta, delta), None


def _stack(tensor: Tensor, restarts: int, parts: int) -> Tensor:
    """(N, C, H, W) → (R / parts, B, parts * C, H, W): restarts side by side in the channels."""
    channels, height, width = tensor.shape[1:]
    images = tensor.shape[0] // restarts
    if images == 1:
        return tensor.reshape(restarts // parts, 1, parts * channels, height, width)
    apart = tensor.reshape(restarts // parts, parts, images, channels, height, width)
    return apart.transpose(1, 2).reshape(restarts // parts, images, parts * channels, height, width)


def _unstack(parts: list[Tensor], like: Tensor) -> Tensor:
    """The inverse of :func:`_stack`."""
    count, images = len(parts), parts[0].shape[0]
    joined = torch.stack(parts) if count > 1 else parts[0][None]
    if images == 1:
        return joined.reshape(like.shape)
    apart = joined.reshape(count, images, -1, *like.shape[1:])
    return apart.transpose(1, 2).reshape(like.shape)


def bias(module: nn.Module, delta: Tensor, restarts: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Gradient of an additive parameter, (R, *its shape), summed in ``dtype``."""
    if isinstance(module, nn.LayerNorm):
        return delta.reshape(restarts, -1, *module.normalized_shape).sum(1, dtype=dtype)
    if isinstance(module, nn.Linear):
        return delta.reshape(restarts, -1, delta.shape[-1]).sum(1, dtype=dtype)
    if len(delta) == restarts and delta.ndim == 4:  # one image: no need to reshape
        return delta.sum((2, 3), dtype=dtype)
    return delta.reshape(restarts, len(delta) // restarts, delta.shape[1], -1).sum((1, 3), dtype=dtype)


def gain(module: nn.Module, activations: Tensor, delta: Tensor, restarts: int) -> Tensor:
    """Gradient of the multiplicative parameter of a normalisation layer, (R, *its shape)."""
    return bias(module, delta * _normalize(module, activations), restarts)


def _normalize(module: nn.Module, activations: Tensor) -> Tensor:
    """The layer's output before its own gain and shift, (N, ...)."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(activations, module.normalized_shape, None, None, module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(activations, module.num_groups, None, None, module.eps)
    assert isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))  # refusal() has turned away the rest
    assert module.running_mean is not None
    assert module.running_var is not None
    shape = (1, -1) + (1,) * (activations.ndim - 2)
    inverse = (module.running_var + module.eps).rsqrt()
    return (activations - module.running_mean.view(shape)) * inverse.view(shape)

"""Convolutions with fixed weights, twice differentiable in their input at no cost for the weights.

The double backward of PyTorch's own convolution also computes a gradient of the weights whenever the input
requires one: an eighth of all convolutions in a step of gradient matching, wasted.

Where the weights' own gradient is compared with a target (of a single candidate), it is formed together with
the input's. Each of the two then sends slopes to the same tensors, by convolutions that differ in their
kernels alone: with channels side by side, one convolution adds both up.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


@final
class FixedConv2d(nn.Conv2d):
    """A convolution that is twice differentiable in its input, and not in its weights.

    If the weights require a gradient, they get one, which is differentiable in the input.

    Args:
        like: the convolution to replace: ungrouped, with fixed zero padding; its weights are shared.
    """

    def __init__(self, like: nn.Conv2d) -> None:
        # Any: to mypy these are tuples of any length
        how: tuple[Any, Any, Any, Any] = like.kernel_size, like.stride, like.padding, like.dilation
        super().__init__(like.in_channels, like.out_channels, *how, device="meta")
        self.weight, self.bias = like.weight, like.bias

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        """The convolution of ``input`` (N, C, H, W)."""
        how = self.stride, self.padding, self.dilation
        result: Tensor = _Convolution.apply(input, self.weight, self.bias, how)  # type: ignore[no-untyped-call]  # torch's own
        return result


def is_ordinary(module: nn.Conv2d) -> bool:
    """Whether a convolution is ungrouped, and padded with a fixed number of zeros."""
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def fix_convolutions(model: nn.Module) -> None:
    """Replace the convolutions of ``model`` by :class:`FixedConv2d` where possible, in place."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Conv2d and is_ordinary(module):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, FixedConv2d(module))


@final
@dataclass(kw_only=True, eq=False)
class _PostponedSlope:
    """A slope of a convolution's input that is added up with another one, in the same call.

    Attributes:
        slope: its two factors: a tensor shaped like the output, and one like the weights.
        late: the other slope was already computed.
    """

    slope: tuple[Tensor, Tensor] | None = None
    late: bool = False


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.how, ctx.postponed = how, _PostponedSlope()
        return F.conv2d(inputs, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            slope = _Transposed.apply(delta, inputs, weight, ctx.how)  # type: ignore[no-untyped-call]
            return slope, None, None, None
        if ctx.postponed.slope is None:
            both = _Both.apply(delta, inputs, weight, (ctx.how, ctx.postponed))  # type: ignore[no-untyped-call]
            return *both, None, None
        other, kernel = ctx.postponed.slope
        ctx.postponed.slope, ctx.postponed.late = None, True
        delta, weight = torch.cat((delta, other), 1), torch.cat((weight, kernel))
        return slopes(delta, inputs, weight, ctx.how, (True, False))[0], None, None, None


class _Transposed(Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, inputs: Tensor, weight: Tensor, how: Any) -> Tensor:
        ctx.weight, ctx.how = weight, how
        return slopes(delta, inputs, weight, how, (True, False))[0]

    @staticmethod
    def backward(ctx: Any, on_slope: Tensor) -> tuple[Tensor | None, ...]:
        return F.conv2d(on_slope, ctx.weight, None, *ctx.how), None, None, None


class _Both(Function):
    """The gradients of input and weights.

    The slope of their inputs is left to the convolution itself, whose turn comes later: its output's slope
    depends on all gradients, through the loss.
    """

    @staticmethod
    def forward(
        ctx: Any, delta: Tensor, inputs: Tensor, weight: Tensor, call: tuple[Any, _PostponedSlope]
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(delta, inputs, weight)
        ctx.how, ctx.postponed = call
        return slopes(delta, inputs, weight, ctx.how, (True, True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_slope: Tensor, on_gradient: Tensor) -> tuple[Tensor | None, ...]:
        delta, inputs, weight = ctx.saved_tensors
        on_inputs = None
        if ctx.postponed.late or ctx.postponed.slope is not None:
            on_inputs = slopes(delta, inputs, on_gradient, ctx.how, (True, False))[0]
        else:
            ctx.postponed.slope = delta.detach(), on_gradient  # detached: no cycle if nothing takes it
        both = torch.cat((on_slope, inputs), 1), torch.cat((weight, on_gradient), 1)
        return F.conv2d(*both, None, *ctx.how), on_inputs, None, None


def slopes(
    delta: Tensor, inputs: Tensor, weight: Tensor, how: Any, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's input and weights where ``wanted``; ``how``: stride, padding, dilation."""
    groups = inputs.shape[1] // weight.shape[1]
    on_inputs, on_weight, _ = torch.ops.aten.convolution_backward(
        delta, inputs, weight, [0], *how, False, [0, 0], groups, [*wanted, False]
    )
    return on_inputs, on_weight

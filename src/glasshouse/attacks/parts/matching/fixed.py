"""Convolutions with fixed weights, twice differentiable in their input at no cost for the weights.

The double backward of PyTorch's own convolution also computes a gradient of the weights whenever the input
requires one: an eighth of all convolutions in a step of gradient matching, wasted.
"""

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F


@final
class FixedConv2d(nn.Conv2d):
    """A convolution whose weights get no gradient, twice differentiable in its input.

    Args:
        like: the convolution to replace: ungrouped, with fixed zero padding; its weights are shared.
    """

    def __init__(self, like: nn.Conv2d) -> None:
        kernel: Any = like.kernel_size  # Any: to mypy these are tuples of any length
        stride: Any = like.stride
        padding: Any = like.padding
        dilation: Any = like.dilation
        sizes = like.in_channels, like.out_channels
        super().__init__(*sizes, kernel, stride, padding, dilation, device="meta")
        self.weight, self.bias = like.weight, like.bias

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        """The convolution of ``input`` (N, C, H, W)."""
        how = self.stride, self.padding, self.dilation
        result: Tensor = _Convolution.apply(input, self.weight, self.bias, how)  # type: ignore[no-untyped-call]  # torch's own
        return result


def fix_convolutions(model: nn.Module) -> None:
    """Replace the convolutions of ``model`` by :class:`FixedConv2d` where possible, in place."""
    for name, module in list(model.named_modules()):
        ungrouped = type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"
        if ungrouped and not isinstance(module.padding, str):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, FixedConv2d(module))


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.how = how
        return F.conv2d(inputs, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        slope: Tensor = _Transposed.apply(delta, *ctx.saved_tensors, ctx.how)  # type: ignore[no-untyped-call]
        return slope, None, None, None


class _Transposed(Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, inputs: Tensor, weight: Tensor, how: Any) -> Tensor:
        ctx.weight, ctx.how = weight, how
        slope: Tensor = torch.ops.aten.convolution_backward(
            delta, inputs, weight, [0], *how, False, [0, 0], 1, [True, False, False]
        )[0]
        return slope

    @staticmethod
    def backward(ctx: Any, on_slope: Tensor) -> tuple[Tensor | None, ...]:
        return F.conv2d(on_slope, ctx.weight, None, *ctx.how), None, None, None

"""Prepare a model for per-example gradients, as DP-SGD needs, without changing its function."""

import copy
from collections.abc import Collection
from typing import final

from torch import Tensor, nn

from glasshouse.errors import Inapplicable

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_IN_PLACE = (nn.Threshold, nn.ReLU, nn.RReLU, nn.Hardtanh, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.SiLU,
             nn.Mish, nn.Hardsigmoid, nn.Hardswish)  # fmt: skip


@final
class FrozenNorm(nn.Module):
    """Batch norm with the received statistics: a fixed affine map per channel. Same parameter names."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.weight, self.bias = norm.weight, norm.bias
        self._affine = norm.affine
        self._mean = norm.running_mean  # a buffer here would make Opacus refuse the layer
        self._scale = (norm.running_var + norm.eps).rsqrt()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) → the same shape."""
        shape = (1, -1) + (1,) * (x.ndim - 2)
        out = (x - self._mean.view(shape)) * self._scale.view(shape)
        if not self._affine:
            return out
        return out * self.weight.view(shape) + self.bias.view(shape)


def prepare_model(model: nn.Module, *, trained: Collection[str], dropout: bool) -> nn.Module:
    """A copy with the same function and per-example gradients for the parameters in ``trained``.

    Opacus records only layers in ``train()`` mode and does not support in-place activations; batch norm in
    that mode would mix examples. So only layers with trained parameters are in that mode (dropout layers
    only if ``dropout``), batch norm is frozen to its received statistics, and activations are not in place.

    Raises:
        Inapplicable: a trained layer uses statistics of whole batches.
    """
    work = copy.deepcopy(model)
    for name, p in work.named_parameters():
        p.requires_grad_(name in trained)
    for module in list(work.modules()):
        for name, child in module.named_children():
            if isinstance(child, _NORMS) and child.running_mean is not None and not dropout:
                setattr(module, name, FrozenNorm(child))
        if isinstance(module, _IN_PLACE):
            module.inplace = False
    work.train(dropout)
    for name, module in work.named_modules():
        trains = any(p.requires_grad for p in module.parameters(recurse=False))
        module.training |= trains
        keeps = trains and any(True for _ in module.buffers(recurse=False))
        if keeps or isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise Inapplicable(
                "defense 'dp_sgd'",
                needs="layers in which no example influences another",
                got=f"layer '{name}' ({type(module).__name__})",
                fix="use group norm, or federation.training.mode = evaluation without drop-out",
            )
    return work

"""Prepare a model for per-example gradients, as DP-SGD needs, without changing its function."""

import copy
from collections.abc import Collection
from typing import final

from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.settings import covers

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


def prepare_model(
    model: nn.Module, *, trained: Collection[str], dropout: bool, frozen: tuple[str, ...] = ()
) -> nn.Module:
    """A copy with the same function and per-example gradients for the parameters in ``trained``.

    Batch norm in evaluation mode is frozen to its received statistics; in training mode it would mix
    examples. Activations are not in place, which Opacus does not support.

    Args:
        model: left as it is.
        trained: names of the parameters that are trained.
        dropout: whether layers are in training mode.
        frozen: patterns of names of layers that stay in evaluation mode.

    Raises:
        Inapplicable: a layer uses statistics of whole batches.
    """
    work = copy.deepcopy(model)
    for name, p in work.named_parameters():
        p.requires_grad_(name in trained)
    work.train(dropout)
    for name, module in work.named_modules():
        module.training &= not covers(frozen, name)
    # Norms at rest become functions of one example, before what is left of them is refused.
    for module in list(work.modules()):
        for name, child in module.named_children():
            if isinstance(child, _NORMS) and child.running_mean is not None and not child.training:
                setattr(module, name, FrozenNorm(child).eval())
        if isinstance(module, _IN_PLACE):
            module.inplace = False
    for name, module in work.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise Inapplicable(
                "defense 'dp_sgd'",
                needs="layers in which no example influences another",
                got=f"layer '{name}' ({type(module).__name__})",
                fix="use group norm, or federation.training.mode = evaluation without drop-out",
            )
    return work


def own_layers(work: nn.Module) -> list[str]:
    """Names of the layers in evaluation mode that have trained parameters of their own."""
    named = ((name, module) for name, module in work.named_modules() if not module.training)
    return [name for name, m in named if any(p.requires_grad for p in m.parameters(recurse=False))]

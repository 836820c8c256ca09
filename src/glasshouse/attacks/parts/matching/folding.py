"""Fold eval-mode batch norm into the preceding convolution: one layer to run, the gradients of two.

Shape letters: R restarts, O and I output and input channels, D = I times kernel area.

With ``y = s (W a + b - mean) + beta`` and ``s = gamma / sqrt(var + eps)``, the pair is one convolution with
weight ``s W``. From the gradient delta of its output come ``G = delta a`` (O, D), the sum S of delta over
positions, and with them all four gradients: ``s G`` of W, ``s S`` of b, S of beta, and of gamma
``(<G, W> + (b - mean) S) / sqrt(var + eps)``, since the sum of ``delta (W a)`` over positions is <G, W>.
"""

import copy
from collections.abc import Container, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn

AGREE: Final = 1e-3
"""Tolerance on outputs of the folded model, as a share of the largest: rounding."""


FAINT: Final = 1e-3
"""A batch norm with a channel scale below this, as a share of its largest scale, is not folded."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Folded:
    """Constants that recover the gradients of a convolution and its batch norm from the folded layer.

    Attributes:
        norm: name of the batch norm.
        weight: (O, I, kernel), before folding.
        bias: of the folded convolution, (O,).
        shift: b - mean, (O,).
        inverse: 1 / sqrt(var + eps), (O,).
        scale: s, (O,).
    """

    norm: str
    weight: Tensor
    bias: Tensor
    shift: Tensor
    inverse: Tensor
    scale: Tensor

    def unfold(self, values: Tensor) -> Tensor:
        """Convert values (R, O, ...) of the folded convolution to the original one: multiply by s."""
        scale = self.scale if values.dtype == self.scale.dtype else self.scale.to(values.dtype)
        return values * (scale if values.ndim == 2 else scale.view(-1, *[1] * (values.ndim - 2)))

    def product(self, gradient: Tensor) -> Tensor:
        """(R, O): <G, W>, of G (R, O, ...)."""
        return (gradient * self.weight).flatten(2).sum(2)

    def product_of(self, reached: Tensor, total: Tensor) -> Tensor:
        """(R, O): <G, W>, from the sum of delta times y over positions (R, O) and S (R, O)."""
        return (reached - self.bias * total) / self.scale

    def of_norm(self, total: Tensor, product: Tensor) -> dict[str, Tensor]:
        """(R, O) gradients of gamma and beta, by name, from S (R, O) and <G, W> (R, O)."""
        gain = self.inverse * torch.addcmul(product, total, self.shift)
        return {f"{self.norm}.weight": gain, f"{self.norm}.bias": total}


def fold_norms(
    model: nn.Module, shape: tuple[int, ...], names: Container[str]
) -> tuple[nn.Module, dict[str, Folded]]:
    """Copy ``model`` with each batch norm folded into the convolution whose output only it consumes.

    Args:
        model: in ``eval()`` mode.
        shape: of one input, without the batch; (): nothing is folded.
        names: parameters whose gradients are needed; a pair is folded if all of its parameters are.

    Returns:
        The copy, and the folded pairs, by the convolution's name. Nothing is folded if the outputs would
        differ, for example because a convolution's output is also used elsewhere.
    """
    if not shape or not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return copy.deepcopy(model), {}
    probe = next(model.parameters()).new_zeros(2, *shape)
    probe = probe + torch.linspace(0, 1, probe.numel(), device=probe.device).reshape(probe.shape)
    with torch.no_grad():
        pairs, expected = _pairs(model, probe)
        copied, folded = copy.deepcopy(model), {}
        for name, norm in pairs.items():
            wanted = all(one in names for one in (f"{name}.weight", f"{norm}.weight", f"{norm}.bias"))
            if wanted and (one := _fold(copied, name, norm)) is not None:
                folded[name] = one
        logits = copied(probe)
        near = (logits - expected).abs().max() <= AGREE * expected.abs().max()  # False for NaN
    return (copied, folded) if bool(near) else (copy.deepcopy(model), {})


def _pairs(model: nn.Module, probe: Tensor) -> tuple[Mapping[str, str], Tensor]:
    """Convolution names with the batch norm that consumes their output, and the model's output."""
    outputs: list[tuple[Tensor, str]] = []
    pairs: dict[str, str] = {}

    def record_output(name: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs.append((output, name))

    def record_input(name: str, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        pairs.update({n: name for t, n in outputs if t is inputs[0]})

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_hook(partial(record_output, name)))
            if isinstance(module, nn.BatchNorm2d) and module.affine and module.track_running_stats:
                hooks.enter_context(module.register_forward_pre_hook(partial(record_input, name)))
        output: Tensor = model(probe)
    return pairs, output


def _fold(model: nn.Module, name: str, norm: str) -> Folded | None:
    """Fold one pair of ``model`` in place; None if the scale of a channel is nearly zero."""
    convolution, batch_norm = model.get_submodule(name), model.get_submodule(norm)
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(batch_norm, nn.BatchNorm2d)
    assert batch_norm.running_mean is not None
    assert batch_norm.running_var is not None
    inverse = (batch_norm.running_var + batch_norm.eps).rsqrt()
    scale = (batch_norm.weight * inverse).detach()
    # Gradients of the pair are divided by the scale later on.
    if bool(scale.abs().min() < FAINT * scale.abs().max()):
        return None
    bias = torch.zeros_like(scale) if convolution.bias is None else convolution.bias.detach()
    shift = bias - batch_norm.running_mean
    result = Folded(
        norm=norm,
        weight=convolution.weight.detach().clone(),
        bias=scale * shift + batch_norm.bias.detach(),
        shift=shift,
        inverse=inverse,
        scale=scale,
    )
    convolution.weight = nn.Parameter(result.unfold(convolution.weight[None])[0], requires_grad=False)
    convolution.bias = nn.Parameter(result.bias.clone(), requires_grad=False)
    parent, _, last = norm.rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
    return result

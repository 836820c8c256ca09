"""The batch-norm prior: candidates should match the client's batch statistics (a grant).

Shape letters: R restarts, B images, C channels of the layer.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@final
class Statistics:
    """Distance between the granted batch statistics and those of each candidate.

    Args:
        model: with batch-norm layers.
        granted: ``"layer.mean"`` and ``"layer.var"``, (C,).
        unbiased: the variances are unbiased ones, as running statistics hold them.

    Raises:
        Inapplicable: the model has no batch norm, or a layer's statistics are missing.
    """

    def __init__(self, model: nn.Module, granted: Mapping[str, Tensor], *, unbiased: bool = False) -> None:
        self._model, self._granted, self._unbiased = model, dict(granted), unbiased
        self._layers = [(name, m) for name, m in model.named_modules() if isinstance(m, NORMS)]
        missing = [n for n, _ in self._layers if not {f"{n}.mean", f"{n}.var"} <= granted.keys()]
        if missing or not self._layers:
            raise Inapplicable(
                "batch-norm statistics",
                needs="mean and variance of every batch-norm layer",
                got=f"none for {', '.join(missing)}" if missing else "a model without batch norm",
                fix="take the grant away, or choose a model with batch norm",
            )

    def __call__(self, inputs: Tensor) -> Tensor:
        """(R,) squared L2 distances of means and variances, averaged over layers, of (R, B, C, H, W)."""
        if len(inputs) > 1 and any(layer.training for _, layer in self._layers):
            return torch.cat([self(one[None]) for one in inputs])  # restarts must not share a batch
        terms: list[Tensor] = []

        def observe(name: str, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            mean, variance = (self._granted[f"{name}.{part}"][:, None] for part in ("mean", "var"))
            x = arguments[0].transpose(0, 1).reshape(len(mean), len(inputs), -1)  # (C, R, positions)
            gap = (x.mean(2) - mean).square().sum(0)
            terms.append(gap + (x.var(2, unbiased=self._unbiased) - variance).square().sum(0))

        with ExitStack() as hooks:
            for name, module in self._layers:
                hooks.enter_context(module.register_forward_pre_hook(partial(observe, name)))
            self._model(inputs.flatten(0, 1))
        return torch.stack(terms).mean(0)

"""The agreed model with a leaking module in front, as sent by a server that changes the architecture.

Both modules precede the whole agreed model and output an image of the agreed shape: ``imprint`` (Robbing the
Fed) is a linear layer over the pixels, an activation, and a linear layer back; ``loki`` adds a convolution
before it that writes a client's images into one group of channels.

Source: Fowl et al. 2022, arXiv:2110.13057; Zhao et al. 2024 (LOKI), arXiv:2303.12233. They are registered as
models so that a simulated client can build what the server sends; no honest federation uses them.
Shape letters: B examples, C channels, H and W pixels, R rows, G channel groups.
"""

import json
import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.limits import Count, Natural
from glasshouse.models.base import Normalize, Shape, SplitModel, chain, check_shape, check_width
from glasshouse.registry import Card


@final
class Imprint(nn.Module):
    """``back(activation(measure(spread(x))))``, reshaped to an example.

    Args:
        input_shape: of one example, and of the output; (C, H, W) where there is a convolution.
        rows: R, outputs of ``measure``.
        bounded: the activation is a ramp from 0 to 1 (sparse variant) instead of a ReLU.
        groups: G; above 1 a 3 × 3 convolution ``spread`` to G · C channels comes first.
    """

    def __init__(
        self, input_shape: tuple[int, ...], *, rows: int, bounded: bool = False, groups: Natural = 0
    ) -> None:
        super().__init__()
        self.shape = input_shape
        entries, channels = math.prod(input_shape), input_shape[0]
        self.spread: nn.Module = (
            nn.Conv2d(channels, groups * channels, 3, padding=1) if groups else nn.Identity()
        )
        self.measure = nn.Linear(max(groups, 1) * entries, rows)
        self.activation: nn.Module = nn.Hardtanh(0.0, 1.0) if bounded else nn.ReLU()
        self.back = nn.Linear(rows, entries)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) → the same shape."""
        rows = self.activation(self.measure(torch.flatten(self.spread(x), 1)))
        out: Tensor = self.back(rows).reshape(len(x), *self.shape)
        return out


def _in_front(
    module: Imprint, input_shape: tuple[int, ...], classes: int, *, inner: str, inner_arguments: str
) -> SplitModel:
    """The agreed model behind ``module``; its parts are named ``features.inner`` and ``head``."""
    agreed = registry.load("models", inner)(input_shape, classes, **json.loads(inner_arguments))
    parts = dict(agreed.named_children())
    if not {"features", "head"} <= parts.keys():
        raise BadValue(
            f"model '{inner}' behind an imprint module",
            needs="sub-modules 'features' and 'head'",
            got=", ".join(parts),
            fix="split it",
        )
    own = {name: part for name, part in parts.items() if name == "normalize"}
    features = chain(imprint=module, **own, inner=parts["features"])
    return SplitModel(normalize=Normalize(mean=0.0, std=1.0), features=features, head=parts["head"])


@Card(
    summary="an imprint module in front of the agreed model (Robbing the Fed): structural change",
    source="Fowl et al. 2022, arXiv:2110.13057",
    details={"structure": "changed: an honest server never sends it"},
)
def imprint(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    inner: str = "convnet",
    inner_arguments: str = "{}",
    bins: Count = 1024,
    variant: Literal["linear", "sparse"] = "linear",
) -> SplitModel:
    """``inner`` with ``inner_arguments`` (JSON) behind a module of ``bins`` rows."""
    check_width(bins, model="imprint", key="bins")
    module = Imprint(input_shape, rows=bins, bounded=variant == "sparse")
    return _in_front(module, input_shape, classes, inner=inner, inner_arguments=inner_arguments)


@Card(
    summary="a convolution and an imprint module in front of the agreed model (LOKI): structural change",
    source="Zhao et al. 2024, arXiv:2303.12233",
    details={"structure": "changed: an honest server never sends it"},
)
def loki(
    input_shape: Shape,
    classes: int,
    *,
    inner: str = "convnet",
    inner_arguments: str = "{}",
    bins: Count = 256,
    groups: Natural = 8,
) -> SplitModel:
    """As ``imprint``, behind a convolution into ``groups`` groups of channels."""
    check_shape(input_shape, classes, model="loki", width=bins)
    check_width(groups, model="loki")
    module = Imprint(input_shape, rows=bins, groups=groups)
    return _in_front(module, input_shape, classes, inner=inner, inner_arguments=inner_arguments)

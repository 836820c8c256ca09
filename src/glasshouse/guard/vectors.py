"""The weight vectors of a model, and how disordered each of them is.

Source: Dabholkar et al. 2025 (Maui), section 3.2: values are put into bins of 1e-6, and the entropy of the
bins' shares is divided by the logarithm of the vector's size: 0 where all values are alike, 1 where all
differ.

A convolution has one vector per output channel, a linear layer one in all. Scales and shifts of normalisation
layers, and all biases, are left out: in a fresh honest model they are constant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue

BIN: Final = 1e-6
"""Values nearer than this are the same."""
SMALLEST: Final = 8
"""Vectors with fewer entries say nothing."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """The weight of one layer.

    Attributes:
        layer: its name. kind: ``convolution`` or ``linear``. weight: (rows, ...), as stored.
        entropies: one per vector, in [0, 1]; rows for a convolution, one number for a linear layer.
    """

    layer: str
    kind: Literal["convolution", "linear"]
    weight: Tensor
    entropies: Tensor


def normalised_entropy(values: Tensor, *, width: float = BIN) -> float:
    """Entropy of ``values`` in bins of ``width``, divided by its largest possible value; in [0, 1].

    Raises:
        BadValue: fewer than 2 values, or one that is not finite.

    Example:
        >>> normalised_entropy(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        1.0
        >>> normalised_entropy(torch.zeros(4))
        0.0
    """
    flat = values.detach().double().flatten()
    if len(flat) < 2 or not bool(flat.isfinite().all()):
        raise BadValue(
            "entropy of a weight vector",
            needs="2 or more finite values",
            got=f"{len(flat)}, {int((~flat.isfinite()).sum())} of them not finite",
            fix="leave the vector out",
        )
    counts = torch.unique((flat / width).round(), return_counts=True)[1].double()
    share = counts / len(flat)
    return max(0.0, float(-(share * share.log()).sum())) / math.log(len(flat))


def vectors_of(tensors: Mapping[str, Tensor]) -> list[Vectors]:
    """All weight vectors among ``tensors`` (a state_dict), in their order; told by name and shape.

    A floating tensor ``*.weight`` with 4 dimensions is a convolution's, with 2 a linear layer's. Vectors
    below ``SMALLEST`` entries are left out.
    """
    found = []
    for name, t in tensors.items():
        if not name.endswith("weight") or not t.is_floating_point() or t.ndim not in (2, 4):
            continue
        rows = t.detach().flatten(1) if t.ndim == 4 else t.detach().reshape(1, -1)
        if rows.shape[1] < SMALLEST:
            continue
        found.append(
            Vectors(
                layer=name.removesuffix(".weight"),
                kind="convolution" if t.ndim == 4 else "linear",
                weight=t.detach(),
                entropies=torch.tensor([normalised_entropy(row) for row in rows], dtype=torch.float64),
            )
        )
    return found

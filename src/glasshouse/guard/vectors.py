"""The weight vectors of a model, and how disordered each of them is.

Source: Dabholkar et al. 2025 (Maui), section 3.2: values are put into bins of 1e-6, and the entropy of the
bins' shares is divided by the logarithm of the vector's size: 0 where all values are alike, 1 where all
differ.

A convolution has one vector per output channel, a linear layer one in all, and so has a bias. Scales of
normalisation layers, and biases of zeros, are left out: in a fresh honest model they are constant.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue

BIN: Final = 1e-6
"""Values nearer than this are the same."""
SMALLEST: Final = 8
"""Vectors with fewer entries say nothing."""


Kind = Literal["convolution", "linear", "bias"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """The weight, or the bias, of one layer.

    Attributes:
        layer: its name. kind: of the weight, or ``bias``. weight: (rows, ...), as stored.
        entropies: one per vector, in [0, 1]; rows for a convolution, one number for a linear layer or a bias.
            Values that are not finite count as alike.
    """

    layer: str
    kind: Kind
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

    A floating tensor ``*.weight`` with 4 dimensions is a convolution's, with 2 a linear layer's; ``*.bias``
    with 1 is a bias, left out where it is zero. Vectors below ``SMALLEST`` entries are left out.
    """
    return [
        Vectors(
            layer=layer,
            kind=kind,
            weight=weight,
            entropies=torch.tensor([normalised_entropy(_numbers(row)) for row in rows], dtype=torch.float64),
        )
        for layer, kind, weight, rows in _every(tensors)
        if rows.shape[1] >= SMALLEST
    ]


def too_small(tensors: Mapping[str, Tensor]) -> int:
    """How many vectors :func:`vectors_of` left out because they have fewer than ``SMALLEST`` entries."""
    return sum(len(rows) for _, _, _, rows in _every(tensors) if rows.shape[1] < SMALLEST)


def _every(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Kind, Tensor, Tensor]]:
    """Layer, kind, the tensor as stored, and its vectors as rows."""
    kinds: dict[tuple[str, int], Kind] = {
        ("weight", 4): "convolution",
        ("weight", 2): "linear",
        ("bias", 1): "bias",
    }
    for name, stored in tensors.items():
        part = next((word for word in ("weight", "bias") if name.endswith(word)), "")
        kind = kinds.get((part, stored.ndim))
        if kind is None or not stored.is_floating_point() or (kind == "bias" and not bool(stored.any())):
            continue
        t = stored.detach()
        rows = t.flatten(1) if kind == "convolution" else t.reshape(1, -1)
        yield name.removesuffix(f".{part}"), kind, t, rows


def _numbers(row: Tensor) -> Tensor:
    """Values that are not finite become three numbers that no weight has."""
    return row.double().nan_to_num(nan=1e300, posinf=2e300, neginf=-2e300)

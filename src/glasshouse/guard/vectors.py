"""The weight vectors of a model, and how disordered each of them is.

Source: Dabholkar et al. 2025 (Maui), section 3.2: values are put into bins of 1e-6, and the entropy of the
bins' shares is divided by the logarithm of the vector's size: 0 where all values are alike, 1 where all
differ.

Where we differ: a vector of n values cannot fill n bins if fewer are within its reach. The 12.8 million
weights of a fresh ``Linear(25088, 512)`` lie within ±0.0063, in 12,600 bins: the paper's number is 0.58
however random they are, and 0.42 in bfloat16, which has fewer values still. We divide by the logarithm of the
smaller of two numbers: n, and the bins between the largest absolute value and its negative that hold a value
of the vector's precision (:func:`reachable`). Where n is the smaller one, the number is the paper's. The
range is taken around zero, not between the smallest and the largest value, and never below ±``NARROWEST``:
values that are alike up to a little noise, or shrunk to almost nothing, stay orderly.

A convolution (of any number of spatial dimensions) has one vector per output channel, a linear layer one in
all, and so has a bias. Scales of normalisation layers, and biases of zeros, are left out: in a fresh honest
model they are constant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue

BIN: Final = 1e-6
"""Values nearer than this are the same."""
NARROWEST: Final = 1e-3
"""What a vector's range is taken for at least; a fresh linear layer has less from a million inputs on."""
SMALLEST: Final = 8
"""Vectors with fewer entries say nothing."""


Kind = Literal["convolution", "linear", "bias"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """The weight, or the bias, of one layer.

    Attributes:
        layer: its name.
        kind: of the weight, or ``bias``.
        weight: (rows, ...), in the precision received.
        count: vectors: rows of a convolution, 1 of a linear layer or a bias; 0 of an empty tensor.
        entropies: (count,), each in [0, 1]; (0,) where a vector has fewer than ``SMALLEST`` entries. Values
            that are not finite count as alike.
    """

    layer: str
    kind: Kind
    weight: Tensor
    count: int
    entropies: Tensor


def normalized_entropy(values: Tensor, *, precision: torch.dtype | None = None) -> float:
    """Entropy of ``values`` in bins of ``BIN``, divided by its largest possible value; in [0, 1].

    Args:
        values: any shape.
        precision: of the numbers that they were drawn from; None: all real numbers.

    Raises:
        BadValue: fewer than 2 values, or one that is not finite.

    Examples:
        >>> normalized_entropy(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        1.0
        >>> normalized_entropy(torch.zeros(4))
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
    return _entropy(flat, precision)


def reachable(top: float, precision: torch.dtype | None) -> float:
    """How many bins between ``-top`` and ``top`` hold a number of ``precision`` (floating); None: all bins.

    ``top`` counts as ``NARROWEST`` if it is less. Numbers of 32 or more bits are taken to be in every bin, as
    they are below 8.

    Examples:
        >>> reachable(0.0, None), reachable(0.0063, torch.bfloat16)
        (2001.0, 1669.0)
    """
    top = max(top, NARROWEST)
    if precision is None or precision.itemsize > 2:
        return 2 * _round(top) + 1
    limits = _bins_of(precision)
    return 2 * float(torch.searchsorted(limits, torch.tensor(_round(top)).double(), right=True)) - 1


def vectors_of(tensors: Mapping[str, Tensor]) -> list[Vectors]:
    """All weight vectors among ``tensors`` (a state_dict, dense), in their order; told by name and shape.

    ``*.weight`` with 3 or more dimensions is a convolution's, with 2 a linear layer's; ``*.bias`` with 1 is a
    bias, left out where it is zero. Whatever the type of the numbers: a model casts them to its own.
    """
    vectors = []
    for name in tensors:
        kind = _kind(name, tensors)
        if kind is None or (kind == "bias" and not bool(tensors[name].double().any())):
            continue
        t = tensors[name].detach()
        rows = t.flatten(1) if kind == "convolution" else t.reshape(1, -1)
        measured = list(rows) if rows.shape[1] >= SMALLEST else []
        precision = _precision(t)
        vectors.append(
            Vectors(
                layer=name.removesuffix(".bias" if kind == "bias" else ".weight"),
                kind=kind,
                weight=t,
                count=len(rows) if t.numel() else 0,
                entropies=torch.tensor(
                    [_entropy(row.double(), precision) for row in measured], dtype=torch.float64
                ),
            )
        )
    return vectors


def not_looked_at(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names of the weights, biases and other floating tensors that are in no weight vector.

    Scales and statistics of normalisation layers are among them: the rules say only whether they are finite.
    """
    return tuple(
        name
        for name, t in tensors.items()
        if _kind(name, tensors) is None and (t.is_floating_point() or _part(name))
    )


def _part(name: str) -> str:
    last = name.rpartition(".")[2]
    return next((word for word in ("weight", "bias") if word in last), "")


def _kind(name: str, tensors: Mapping[str, Tensor]) -> Kind | None:
    part, shape = _part(name), tensors[name].shape
    if part == "bias":
        return "bias" if len(shape) == 1 else None
    bias = tensors.get(name.removesuffix("weight") + "bias")
    if part != "weight" or len(shape) < 2 or (bias is not None and bias.shape == shape):
        return None  # a normalisation layer's scale has its bias's shape, also where it has many dimensions
    return "linear" if len(shape) == 2 else "convolution"


def _precision(t: Tensor) -> torch.dtype | None:
    """The type of ``t`` if floating and of 16 bits or less, or the 16-bit one that holds all its values.

    A cast adds no values. Integers have no type of their own here: few of them are orderly, as in a float.
    None: more than 16 bits.
    """
    if t.is_floating_point() and t.dtype.itemsize <= 2:
        return t.dtype
    numbers = t.double()
    finite = numbers.isfinite()
    for narrow in (torch.bfloat16, torch.float16):
        if bool((~finite | (numbers.to(narrow).double() == numbers)).all()):
            return narrow
    return None


def _entropy(values: Tensor, precision: torch.dtype | None) -> float:
    """Of (n,) float64."""
    finite = values[values.isfinite()]
    top = float(finite.abs().max()) if len(finite) else 0.0
    most = min(float(len(values)), reachable(top, precision))
    if most < 2:
        return 0.0
    numbers = values.nan_to_num(nan=1e300, posinf=2e300, neginf=-2e300)  # three that no weight has
    bins = (numbers / BIN).round()
    share = _counts(bins).double() / len(values)
    return min(1.0, max(0.0, float(-(share * share.log()).sum()) / math.log(most)))


def _counts(bins: Tensor) -> Tensor:
    """How often each value of ``bins`` (n,) occurs, in their order; without sorting if they are close."""
    low, high = bins.aminmax()
    if float(high - low) < 2 * len(bins):
        counts = torch.bincount((bins - low).long())
        return counts[counts > 0]
    sorted_counts: Tensor = torch.unique(bins, return_counts=True)[1]
    return sorted_counts


def _round(value: float) -> float:
    """The bin of a value, of either sign."""
    return float((torch.tensor(value, dtype=torch.float64) / BIN).round())


@cache
def _bins_of(precision: torch.dtype) -> Tensor:
    """The bins that hold an absolute value of a floating type of 8 or 16 bits; sorted float64."""
    bits = torch.arange(2 ** (8 * precision.itemsize), dtype=torch.int32)
    numbers = bits.to(torch.uint8 if precision.itemsize == 1 else torch.uint16).view(precision).double()
    occupied_bins: Tensor = torch.unique((numbers[numbers.isfinite()].abs() / BIN).round())
    return occupied_bins

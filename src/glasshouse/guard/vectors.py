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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue

BIN: Final = 1e-6
"""Values nearer than this are the same."""
NARROWEST: Final = 1e-3
"""What a vector's range is taken for at least; a fresh linear layer has less from a million inputs on."""
SMALLEST: Final = 8
"""Vectors with fewer entries say nothing."""
_FIRST: Final = 1024
_WIDE: Final = 16  # bins for each value, up to which they are counted without sorting


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
    flat = values.detach().cpu().double().flatten()
    if len(flat) < 2 or not bool(flat.isfinite().all()):
        raise BadValue(
            "entropy of a weight vector",
            needs="2 or more finite values",
            got=f"{len(flat)}, {int((~flat.isfinite()).sum())} of them not finite",
            fix="leave the vector out",
        )
    return float(_entropies(flat[None], precision))


def reachable(top: Tensor, precision: torch.dtype | None) -> Tensor:
    """How many bins between ``-top`` and ``top`` hold a number of ``precision`` (floating); None: all bins.

    ``top`` counts as ``NARROWEST`` if it is less. Numbers of 32 or more bits are taken to be in every bin, as
    they are below 8.

    Examples:
        >>> reachable(torch.tensor(0.0), None), reachable(torch.tensor(0.0063), torch.bfloat16)
        (tensor(2001., dtype=torch.float64), tensor(1669., dtype=torch.float64))
    """
    highest = (top.double().clamp_min(NARROWEST) / BIN).round()
    if precision is None or precision.itemsize > 2:
        return 2 * highest + 1
    return 2 * torch.searchsorted(_bins_of(precision), highest, right=True).double() - 1


def vectors_of(tensors: Mapping[str, Tensor]) -> list[Vectors]:
    """All weight vectors among ``tensors`` (a state_dict, dense), in their order; told by name and shape.

    ``*.weight`` with 3 or more dimensions is a convolution's, with 2 a linear layer's; ``*.bias`` with 1 is a
    bias, left out where it is zero. Whatever the type of the numbers, and wherever they lie: a model casts
    them to its own.
    """
    vectors = []
    for name in tensors:
        kind = _kind(name, tensors)
        if kind is None or (kind == "bias" and not bool(tensors[name].double().any())):
            continue
        t = tensors[name].detach().cpu()
        rows = t.flatten(1) if kind == "convolution" else t.reshape(1, -1)
        measured = rows if rows.shape[1] >= SMALLEST else rows[:0]
        vectors.append(
            Vectors(
                layer=name.removesuffix(".bias" if kind == "bias" else ".weight"),
                kind=kind,
                weight=t,
                count=len(rows) if t.numel() else 0,
                entropies=_entropies(measured.double(), _precision(t)),
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
    return next((narrow for narrow in (torch.bfloat16, torch.float16) if _holds(narrow, t)), None)


def _holds(narrow: torch.dtype, t: Tensor) -> bool:
    """Whether all finite values of ``t`` are of a type; most tensors tell by their first values."""
    numbers = t.flatten() if t.is_floating_point() else t.flatten().double()
    return not any(
        bool(some[some.to(narrow) != some].isfinite().any()) for some in (numbers[:_FIRST], numbers)
    )


def _entropies(rows: Tensor, precision: torch.dtype | None) -> Tensor:
    """Of rows (r, n) in float64: (r,)."""
    if not rows.numel():
        return torch.empty(0, dtype=torch.float64)
    size, top = rows.shape[1], rows.abs().amax(1)
    if not bool(top.isfinite().all()):
        top = torch.where(rows.isfinite(), rows.abs(), 0).amax(1)
        rows = rows.nan_to_num(nan=1e300, posinf=2e300, neginf=-2e300)  # three that no weight has
    most = reachable(top, precision).clamp_max(size)
    found = torch.from_numpy(_entropies_of_bins((rows / BIN).round_()))
    return torch.where(most < 2, 0.0, (found / most.log()).clamp(0, 1))


def _entropies_of_bins(bins: Tensor) -> NDArray[np.float64]:
    """Of each row (r, n) of bins; not sorted if that is cheaper. Few counts differ: those are counted."""
    size, (low, high) = bins.shape[1], bins.aminmax()
    if len(bins) == 1 and float(high - low) < _WIDE * size:
        counts, row = np.bincount((bins[0] - low).long().numpy()), None
    else:
        ordered = np.sort(bins.numpy(), axis=1)
        is_first = np.ones(ordered.shape, dtype=bool)
        is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        first = np.flatnonzero(is_first)
        counts, row = np.append(first[1:], ordered.size) - first, first // size
    most = int(counts.max())
    places = counts if row is None else row * (most + 1) + counts
    often = np.bincount(places, minlength=len(bins) * (most + 1))
    share = np.arange(1, most + 1) / size
    entropies: NDArray[np.float64] = often.reshape(len(bins), -1)[:, 1:] @ (-share * np.log(share))
    return entropies


@cache
def _bins_of(precision: torch.dtype) -> Tensor:
    """The bins that hold an absolute value of a floating type of 8 or 16 bits; sorted float64."""
    bits = torch.arange(2 ** (8 * precision.itemsize), dtype=torch.int32)
    numbers = bits.to(torch.uint8 if precision.itemsize == 1 else torch.uint16).view(precision).double()
    occupied_bins: Tensor = torch.unique((numbers[numbers.isfinite()].abs() / BIN).round())
    return occupied_bins

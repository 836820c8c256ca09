"""The weight vectors of a model, and their normalised entropies.

Source: Dabholkar et al. 2025 (Maui), section 3.2: values are binned with width 1e-6, and the entropy of the
bin frequencies is divided by the logarithm of the vector's size: 0 where all values are equal, 1 where all
differ.

Where we differ: a vector of n values cannot fill n bins if its range contains fewer. The 12.8 million weights
of a fresh ``Linear(25088, 512)`` lie within ±0.0063, in 12,600 bins: the paper's number is 0.58 however
random they are, and 0.42 in bfloat16, which has even fewer values. We divide by the logarithm of the smaller
of two numbers: n, and the number of bins between the largest absolute value and its negative that contain a
value of the vector's precision (:func:`reachable`). Where n is the smaller one, the number is the paper's.
The range is symmetric around zero, not from the smallest to the largest value, and at least ±``NARROWEST``:
vectors that are constant up to a little noise, or scaled down to almost zero, keep a low entropy.

A convolution (of any number of spatial dimensions) has one vector per output channel; a linear layer and a
bias have one each. Scales of normalisation layers, and biases of zeros, are left out: in a fresh honest
model they are constant.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Final, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.guard.parts import PART, flat_parts, often, row_parts
from glasshouse.tensors import outlined

BIN: Final = 1e-6
"""Bin width: values closer than this count as equal."""
NARROWEST: Final = 1e-3
"""Minimum range assumed for a vector; a fresh linear layer is narrower only from a million inputs on."""
SMALLEST: Final = 8
"""Vectors with fewer entries are not measured."""
_FIRST: Final = 1024
_WIDE: Final = 16  # bins per value up to which counting without sorting is used


Kind = Literal["convolution", "linear", "bias"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """The weight, or the bias, of one layer.

    Attributes:
        layer: name of the layer.
        kind: of the weight, or ``bias``.
        read: the weight (rows, ...), in the received precision; read again each time where it is on disk.
        count: number of vectors: rows of a convolution, 1 for a linear layer or a bias, 0 if empty.
        entropies: (count,), each in [0, 1]; (0,) where a vector has fewer than ``SMALLEST`` entries. Values
            that are not finite count as equal.
    """

    layer: str
    kind: Kind
    read: Callable[[], Tensor]
    count: int
    entropies: Tensor

    @property
    def weight(self) -> Tensor:
        """The weight, held by nobody but the caller."""
        return self.read()


def normalized_entropy(values: Tensor, *, precision: torch.dtype | None = None) -> float:
    """Entropy of ``values`` in bins of ``BIN``, divided by its largest possible value; in [0, 1].

    Args:
        values: any shape.
        precision: floating type of the values; None: all real numbers.

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
    """Number of bins between ``-top`` and ``top`` that contain a value of ``precision``; None: all bins.

    ``top`` counts as ``NARROWEST`` if it is less. Types of 32 or more bits are assumed to reach every bin,
    which is true below 8.

    Examples:
        >>> reachable(torch.tensor(0.0), None), reachable(torch.tensor(0.0063), torch.bfloat16)
        (tensor(2001., dtype=torch.float64), tensor(1669., dtype=torch.float64))
    """
    highest = (top.double().clamp_min(NARROWEST) / BIN).round()
    if precision is None or precision.itemsize > 2:
        return 2 * highest + 1
    return 2 * torch.searchsorted(_bins_of(precision), highest, right=True).double() - 1


def vectors_of(tensors: Mapping[str, Tensor]) -> list[Vectors]:
    """All weight vectors in ``tensors`` (a dense state_dict), in order; recognised by name and shape.

    ``*.weight`` with 3 or more dimensions is a convolution's, with 2 a linear layer's; ``*.bias`` with 1 is a
    bias, left out where it is zero. Any dtype and device is accepted, as a model casts what it loads.
    """
    vectors, shapes = [], outlined(tensors)
    for name in tensors:
        kind = _kind(name, shapes)
        if kind is None or (kind == "bias" and not bool(tensors[name].double().any())):
            continue
        t = tensors[name].detach().cpu()
        rows = t.flatten(1) if kind == "convolution" else t.reshape(1, -1)
        # The entropy of a short row is low by chance.
        measured = rows if rows.shape[1] >= SMALLEST else rows[:0]
        vectors.append(
            Vectors(
                layer=name.removesuffix(".bias" if kind == "bias" else ".weight"),
                kind=kind,
                read=partial(_on_cpu, tensors, name),
                count=len(rows) if t.numel() else 0,
                entropies=_entropies(measured, _precision(t)),
            )
        )
    return vectors


def _on_cpu(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    return tensors[name].detach().cpu()


def not_looked_at(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names of the weights, biases and other floating tensors that are not measured as vectors.

    They include scales and statistics of normalisation layers, which are only checked for being finite.
    """
    shapes = outlined(tensors)
    return tuple(
        name
        for name, t in shapes.items()
        if _kind(name, shapes) is None and (t.is_floating_point() or _part(name))
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
        return None  # a normalisation layer's scale has the shape of its bias, in any number of dimensions
    return "linear" if len(shape) == 2 else "convolution"


def _precision(t: Tensor) -> torch.dtype | None:
    """The type of ``t`` if floating with at most 16 bits, or the 16-bit type that represents all its values.

    Casting to a wider type adds no distinct values. Integers are treated alike. None: more than 16 bits.
    """
    if t.is_floating_point() and t.dtype.itemsize <= 2:
        return t.dtype
    return next((narrow for narrow in (torch.bfloat16, torch.float16) if _holds(narrow, t)), None)


def _holds(narrow: torch.dtype, t: Tensor) -> bool:
    """Whether ``narrow`` represents all finite values of ``t``; usually decided by the first values."""
    for part in chain((t.reshape(-1)[:_FIRST],), flat_parts(t)):
        some = part if t.is_floating_point() else part.double()
        if bool(some[some.to(narrow) != some].isfinite().any()):
            return False
    return True


def _entropies(rows: Tensor, precision: torch.dtype | None) -> Tensor:
    """Normalised entropies of rows (r, n) of any real type: (r,)."""
    if not rows.numel():
        return torch.empty(0, dtype=torch.float64)
    if rows.shape[1] > PART:
        return torch.cat([_entropy_of_many(row, precision) for row in rows])
    entropies, end = torch.empty(len(rows), dtype=torch.float64), 0
    for part in row_parts(rows):
        begin, end = end, end + len(part)
        entropies[begin:end] = _entropies_together(part.double(), precision)
    return entropies


def _entropy_of_many(row: Tensor, precision: torch.dtype | None) -> Tensor:
    """Normalised entropy of one long row (n,), counted in parts: (1,)."""
    counts, bins, top = often(row, BIN)
    share = counts / len(row)
    entropy = torch.tensor([float(bins @ (-share * np.log(share)))], dtype=torch.float64)
    most = reachable(torch.tensor([top], dtype=torch.float64), precision).clamp_max(len(row))
    return torch.where(most < 2, 0.0, (entropy / most.log()).clamp(0, 1))


def _entropies_together(rows: Tensor, precision: torch.dtype | None) -> Tensor:
    """Normalised entropies of rows (r, n) in float64, all at once: (r,)."""
    size, top = rows.shape[1], rows.abs().amax(1)
    if not bool(top.isfinite().all()):
        top = torch.where(rows.isfinite(), rows.abs(), 0).amax(1)
        rows = rows.nan_to_num(nan=1e300, posinf=2e300, neginf=-2e300)  # values that no weight has
    most = reachable(top, precision).clamp_max(size)
    entropies = torch.from_numpy(_entropies_of_bins((rows / BIN).round_()))
    return torch.where(most < 2, 0.0, (entropies / most.log()).clamp(0, 1))


def _entropies_of_bins(bins: Tensor) -> NDArray[np.float64]:
    """Entropy of each row (r, n) of bins; avoids sorting where that is cheaper, and groups equal counts."""
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
    """The bins that contain an absolute value of a floating type of 8 or 16 bits; sorted float64."""
    bits = torch.arange(2 ** (8 * precision.itemsize), dtype=torch.int32)
    numbers = bits.to(torch.uint8 if precision.itemsize == 1 else torch.uint16).view(precision).double()
    occupied_bins: Tensor = torch.unique((numbers[numbers.isfinite()].abs() / BIN).round())
    return occupied_bins

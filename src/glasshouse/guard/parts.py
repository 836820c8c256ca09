"""Walk a tensor in parts, so that inspecting it takes little more memory than the tensor itself.

Shape letters: R rows, N values of a row.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PART: Final = 2**18
"""Values that are looked at together: some 5 MB of float64 and masks."""
SPARSE: Final = 16
"""Bins per value up to which they are counted in a table; above, their numbers are sorted."""
_FAR: Final = 2.0**30


def row_parts(rows: Tensor) -> Iterator[Tensor]:
    """Views of some of the rows (R, N), of at most ``PART`` values unless one row has more."""
    yield from torch.split(rows, max(1, PART // max(1, rows.shape[1])))


def flat_parts(t: Tensor) -> Iterator[Tensor]:
    """The values of ``t``, ``PART`` at a time; of a tensor that is not contiguous, row by row."""
    if t.is_contiguous() or t.ndim < 2:
        yield from torch.split(t.reshape(-1), PART)
    else:
        yield from (part.reshape(-1) for part in row_parts(t.flatten(1)))


def often(values: Tensor, width: float) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
    """How often a bin of ``width`` holds how many of ``values``, and the largest finite magnitude.

    Args:
        values: (N,), of any real type. NaN and both infinities are bins of their own.
        width: of a bin.

    Returns:
        counts, each once; the number of bins with each; the largest absolute value.

    Examples:
        >>> often(torch.tensor([0.0, 0.0, 1.0, torch.nan]), 0.1)
        (array([1, 2]), array([2, 1]), 1.0)
    """
    if values.dtype in (torch.bfloat16, torch.float16):
        return _often_narrow(values, width)
    low, high, top, far, odd = np.inf, -np.inf, 0.0, [], np.zeros(3, dtype=np.int64)
    for part in torch.split(values, PART):
        numbers = part.double()
        finite = numbers.isfinite()
        if not bool(finite.all()):
            odd += [int(where.sum()) for where in (numbers.isnan(), numbers.isposinf(), numbers.isneginf())]
            numbers = numbers[finite]
        bins = (numbers / width).round_()
        is_far = bins.abs() >= _FAR
        if bool(is_far.any()):  # no trained weight is: such numbers are kept as they are
            far.append(bins[is_far].numpy())
            bins = bins[~is_far]
        if len(numbers):
            top = max(top, float(numbers.abs().max()))
        if len(bins):
            low, high = min(low, float(bins.min())), max(high, float(bins.max()))
    counts = [odd[odd > 0], np.unique(np.concatenate(far), return_counts=True)[1] if far else odd[:0]]
    sizes, numbers_of = _merge(counts)
    if high >= low:
        span = int(high - low) + 1
        count = _tabled if span <= max(PART, len(values) // SPARSE) else _sorted
        near = count(values, width, int(low), span)
        sizes, numbers_of = _merge_often([(sizes, numbers_of), near])
    return sizes, numbers_of, top


def _near_bins(values: Tensor, width: float) -> Iterator[NDArray[np.float64]]:
    for part in torch.split(values, PART):
        bins = (part.double() / width).round_().numpy()
        yield bins[np.abs(bins) < _FAR]


def _tabled(values: Tensor, width: float, low: int, span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count in a table with an entry for every bin."""
    table = np.zeros(span, dtype=np.int64)
    for bins in _near_bins(values, width):
        table += np.bincount((bins - low).astype(np.int64), minlength=span)
    return _merge([part[part > 0] for part in np.array_split(table, -(-span // PART))])


def _sorted(values: Tensor, width: float, low: int, span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort the bins in place, as int32, and measure runs of equal ones."""
    del low, span
    ordered, end = np.empty(len(values), dtype=np.int32), 0
    for bins in _near_bins(values, width):
        ordered[end : end + len(bins)] = bins
        end += len(bins)
    ordered = ordered[:end]
    ordered.sort()
    runs, start = [], 0
    for begin in range(0, end, PART):
        part = ordered[begin : begin + PART + 1]
        ends = begin + 1 + np.flatnonzero(part[1:] != part[:-1])
        lengths = np.diff(np.append(start, ends))
        start = int(ends[-1]) if len(ends) else start
        runs.append(np.unique(lengths, return_counts=True))
    last = np.array([end - start])
    return _merge_often([*runs, (last, np.ones(1, dtype=np.int64))])


def _often_narrow(values: Tensor, width: float) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
    """As :func:`often`, by the 65,536 patterns of a type of 16 bits."""
    table = np.zeros(2**16, dtype=np.int64)
    for part in torch.split(values, PART):
        table += np.bincount(part.contiguous().view(torch.int16).numpy().view(np.uint16), minlength=2**16)
    present = np.flatnonzero(table)
    patterns = torch.from_numpy(present.astype(np.uint16).view(np.int16))
    numbers = patterns.view(values.dtype).double()
    finite = numbers.isfinite()
    top = float(numbers[finite].abs().max()) if bool(finite.any()) else 0.0
    bins = (numbers.nan_to_num(nan=1e300, posinf=2e300, neginf=-2e300) / width).round_().numpy()
    _, place = np.unique(bins, return_inverse=True)
    return *_merge([np.bincount(place, weights=table[present]).astype(np.int64)]), top


def _merge(counts: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct counts, and how many there are of each."""
    return _merge_often([np.unique(part, return_counts=True) for part in counts])


def _merge_often(
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sizes, place = np.unique(np.concatenate([sizes for sizes, _ in pairs]), return_inverse=True)
    numbers = np.concatenate([numbers for _, numbers in pairs])
    return sizes.astype(np.int64), np.bincount(place, weights=numbers, minlength=len(sizes)).astype(np.int64)

"""Pairing of reconstructions with originals: an attack on a batch does not say which is which.

Shape letters: B originals, R reconstructions (candidates), C channels, H and W pixels.

The headline pairs by **optimal assignment**: each original and each candidate once, so that one good image
cannot count for several originals. The papers' convention, **best candidate**, compares every original with
the nearest candidate, with reuse; it is reported separately, under its own name.
"""

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue

UNMATCHED = -1


def mse_table(originals: Tensor, candidates: Tensor, *, grouped: bool = False) -> NDArray[np.float64]:
    """Mean squared difference of every original and every candidate, ``(B, R)``, in float64.

    Groups (N, B, ...) and (N, R, ...), if ``grouped``, give one table each, (N, B, R).

    Computed from inner products, so that 1,024 × 1,024 images fit in memory; the error is about 1e-14 of the
    mean square of the images, too small to affect the pairing. Scores are computed from the images.
    """
    first = 2 if grouped else 1
    left, right = originals.double().flatten(first), candidates.double().flatten(first)
    own = left.square().sum(-1)[..., :, None] + right.square().sum(-1)[..., None, :]
    table: NDArray[np.float64] = ((own - 2 * left @ right.mT).clamp_min(0) / left.shape[-1]).cpu().numpy()
    return table


def assign(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """The pairing of least total cost in which each original and each candidate occurs at most once.

    Args:
        cost: ``(B, R)``, finite; lower is a better pair.

    Returns:
        ``(B,)``: the candidate of each original, or ``UNMATCHED`` (-1) for originals left over when there are
        fewer candidates than originals. With more candidates than originals, candidates are left over.

    Raises:
        BadValue: ``cost`` is not a finite table.

    Source:
        Kuhn 1955 (the assignment problem); solved by scipy's ``linear_sum_assignment``.

    Examples:
        >>> assign(np.array([[0.0, 1.0], [0.1, 5.0]])).tolist()  # the nearest would be 0, 0
        [1, 0]
    """
    _check_cost(cost)
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    columns_of = np.full(len(cost), UNMATCHED, dtype=np.int64)
    columns_of[rows] = columns
    return columns_of


def best(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """The nearest candidate of each original, ``(B,)``; a candidate may be used several times.

    The papers' convention. It is optimistic: a single image may match a whole batch.

    Examples:
        >>> best(np.array([[0.0, 1.0], [0.1, 5.0]])).tolist()
        [0, 0]
    """
    _check_cost(cost)
    if cost.shape[1] == 0:
        return np.full(len(cost), UNMATCHED, dtype=np.int64)
    return np.asarray(cost.argmin(1), dtype=np.int64)


def take(candidates: Tensor, pairing: NDArray[np.int64], *, grey: float) -> Tensor:
    """The candidate of each original, ``(B, C, H, W)``; constant ``grey`` images where there is none.

    A missing reconstruction must cost something, or an attack would gain by claiming nothing where it is
    unsure, and leaving out the original would make n differ between attacks. Mid-grey is the constant with
    the least worst-case squared error: the best guess of an adversary who knows only the image range.
    """
    index = torch.from_numpy(pairing).to(candidates.device)
    filled = candidates.new_full((len(pairing), *candidates.shape[1:]), grey)
    matched = index != UNMATCHED
    filled[matched] = candidates[index[matched]]
    return filled


def pair_groups(tables: NDArray[np.float64]) -> NDArray[np.int64]:
    """The candidate of each original, paired within consecutive groups, (N * B,): positions among all N * R.

    Args:
        tables: (N, B, R), the cost of each pair; each group is paired on its own, as :func:`assign` does.

    Examples:
        >>> four = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(2, 2, 1)
        >>> pair_groups(mse_table(four, four.flip(1), grouped=True)).tolist()
        [1, 0, 3, 2]
    """
    return np.concatenate([assign(table) + i * table.shape[1] for i, table in enumerate(tables)])


def _check_cost(cost: NDArray[np.float64]) -> None:
    if cost.ndim != 2 or not np.isfinite(cost).all():
        raise BadValue(
            "pairing of reconstructions and originals",
            needs="a table (originals, candidates) of finite costs",
            got=f"shape {cost.shape}, {int((~np.isfinite(cost)).sum())} entries not finite",
            fix="refuse a claim that is not finite before scoring it",
        )

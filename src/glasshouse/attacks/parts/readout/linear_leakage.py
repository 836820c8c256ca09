"""Linear leakage: recover single inputs of a linear layer from the sum of many gradients.

All rows of a linear layer measure the same scalar u(x) of its input x (for example the mean) and differ only
in the threshold above which their ReLU is active. With dL/dy the same for every row, the gradient of row r is
the sum of delta(x) · x over all x with u(x) above threshold r. So the difference of two adjacent rows holds
the inputs of one *bin*: an input alone in its bin is exactly the quotient of weight and bias difference.
An input below the lowest threshold activates no row and never leaks.

Source: Fowl et al. 2022, arXiv:2110.13057 (imprint); Shi et al. 2025, arXiv:2311.05808, Eq. 7. Where we
differ: float64 throughout; empty bins are detected; the quotient's scale can be taken from the bin itself,
whose inputs have a known u, because rounding ruins the bias difference first when parameters are float32.

Shape letters: R rows = bins (ascending thresholds), D entries of the layer's input, N auxiliary values,
L leaked bins, K classes.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import final

import torch
from torch import Tensor

from glasshouse.errors import BadValue

_POINTS = 2000  # larger samples are averaged to this many points, closer together than the kernel width
_AT_ONCE = 64  # grid points per batch
TAIL = 0.001
"""Share of the fitted distribution left below the lowest, and above the highest threshold."""


def normal_thresholds(values: Tensor, bins: int, *, tail: float = TAIL) -> Tensor:
    """Quantiles, equally spaced in probability, of the Normal fitted to ``values`` by maximum likelihood.

    Returns:
        (R,) ascending, float64.

    Raises:
        BadValue: fewer than 2 values, values that do not vary, or fewer than 2 bins.

    Examples:
        >>> normal_thresholds(torch.tensor([-1.0, 1.0]), 3, tail=0.158655).round(decimals=3).abs().tolist()
        [1.0, 0.0, 1.0]
    """
    mean, deviation = _moments(values, bins)
    normal = NormalDist(mean, deviation)
    return torch.tensor([normal.inv_cdf(float(p)) for p in _levels(bins, tail)], dtype=torch.float64)


def smoothed_thresholds(values: Tensor, bins: int, *, tail: float = TAIL) -> Tensor:
    """Quantiles of the empirical distribution smoothed by a Normal kernel (Silverman's bandwidth).

    Raw empirical quantiles follow the sample's gaps and lose to the Normal fit; smoothing keeps skew and
    peaks without them.

    Returns:
        (R,) ascending, float64.

    Raises:
        BadValue: as :func:`normal_thresholds`.
    """
    _, deviation = _moments(values, bins)
    v = values.double().flatten().sort().values
    width = 0.9 * min(deviation, float(v.quantile(0.75) - v.quantile(0.25)) / 1.349 or deviation)
    width *= len(v) ** -0.2
    v = torch.stack([part.mean() for part in v.tensor_split(_POINTS)]) if len(v) > 2 * _POINTS else v
    grid = torch.linspace(float(v[0]) - 4 * width, float(v[-1]) + 4 * width, 8 * bins + 1, dtype=v.dtype)
    parts = torch.split(grid, _AT_ONCE)
    mass = torch.cat([torch.special.ndtr((part[:, None] - v) / width).mean(1) for part in parts])
    levels = _levels(bins, tail)
    right = torch.searchsorted(mass, levels).clamp(1, len(mass) - 1)
    left = right - 1
    share = (levels - mass[left]) / (mass[right] - mass[left]).clamp_min(1e-300)
    return grid[left] + share.clamp(0, 1) * (grid[right] - grid[left])


def _levels(bins: int, tail: float) -> Tensor:
    return torch.linspace(tail, 1 - tail, bins, dtype=torch.float64)


def _moments(values: Tensor, bins: int) -> tuple[float, float]:
    v = values.double().flatten()
    deviation = float(v.std(correction=0)) if len(v) > 1 else 0.0
    if not deviation > 0 or bins < 2 or not bool(v.isfinite().all()):
        raise BadValue(
            "thresholds of a linear leakage",
            needs="2 or more finite values that differ, and 2 or more bins",
            got=f"{len(v)} values with deviation {deviation:.3g}, {bins} bins",
            fix="give more auxiliary data, or a wider layer",
        )
    return float(v.mean()), deviation


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Leak:
    """The contents of the leaked bins.

    Attributes:
        rows: (L,) bins, strongest first.
        inputs: (L, D), inputs of the layer, or mixtures of the inputs in one bin.
        signal: (L,) signed size of the bin: the sum of delta(x) over its inputs, in the units of the sum.
    """

    rows: Tensor
    inputs: Tensor
    signal: Tensor


def read_rows(
    weight: Tensor,
    bias: Tensor,
    thresholds: Tensor,
    *,
    floor: float,
    limit: int,
    measure: Tensor | None = None,
) -> Leak:
    """Inputs from the summed gradient of the crafted layer.

    Args:
        weight: (R, D), float64, the sum (or mean) of gradients; rows by ascending threshold.
        bias: (R,), likewise.
        thresholds: (R,), of u, ascending.
        floor: bins with a smaller absolute signal count as empty, in the units of ``bias``.
        limit: maximum number of bins, the strongest: the known number of examples in the sum.
        measure: (D,), the weights of u on an input's entries. If given, the size of a bin is computed from
            its weight gradient and u, where the bin is narrow enough to determine u; otherwise from the bias
            difference.

    Raises:
        BadValue: shapes do not fit, thresholds do not ascend, or ``weight`` is not float64.
    """
    _check_rows(weight, bias, thresholds)
    signal = torch.cat((bias[:-1] - bias[1:], bias[-1:]))
    if measure is not None:
        upper = torch.cat((thresholds[1:], thresholds[-1:]))
        middle, half = (thresholds + upper) / 2, (upper - thresholds) / 2
        stable = (middle.abs() > 20 * half) & (half > 0)
        means = weight @ measure.double()
        inside = torch.cat((means[:-1] - means[1:], means[-1:]))
        signal = torch.where(stable, inside / torch.where(stable, middle, 1.0), signal)
    order = signal.abs().argsort(descending=True, stable=True)[:limit]
    rows = order[signal[order].abs() > floor]
    inputs = weight[rows]
    below = rows < len(weight) - 1  # the last row stands alone
    inputs[below] -= weight[rows[below] + 1]
    return Leak(rows=rows, inputs=inputs.div_(signal[rows, None]), signal=signal[rows])


def read_single_rows(weight: Tensor, bias: Tensor, thresholds: Tensor, *, faint: float, limit: int) -> Leak:
    """As :func:`read_rows` for the sparse variant: an input activates only the row of its own bin.

    Args:
        weight: as in ``read_rows``.
        bias: as in ``read_rows``.
        thresholds: as in ``read_rows``.
        limit: as in ``read_rows``.
        faint: rows below this share of the strongest are empty.

    Raises:
        BadValue: as in ``read_rows``.
    """
    _check_rows(weight, bias, thresholds)
    order = bias.abs().argsort(descending=True, stable=True)[:limit]
    rows = order[bias[order].abs() > faint * float(bias.abs().max())]
    return Leak(rows=rows, inputs=weight[rows] / bias[rows, None], signal=bias[rows])


def _check_rows(weight: Tensor, bias: Tensor, thresholds: Tensor) -> None:
    fits = weight.ndim == 2 and bias.shape == weight.shape[:1] == thresholds.shape
    if not fits or weight.dtype != torch.float64 or bool((thresholds.diff() < 0).any()):
        raise BadValue(
            "read-out of a linear leakage",
            needs="weight (R, D) in float64, bias (R,) and ascending thresholds (R,)",
            got=f"{tuple(weight.shape)} {weight.dtype}, {tuple(bias.shape)}, {tuple(thresholds.shape)}",
            fix="sort rows by threshold and convert the sum with .double()",
        )


def labels_from(signal: Tensor, levels: Tensor) -> Tensor:
    """The class whose delta is nearest to each bin's signal: by sign, then by ratio.

    Args:
        signal: (L,), in units of one example's delta.
        levels: (K,), delta of each class, none 0.

    Returns:
        (L,) int64. A bin that mixes classes gets one of them, or a wrong class, without any mark.

    Examples:
        >>> labels_from(torch.tensor([2.2, -0.9]), torch.tensor([-1.0, 1.0, 2.0])).tolist()
        [2, 0]
    """
    ratios = (signal.abs()[:, None].clamp_min(1e-300).log() - levels.abs()[None].log()).abs()
    wrong = signal.sign()[:, None] * levels.sign()[None] < 0
    return ratios.masked_fill(wrong, torch.inf).argmin(1)

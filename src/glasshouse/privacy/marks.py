"""Traces that defences leave in a client's update. Every function works on tensors only.

Shape letters: K classes, F input features of the last linear layer.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ROUNDING = 1e-4
"""Relative deviation attributed to float32 rounding."""
MOST_BITS = 16
_SMALLEST_GRID = 50
_OFF_GRID = 0.02


def zero_sums(weight: Tensor) -> Tensor:
    """(F,) Column sums of a last layer's weight gradient (K, F), divided by √K, in float64.

    Under cross-entropy they are zero (an example's probabilities and its one-hot label both sum to 1), also
    for sums of such gradients. Independent noise of standard deviation σ on every entry makes them N(0, σ²).
    """
    sums: Tensor = weight.cpu().double().sum(0) / len(weight) ** 0.5
    return sums


def rounding_of(tensors: Mapping[str, Tensor]) -> float:
    """Largest relative rounding error of an entry: of the narrowest format that holds every entry exactly.

    An update that travelled in half precision shows it in its values, whatever type they are read as.

    Examples:
        >>> thirds = torch.full((64,), 1 / 3)
        >>> rounding_of({"w": thirds}) == 2**-24, rounding_of({"w": thirds.bfloat16().float()}) == 2**-8
        (True, True)
    """
    entries = [t[t != 0].float() for t in tensors.values() if t.is_floating_point()]
    if sum(map(len, entries)) >= _SMALLEST_GRID:
        for narrow in (torch.bfloat16, torch.float16):
            if all(torch.equal(t.to(narrow).float(), t) for t in entries):
                return torch.finfo(narrow).eps / 2
    return torch.finfo(torch.float32).eps / 2


def noise_of(weight: Tensor, *, rounding: float = 0.0) -> float:
    """Standard deviation of the noise in a last layer's weight gradient (K, F); 0 if rounding explains it.

    Args:
        weight: the gradient.
        rounding: relative rounding error of its entries, as :func:`rounding_of` finds it.

    Examples:
        >>> honest = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
        >>> noise_of(honest), round(noise_of(honest + torch.tensor([[0.1, -0.1], [0.1, -0.1]])), 3)
        (0.0, 0.141)
    """
    noise = float(zero_sums(weight).square().mean()) ** 0.5
    return (
        noise
        if noise > max(ROUNDING, rounding) * float(weight.cpu().double().square().mean()) ** 0.5
        else 0.0
    )


def scattered_zeros(tensor: Tensor) -> float:
    """Fraction of zeros among the entries whose row and column are not all zero, in [0, 1].

    Dead units make whole rows and columns of a gradient zero; pruning is independent of rows.

    Examples:
        >>> scattered_zeros(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]))
        0.25
    """
    flat = tensor.detach().reshape(len(tensor), -1) if tensor.ndim > 1 else tensor.detach().reshape(1, -1)
    alive = flat != 0
    columns = alive.any(0) if tensor.ndim > 1 else torch.ones_like(alive[0])
    visible = alive[alive.any(1)][:, columns]
    return 1.0 - float(visible.cpu().double().mean()) if visible.numel() else 0.0


def grid_bits(tensors: Mapping[str, Tensor], *, rounding: float = 0.0) -> int | None:
    """Bits of the coarsest grid that contains every entry of every large tensor; None: no such grid.

    A grid of b bits has 2^(b - 1) - 1 equal steps from zero to the tensor's largest magnitude; 1 bit means
    that all nonzero entries have the same magnitude.

    Args:
        tensors: one update.
        rounding: absolute rounding error of an entry, e.g. of a difference of two parameters.

    Examples:
        >>> grid_bits({"w": torch.arange(-3, 4).repeat(20).float()}), grid_bits({"w": torch.ones(99)})
        (3, 1)
        >>> grid_bits({"w": torch.linspace(0.1, 1, 99) ** 2})
    """
    entries = [t[t != 0].cpu().double().abs() for t in tensors.values()]
    entries = [t for t in entries if len(t) >= _SMALLEST_GRID]
    if not entries:
        return None
    shares = [t / t.max() for t in entries]
    errors = [4 * rounding / float(t.max()) for t in entries]
    if max(errors) > 0.2:  # entries as small as rounding errors would all pass for one magnitude
        return None
    if all(float(s.min()) > 1 - 1e-5 - e for s, e in zip(shares, errors, strict=True)):
        return 1
    for bits in range(2, MOST_BITS + 1):
        levels = 2 ** (bits - 1) - 1
        limits = [_OFF_GRID + levels * e for e in errors]
        if max(limits) > 0.2:  # grid steps as small as rounding errors: undetectable
            return None
        if all(_on_grid(s * levels, limit) for s, limit in zip(shares, limits, strict=True)):
            return bits
    return None


def _on_grid(places: Tensor, limit: float) -> bool:
    """Whether all entries are near integers; checks a few first, enough for most updates without a grid."""
    return all(bool(((p - p.round()).abs() <= limit).all()) for p in (places[:_SMALLEST_GRID], places))


def common_ceiling(values: Sequence[float], slack: Sequence[float]) -> tuple[float, list[int]] | None:
    """The largest value and the indices that share it, if at least two do; None otherwise.

    Norms of honest updates differ; if several reach the same maximum, they were clipped to it.

    Args:
        values: one per update, >= 0.
        slack: relative error of each.

    Examples:
        >>> common_ceiling([1.0, 4.0, 4.0, 3.0], [1e-5] * 4), common_ceiling([1.0, 2.0], [1e-5] * 2)
        ((4.0, [1, 2]), None)
    """
    top = max(values)
    floors = [top * (1 - 2 * max(error, 1e-12)) for error in slack]
    at_top = [i for i, value in enumerate(values) if top > 0 and value >= floors[i]]
    return (top, at_top) if len(at_top) >= 2 else None

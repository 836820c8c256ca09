"""Measures of how well a server could separate single examples, computed from a trace."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.trace import LayerTrace

OWNED = 0.9
"""Share of a row's gradient from which on the row exposes one example."""
ROUNDING = 1e-5
"""A difference below this share of its rows is lost in float32 rounding."""
SAME = 1 - 1e-9
"""Cosine from which on two rows count as equal: they differ by about ``ROUNDING`` or less."""
NEIGHBOURS = 8
"""Number of most similar rows that a row is compared with."""
WITNESSES = 2
"""Other examples that must agree on the factor between two rows: a single agreement may be chance."""
AGREEMENT = 0.01
UNEVEN = 0.2
"""Share of a difference's energy that an isolated example must have at least; a cheap test."""
ALIKE = 0.9999
"""Absolute correlation from which on two units follow the same direction of the examples.

At the same threshold only one of them activates for arccos(.9999) / π = .5 % of the examples.
"""
ALIKE_AMONG = 16
"""Number of examples below which units are alike by chance."""
_NUMBERS = 2**22  # compared at a time
_DISTINCT = 256  # rows compared at a time


def isolated(one: LayerTrace) -> Tensor:
    """Which examples are isolated in a row of the layer's gradient.

    A row isolates an example if its unit responds to that example only (trap weights, trained heads, and
    rarely active units of honest models).

    Returns:
        (B,) of bool.
    """
    sizes = one.sizes
    share, whose = (sizes / sizes.sum(0).clamp_min(torch.finfo(sizes.dtype).tiny)).max(0)
    return _marked(whose[share >= OWNED], like=sizes)


def paired(one: LayerTrace) -> Tensor:
    """Which examples are isolated in the difference of two rows whose units respond alike to all others.

    Bins of thresholds cause that, honest units hardly ever. Only for layers that are ``is_flat``.

    Returns:
        (B,) of bool.
    """
    if not one.is_flat:
        return _marked(torch.empty(0, dtype=torch.long), like=one.sizes)
    alone = differences(one.signed_sizes).examples
    return _marked(alone[alone >= 0], like=one.sizes)


def _marked(examples: Tensor, *, like: Tensor) -> Tensor:
    alone = torch.zeros(len(like), dtype=torch.bool, device=like.device)
    alone[examples] = True
    return alone


@final
@dataclass(frozen=True, kw_only=True)
class Differences:
    """D differences of two rows in which most examples cancel out.

    Attributes:
        rows: of the layer's weight, (D,).
        others: the rows of which a multiple is subtracted, (D,).
        multiples: the factors, (D,).
        examples: the only example in the remainder, (D,); -1: it mixes several.
    """

    rows: Tensor
    others: Tensor
    multiples: Tensor
    examples: Tensor


def differences(signed_sizes: Tensor, *, like: float = -1.0, opposite: bool = False) -> Differences:
    """Differences of similar rows to which all examples contribute equally, except for one or a few.

    Args:
        signed_sizes: signed contribution of each example to the gradient of each row, (B, rows).
        like: cosine of two rows below which their difference is not considered.
        opposite: also consider rows that are similar up to their sign.
    """
    every = signed_sizes.T
    numbers = every.any(1).nonzero()[:, 0]
    rows = every[numbers].double()
    directions = F.normalize(rows / rows.abs().amax(1, keepdim=True), dim=1)  # also for tiny rows
    first = _is_first(directions)
    if not bool(first.all()):
        numbers, rows, directions = numbers[first], rows[first], directions[first]
    blocks = [torch.empty(0, 4, dtype=torch.double, device=rows.device)]
    at_a_time = max(1, _NUMBERS // (NEIGHBOURS * max(1, len(signed_sizes))))
    for places in torch.split(torch.arange(len(rows), device=rows.device), at_a_time):
        cosine = directions[places] @ directions.T
        likeness = cosine.abs() if opposite else cosine.clone()
        likeness.masked_fill_(likeness > SAME, -1)  # itself
        neighbours = likeness.topk(max(0, min(NEIGHBOURS, len(rows) - 1)), dim=1).indices  # (r, k)
        mine, others = _uneven(directions, places, neighbours, cosine.gather(1, neighbours), like)
        some, near = rows[mine], rows[others]  # (pairs, B)
        ratios = torch.where(near != 0, some / near, torch.nan)
        factor = ratios.nanmedian(1).values.nan_to_num()
        multiple = factor[:, None] * near
        residual = (some - multiple).abs()
        whole = some.abs() + multiple.abs()
        agree = (residual <= AGREEMENT * whole) & (whole > ROUNDING * whole.amax(1, keepdim=True))
        top, who = residual.max(1)
        confirmed = (top >= ROUNDING * whole.sum(1)) & (agree.sum(1) >= WITNESSES)
        only = torch.where(top >= OWNED * residual.sum(1), who, -1)
        of_pairs = (numbers[mine], numbers[others], factor, only)
        blocks.append(torch.stack([t[confirmed].double() for t in of_pairs], dim=1))
    pairs = torch.cat(blocks)
    return Differences(
        rows=pairs[:, 0].long(),
        others=pairs[:, 1].long(),
        multiples=pairs[:, 2],
        examples=pairs[:, 3].long(),
    )


def _uneven(
    directions: Tensor, places: Tensor, neighbours: Tensor, cosine: Tensor, like: float
) -> tuple[Tensor, Tensor]:
    """The pairs of rows whose least-squares difference is dominated by some example.

    Args:
        directions: of all rows, (m, B).
        places: indices of the rows, (r,).
        neighbours: of each row, (r, k).
        cosine: between them, (r, k).
        like: absolute cosine below which a pair is left out.

    Returns:
        Indices of the rows and of their neighbours, (pairs,) each.
    """
    single = directions.float()
    top = single.abs().amax(1)
    at_most = (top[places][:, None] + cosine.abs() * top[neighbours]).square()
    possible = (cosine.abs() >= like) & (at_most >= UNEVEN * (1 - cosine.square()))
    mine, others = places[:, None].expand_as(neighbours)[possible], neighbours[possible]
    residual = (single[mine] - cosine[possible].float()[:, None] * single[others]).square()
    uneven = residual.amax(1) >= UNEVEN * residual.sum(1)
    return mine[uneven], others[uneven]


def _is_first(directions: Tensor) -> Tensor:
    """Which unit-norm rows do not equal an earlier one."""
    if not len(directions):
        return torch.ones(0, dtype=torch.bool, device=directions.device)
    parts = torch.split(directions, _DISTINCT)
    first = [(some @ directions.T > SAME).byte().argmax(1) for some in parts]
    return torch.cat(first) == torch.arange(len(directions), device=directions.device)


def concentration(*parts: LayerTrace) -> float:
    """Concentration of the layer's gradient on few examples: 0 if all contribute equally, up to 1.

    1 if no example reaches the layer. If some do, but their contributions underflow, as for a single one.

    Args:
        parts: traces of the same layer, each for other examples.
    """
    lengths = torch.cat([one.sizes.norm(dim=1) for one in parts])
    if not lengths.any():
        return 1 - 1 / len(lengths) if any(one.is_reached for one in parts) else 1.0
    return 1 - float(_effective_share(lengths))


def narrowness(one: LayerTrace) -> float:
    """Concentration of each unit's gradient on few examples, averaged over the units that are reached.

    0 if all contribute equally in every unit, towards 1 if one of many does in each; 0 if no unit is reached.
    """
    sizes = one.sizes
    sizes = sizes[:, sizes.any(0)]
    return 1 - float(_effective_share(sizes).mean()) if sizes.shape[1] else 0.0


def alike(one: LayerTrace) -> float:
    """Share of the units that follow the same direction as another one over the examples: threshold bins.

    Their pre-activations are equal up to a factor and a shift, whatever later layers do. Only for layers that
    are ``is_flat``, and for at least ``ALIKE_AMONG`` examples. The share of random units on the same inputs,
    which is positive if all but one or two inputs are dead, is subtracted.
    """
    if one.outputs is None or not one.is_flat or len(one.outputs) < ALIKE_AMONG:
        return 0.0
    share = _alike_share(one.outputs)
    if not share:
        return 0.0
    rows = torch.randn(one.layer.weight.shape, generator=torch.Generator().manual_seed(0)).to(one.inputs)
    return max(0.0, share - _alike_share(one.inputs @ rows.T))


def _alike_share(outputs: Tensor) -> float:
    """Share of all units, (B, m), that vary over the examples together with another one."""
    centred = outputs.double() - outputs.double().mean(0)
    sizes = torch.linalg.vector_norm(centred, dim=0)
    varies = sizes > ROUNDING * torch.linalg.vector_norm(outputs, dim=0, dtype=torch.double)
    units = (centred[:, varies] / sizes[varies]).T.float()
    if len(units) < 2:
        return 0.0
    count = 0
    for places in torch.split(torch.arange(len(units), device=units.device), _DISTINCT):
        correlation = (units[places] @ units.T).abs()
        correlation[torch.arange(len(places), device=units.device), places] = 0  # itself
        count += int((correlation.amax(1) >= ALIKE).sum())
    return count / outputs.shape[1]


def _effective_share(lengths: Tensor) -> Tensor:
    """(Σ r)² / (B Σ r²) over the first dimension, the effective sample size as a share (Kish 1965)."""
    return lengths.sum(0).square() / (len(lengths) * lengths.square().sum(0))

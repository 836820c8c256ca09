"""What in a trace would let a server tell one example from the others."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.trace import LayerTrace

OWNED = 0.9
"""Share of a row's gradient from which on the row shows one example."""
ROUNDING = 1e-5
"""A difference below this share of the rows that it is taken from drowns in float32's rounding."""
SAME = 1 - 1e-9
"""Cosine from which on two rows say the same: they differ by less than ``ROUNDING`` or little more."""
NEIGHBOURS = 8
"""Most similar rows that a row is compared with."""
WITNESSES = 2
"""Other examples that must agree on the factor between two rows: one that fits a single batch is luck."""
AGREEMENT = 0.01
UNEVEN = 0.2
"""Share of a difference's energy that one example must have where it may stand alone; cheap to ask."""
ALIKE = 0.9999
"""Correlation, of either sign, from which on two units follow one direction of the examples.

At the same threshold one of them fires and the other does not for arccos(.9999) / π = .5 % of the examples.
"""
ALIKE_AMONG = 16
"""Examples below which units are alike by chance."""
_NUMBERS = 2**22  # compared at a time
_DISTINCT = 256  # rows, likewise


def isolated(one: LayerTrace) -> Tensor:
    """Which examples stand alone in a row of the layer's gradient.

    A row shows one example where its unit answers to that example alone (trap weights, trained heads, and
    rarely firing units of honest models).

    Returns:
        (B,) of bool.
    """
    sizes = one.sizes
    share, whose = (sizes / sizes.sum(0).clamp_min(torch.finfo(sizes.dtype).tiny)).max(0)
    return _marked(whose[share >= OWNED], like=sizes)


def paired(one: LayerTrace) -> Tensor:
    """Which examples stand alone in the difference of two rows: both units answer alike to every other one.

    Bins of thresholds do that, honest units hardly ever. It is looked for where units fire once per example.

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
    """Differences of two rows that most examples leave empty, D in number.

    Attributes:
        rows: of the layer's weight, (D,).
        others: the rows that a multiple of is taken off them, (D,).
        multiples: how much of them, (D,).
        examples: the only one that the rest shows, (D,); -1: it mixes several.
    """

    rows: Tensor
    others: Tensor
    multiples: Tensor
    examples: Tensor


def differences(signed_sizes: Tensor, *, like: float = -1.0, opposite: bool = False) -> Differences:
    """Differences of similar rows that all examples enter alike, but for one or a few.

    Args:
        signed_sizes: how each example adds to the gradient of each row, (B, rows), with its sign.
        like: cosine of two rows below which their difference is not looked at.
        opposite: rows that are similar but for their sign are looked at, too.
    """
    every = signed_sizes.T
    numbers = every.any(1).nonzero()[:, 0]
    rows = every[numbers].double()
    directions = F.normalize(rows / rows.abs().amax(1, keepdim=True), dim=1)  # however faint rows are
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
        left = (some - multiple).abs()
        whole = some.abs() + multiple.abs()
        agree = (left <= AGREEMENT * whole) & (whole > ROUNDING * whole.amax(1, keepdim=True))
        top, who = left.max(1)
        confirmed = (top >= ROUNDING * whole.sum(1)) & (agree.sum(1) >= WITNESSES)
        only = torch.where(top >= OWNED * left.sum(1), who, -1)
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
    """The pairs of rows whose difference, at the least squares' factor, some example shapes more than others.

    Args:
        directions: of all rows, (m, B).
        places: of the rows, (r,).
        neighbours: of each, (r, k).
        cosine: between them, (r, k).
        like: its size below which a pair is left out.

    Returns:
        Numbers of the rows and of the others, (pairs,) each.
    """
    few = directions.float()
    top = few.abs().amax(1)
    at_most = (top[places][:, None] + cosine.abs() * top[neighbours]).square()
    possible = (cosine.abs() >= like) & (at_most >= UNEVEN * (1 - cosine.square()))
    mine, others = places[:, None].expand_as(neighbours)[possible], neighbours[possible]
    left = (few[mine] - cosine[possible].float()[:, None] * few[others]).square()
    uneven = left.amax(1) >= UNEVEN * left.sum(1)
    return mine[uneven], others[uneven]


def _is_first(directions: Tensor) -> Tensor:
    """Which rows of length 1 are not the same as an earlier one."""
    if not len(directions):
        return torch.ones(0, dtype=torch.bool, device=directions.device)
    parts = torch.split(directions, _DISTINCT)
    first = [(some @ directions.T > SAME).byte().argmax(1) for some in parts]
    return torch.cat(first) == torch.arange(len(directions), device=directions.device)


def concentration(*parts: LayerTrace) -> float:
    """How few examples shape the layer's gradient: 0 if all do alike, towards 1 if one of many does.

    1 if no example reaches the layer. Where some do, and what they add vanishes, as if it were one of them.

    Args:
        parts: of the same layer, each of other examples.
    """
    lengths = torch.cat([one.sizes.norm(dim=1) for one in parts])
    if not lengths.any():
        return 1 - 1 / len(lengths) if any(one.is_reached for one in parts) else 1.0
    return 1 - float(_effective_share(lengths))


def narrowness(one: LayerTrace) -> float:
    """How few examples shape the gradient of one unit, on average over the units that any example reaches.

    0 if all do alike in every unit, towards 1 if one of many does in each; 0 if no unit is reached.
    """
    sizes = one.sizes
    sizes = sizes[:, sizes.any(0)]
    return 1 - float(_effective_share(sizes).mean()) if sizes.shape[1] else 0.0


def alike(one: LayerTrace) -> float:
    """Share of the units that follow, over the examples, the direction of another one: bins of thresholds.

    Their pre-activations are each other's up to a factor and a shift, whatever the layers behind them do.
    Looked for where units fire once per example, and in ``ALIKE_AMONG`` examples or more. What units with
    random weights show of the same inputs, as where all but one or two of these are dead, is taken off.
    """
    if one.outputs is None or not one.is_flat or len(one.outputs) < ALIKE_AMONG:
        return 0.0
    share = _alike_share(one.outputs)
    if not share:
        return 0.0
    rows = torch.randn(one.layer.weight.shape, generator=torch.Generator().manual_seed(0)).to(one.inputs)
    return max(0.0, share - _alike_share(one.inputs @ rows.T))


def _alike_share(outputs: Tensor) -> float:
    """Of all units, (B, m), those that vary and do so with another one."""
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

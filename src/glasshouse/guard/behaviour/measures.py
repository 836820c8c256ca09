"""What in a trace would let a server tell one example from the others."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.guard.behaviour.trace import LayerTrace

OWNED = 0.9
"""Share of a row's gradient from which on the row shows one example."""
ROUNDING = 1e-5
"""A difference below this share of the rows that it is taken from drowns in float32's rounding."""
ALIKE = 1e-5
"""Rows whose cosine is this close to 1 say the same."""
NEIGHBOURS = 8
WITNESSES = 2
"""Other examples that must agree on the factor between two rows: a factor that fits one batch is no read-out."""
AGREEMENT = 0.01


@final
@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What stands alone in the gradient of a layer.

    A row shows one example where its unit answers to that example alone (trap weights, trained heads). The
    difference of two rows does where both units answer alike to all other examples (bins).

    Attributes:
        examples: which of the batch do, (B,) of bool.
        rows: share of the rows, of those that any example reaches, that show one, alone or in a difference.
    """

    examples: Tensor
    rows: float


def isolate(one: LayerTrace) -> Isolation:
    """Look for examples in single rows, and where units fire once per example in differences of similar rows."""
    sizes = one.sizes()
    total = sizes.sum(0)
    largest, whose = (sizes / total.clamp_min(torch.finfo(sizes.dtype).tiny)).max(0)
    owned = largest >= OWNED
    alone = torch.zeros(len(sizes), dtype=torch.bool)
    alone[whose[owned]] = True
    number = int(owned.sum())
    if one.is_flat:
        others, pairs = _isolated_by_difference(one)
        alone |= others
        number = max(number, pairs)
    return Isolation(examples=alone, rows=number / max(int((total > 0).sum()), 1))


def _isolated_by_difference(one: LayerTrace) -> tuple[Tensor, int]:
    """Examples that a row minus a multiple of a similar one shows, and of how many rows that is true."""
    weighted = (one.pulls * one.inputs.norm(dim=1, keepdim=True)).T.double()  # (m, B)
    rows = _distinct(weighted[weighted.any(1)])
    alone = torch.zeros(weighted.shape[1], dtype=torch.bool)
    pairs = 0
    if len(rows) < 2:
        return alone, pairs
    unit = torch.nn.functional.normalize(rows, dim=1)
    for some, directions in zip(rows.split(256), unit.split(256), strict=True):
        cosine = directions @ unit.T
        cosine[cosine > 1 - ALIKE] = -1  # itself
        near = rows[cosine.topk(min(NEIGHBOURS, len(rows) - 1), dim=1).indices]  # (r, k, B)
        ratios = torch.where(near != 0, some[:, None] / near, torch.nan)
        factor = ratios.nanmedian(2, keepdim=True).values.nan_to_num()
        left = (some[:, None] - factor * near).abs()
        whole = some[:, None].abs() + (factor * near).abs()
        witnesses = ((left <= AGREEMENT * whole) & (whole > ROUNDING * whole.amax(2, keepdim=True))).sum(2)
        top, who = left.max(2)
        clear = (top >= OWNED * left.sum(2)) & (top >= ROUNDING * whole.sum(2)) & (witnesses >= WITNESSES)
        alone[who[clear]] = True
        pairs += int(clear.any(1).sum())
    return alone, pairs


def _distinct(rows: Tensor) -> Tensor:
    """Without rows that are a multiple of an earlier one."""
    unit = torch.nn.functional.normalize(rows, dim=1)
    first = torch.cat([(some @ unit.T > 1 - ALIKE).int().argmax(1) for some in unit.split(256)])
    return rows[first == torch.arange(len(rows))]


def unevenness(one: LayerTrace) -> float:
    """From 0, all examples shape the layer's gradient alike, to 1, one of many does, or none.

    1 minus the effective share of examples, (Σ r)² / (B Σ r²), r the length of an example's gradient.
    """
    if one.is_flat:
        lengths = one.pulls.norm(dim=1) * one.inputs.norm(dim=1)
    else:
        lengths = torch.cat([part.flatten(1).norm(dim=1) for part in one.contributions()])
    total = lengths.double().square().sum()
    return 1.0 if total == 0 else 1 - float(lengths.double().sum() ** 2 / (len(lengths) * total))


def silent(one: LayerTrace) -> float:
    """Share of units through which none of the examples reaches the loss."""
    channels = 1 if isinstance(one.layer, (nn.Conv1d, nn.Conv2d)) else one.pulls.ndim - 1
    return float((one.pulls == 0).movedim(channels, 0).flatten(1).all(1).double().mean())

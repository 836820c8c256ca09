"""What in a trace would let a server tell one example from the others."""

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.trace import LayerTrace

OWNED = 0.9
"""Share of a row's gradient from which on the row shows one example."""
ROUNDING = 1e-5
"""A difference below this share of the rows that it is taken from drowns in float32's rounding."""
SAME = 1 - 1e-5
"""Cosine from which on two rows say the same."""
NEIGHBOURS = 8
"""Most similar rows that a row is compared with."""
WITNESSES = 2
"""Other examples that must agree on the factor between two rows: one that fits a single batch is luck."""
AGREEMENT = 0.01
_ROWS = 256  # compared at a time


def isolated(one: LayerTrace) -> Tensor:
    """Which examples stand alone in a row of the layer's gradient, or in the difference of two rows.

    A row shows one example where its unit answers to that example alone (trap weights, trained heads, and
    rarely firing units of honest models). The difference of two rows does where both units answer alike to
    every other example (bins of thresholds); it is looked for where units fire once per example.

    Returns:
        (B,) of bool.
    """
    sizes = one.sizes()
    share, whose = (sizes / sizes.sum(0).clamp_min(torch.finfo(sizes.dtype).tiny)).max(0)
    alone = torch.zeros(len(sizes), dtype=torch.bool, device=sizes.device)
    alone[whose[share >= OWNED]] = True
    if one.is_flat:
        alone[_shown_by_differences(one.pulls * one.inputs.norm(dim=1, keepdim=True))] = True
    return alone


def _shown_by_differences(signed_sizes: Tensor) -> Tensor:
    """Numbers of the examples that a row minus a multiple of a similar row shows; from (B, m)."""
    rows = _distinct(signed_sizes.T[signed_sizes.any(0)].double())
    directions = F.normalize(rows, dim=1)
    shown = [rows.new_empty(0, dtype=torch.long)]
    for some, own in zip(torch.split(rows, _ROWS), torch.split(directions, _ROWS), strict=True):
        cosine = own @ directions.T
        cosine[cosine > SAME] = -1  # itself
        near = rows[cosine.topk(min(NEIGHBOURS, len(rows) - 1), dim=1).indices]  # (r, k, B)
        ratios = torch.where(near != 0, some[:, None] / near, torch.nan)
        multiple = ratios.nanmedian(2, keepdim=True).values.nan_to_num() * near
        left = (some[:, None] - multiple).abs()
        whole = some[:, None].abs() + multiple.abs()
        agree = (left <= AGREEMENT * whole) & (whole > ROUNDING * whole.amax(2, keepdim=True))
        top, who = left.max(2)
        alone = (top >= OWNED * left.sum(2)) & (top >= ROUNDING * whole.sum(2)) & (agree.sum(2) >= WITNESSES)
        shown.append(who[alone])
    numbers: Tensor = torch.cat(shown)
    return numbers


def _distinct(rows: Tensor) -> Tensor:
    """Without rows that are a multiple of an earlier one."""
    directions = F.normalize(rows, dim=1)
    first = [(some @ directions.T > SAME).int().argmax(1) for some in torch.split(directions, _ROWS)]
    return rows[torch.cat(first) == torch.arange(len(rows), device=rows.device)] if len(rows) else rows


def concentration(one: LayerTrace) -> float:
    """How few examples shape the layer's gradient: 0 if all do alike, towards 1 if one of many does.

    It is 1 − (Σ r)² / (B Σ r²) over the lengths r of the examples' gradients: 1 minus the effective sample
    size as a share of the batch (Kish 1965). 1 if no example reaches the layer.
    """
    if one.is_flat:
        lengths = one.pulls.norm(dim=1) * one.inputs.norm(dim=1)
    else:
        lengths = torch.cat([part.flatten(1).norm(dim=1) for part in one.contributions()])
    lengths = lengths.double()
    squares = lengths.square().sum()
    return 1 - float(lengths.sum() ** 2 / (len(lengths) * squares)) if squares > 0 else 1.0

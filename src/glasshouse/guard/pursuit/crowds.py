"""The search for read-outs of many rows: crowds that share a hyperplane, and rows that always fire.

What a read-out gets can vanish on both sides of a row's hyperplane only if rows with almost the same
hyperplane make up for the jump there. A server may split the other rows' part over as many rows as it likes
(windows), or let rows on the other side of the hyperplane complete it to what always fires (halves), and take
that off by rows that fire for everybody, which all read-outs share.

Shape letters as in :mod:`glasshouse.guard.pursuit.search`.
"""

from typing import Final

import torch
from torch import Tensor

from glasshouse.guard.pursuit.limits import ALWAYS, COMPLETED, CROWDED, CROWDS, SHARED, SUPPORTS
from glasshouse.guard.pursuit.search import FIRES, ReadOuts, fit, in_blocks, likeness

_BESIDE: Final = (1, 8)  # rows of the same hyperplane that are subtracted with those that always fire
_SPAN: Final = 1e-6  # of the largest row that always fires, beyond what others span


def search_crowds(pulls: Tensor) -> ReadOuts:
    """The read-outs of more rows than :func:`~glasshouse.guard.pursuit.search.search` combines.

    Args:
        pulls: of N examples on the R rows of a group, (N, R): many are needed, as many weights are fitted.
    """
    return in_blocks(pulls, _in_block)


def _in_block(scaled: Tensor) -> ReadOuts:
    columns = scaled.T.contiguous()
    return _windows(columns) + _halves(columns)


def _windows(columns: Tensor) -> ReadOuts:
    """Rows minus many others that fire for nearly the same examples."""
    found = ReadOuts.none()
    near = likeness(columns).fill_diagonal_(-1).topk(min(max(CROWDS), len(columns) - 1), dim=1)
    if near.indices.shape[1] <= max(SUPPORTS):
        return found
    crowded = (near.values[:, max(SUPPORTS)] >= CROWDED).nonzero()[:, 0]
    for size in sorted({min(size, near.indices.shape[1]) for size in CROWDS}) if len(crowded) else ():
        found = found + fit(columns, near.indices[crowded, :size], crowded)
    return found


def _halves(columns: Tensor) -> ReadOuts:
    """Rows, with those that fire for the other examples, minus rows that always fire."""
    fires = (columns.abs() > FIRES).double()
    is_always = fires.mean(1) >= ALWAYS
    opposite = _jaccard(fires, 1 - fires)
    beside = torch.maximum(_jaccard(fires, fires), opposite).fill_diagonal_(-1)
    beside[:, is_always] = opposite[:, is_always] = opposite[is_always] = -1
    completed = opposite.amax(1)
    halves = (completed >= CROWDED).nonzero()[:, 0]
    found = ReadOuts.none()
    for always in (is_always.nonzero()[:, 0], _pairs(completed)):
        shared = _spanning(columns, always)
        for size in _BESIDE if len(halves) and len(shared) else ():
            near = beside[halves].topk(min(size, len(columns) - 1), dim=1).indices
            support = torch.cat([near, shared.expand(len(halves), -1)], 1)
            found = found + fit(columns, support, halves)
    return found


def _pairs(completed: Tensor) -> Tensor:
    """Rows that another one completes best: two of them together fire for everybody, too."""
    order = completed.argsort(descending=True, stable=True)[:SHARED]
    return order[completed[order] >= COMPLETED]


def _spanning(columns: Tensor, some: Tensor) -> Tensor:
    """Those of ``some`` rows that span the others, at most ``SHARED``."""
    left, chosen = columns[some].clone(), []
    for _ in range(min(SHARED, len(some))):
        sizes = left.square().sum(1)
        place = int(sizes.argmax())
        if float(sizes[place]) < _SPAN * columns.shape[1]:
            break
        chosen.append(int(some[place]))
        unit = left[place] / sizes[place].sqrt()
        left = left - (left @ unit)[:, None] * unit
    return torch.tensor(chosen, dtype=torch.long)


def _jaccard(first: Tensor, other: Tensor) -> Tensor:
    """How alike the examples are for which rows (r, N) and rows (s, N) fire, (r, s)."""
    both = first @ other.T
    return both / (first.sum(1)[:, None] + other.sum(1) - both).clamp_min(1)

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

from glasshouse.guard.pursuit.limits import ALWAYS, AT_A_TIME, CROWD, CROWDED, SHARED, SUPPORTS
from glasshouse.guard.pursuit.search import FIRES, NEVER_ZERO, ReadOuts, fit, in_blocks, likeness

_BESIDE: Final = 2  # rows of the same hyperplane that are subtracted with those that always fire
_SPAN: Final = 1e-6  # of the largest row that always fires, beyond what others span


def search_crowds(pulls: Tensor, fires: Tensor | None = None) -> ReadOuts:
    """The read-outs of more rows than :func:`~glasshouse.guard.pursuit.search.search` combines.

    Args:
        pulls: of N examples on the R rows of a group, (N, R): many are needed, as many weights are fitted.
        fires: for which examples each row fires, (N, R); None: where it has any pull.
    """
    return in_blocks(pulls, _in_block, fires=fires, blocks=_with_other_side)


def search_halves(pulls: Tensor, fires: Tensor | None = None) -> ReadOuts:
    """The same without windows: rows of two rounds are all near, so that these would take minutes."""
    return in_blocks(pulls, _halves_in_block, fires=fires, blocks=_with_other_side)


def search_completed(pulls: Tensor, passed: Tensor, fires: Tensor | None = None) -> ReadOuts:
    """Read-outs of halves, less what later units pass back: rows that always fire may be made of many pairs.

    Args:
        pulls: of N examples on the R rows of a group, (N, R).
        passed: what they pass back to K later units, in the measure of the group's inputs, (N, K): what rows
            that fire for everybody would have. Read-outs count them as rows R, R + 1, ...
        fires: for which examples each row fires, (N, R); None: where it has any pull.
    """
    count = pulls.shape[1]
    sizes = pulls.square().mean(0).sqrt()
    alive = (sizes > 0).nonzero()[:, 0]
    is_on = pulls.abs() > FIRES * sizes if fires is None else fires
    order = _far_from_half(is_on[:, alive].sum(0), len(pulls)).argsort(stable=True)
    found = ReadOuts.none()
    for rows in torch.split(alive[order], AT_A_TIME):
        both = torch.cat([rows, torch.arange(count, count + passed.shape[1])])
        columns = torch.cat([pulls, passed], 1)[:, both].double()
        scale = columns.square().mean(0).sqrt().clamp_min(1e-300)
        always = torch.ones(passed.shape[1], len(pulls), dtype=torch.double)
        sides = torch.cat([is_on[:, rows].T.double(), always])
        own = _halves((columns / scale).T.contiguous(), sides, len(rows))
        found = found + ReadOuts(rows=both[own.rows], weights=own.weights / scale[own.rows])
    return found


def _with_other_side(columns: Tensor, fires: Tensor) -> list[Tensor]:
    """Blocks of rows (r, N) that fire for as many examples as others do not, each with what always fires.

    A server with more rows than a block has would put the two sides of a hyperplane into different ones.
    """
    count = columns.shape[1]
    is_always = fires >= ALWAYS * count
    shared = is_always.nonzero()[:, 0]
    if len(shared):
        shared = _spanning(columns, shared)
    order = _far_from_half(fires, count).argsort(stable=True)
    split = torch.split(order[~is_always[order]], AT_A_TIME - len(shared))
    return [torch.cat([some, shared]) for some in split] or [shared]


def _far_from_half(fires: Tensor, count: int) -> Tensor:
    return (2 * fires - count).abs()


def _in_block(scaled: Tensor, fires: Tensor) -> ReadOuts:
    columns, sides = scaled.T.contiguous(), fires.T.double()
    return ReadOuts.none() if _always_fire(sides) else _windows(columns, sides) + _halves(columns, sides)


def _halves_in_block(scaled: Tensor, fires: Tensor) -> ReadOuts:
    columns, sides = scaled.T.contiguous(), fires.T.double()
    return ReadOuts.none() if _always_fire(sides) else _halves(columns, sides)


def _always_fire(fires: Tensor) -> bool:
    """Whether every row does, so that nothing tells which share a hyperplane."""
    return float(fires.mean()) > NEVER_ZERO


def _windows(columns: Tensor, fires: Tensor) -> ReadOuts:
    """Rows minus many others that fire for nearly the same examples."""
    size = min(CROWD, len(columns) - 1, columns.shape[1] // 4)
    if size <= max(SUPPORTS):
        return ReadOuts.none()
    near = likeness(columns, fires).fill_diagonal_(-1).topk(size, dim=1)
    crowded = (near.values[:, max(SUPPORTS)] >= CROWDED).nonzero()[:, 0]
    if not len(crowded):
        return ReadOuts.none()
    return fit(columns, near.indices[crowded], crowded)


def _halves(columns: Tensor, fires: Tensor, count: int | None = None) -> ReadOuts:
    """Rows, with those that fire for the other examples, minus rows that always fire.

    Args:
        columns: rows of the block, (r, N).
        fires: for which examples they fire, as 0 and 1, (r, N).
        count: only these are rows; all others, and no others, are what always fires. None: all are rows.
    """
    is_always = fires.mean(1) >= ALWAYS
    shared = is_always.nonzero()[:, 0] if count is None else torch.arange(count, len(columns))
    if count is not None:
        is_always[count:] = True
    opposite = _jaccard(fires, 1 - fires)
    beside = torch.maximum(_jaccard(fires, fires), opposite).fill_diagonal_(-1)
    beside[:, is_always] = opposite[:, is_always] = opposite[is_always] = -1
    halves = (opposite.amax(1) >= CROWDED).nonzero()[:, 0]
    if not len(halves) or not len(shared):
        return ReadOuts.none()
    shared = _spanning(columns, shared)
    near = beside[halves].topk(min(_BESIDE, len(columns) - 1), dim=1).indices
    support = torch.cat([near, shared.expand(len(halves), -1)], 1)
    return fit(columns, support, halves)


def _spanning(columns: Tensor, some: Tensor) -> Tensor:
    """Those of ``some`` rows that span the others: no more than can be fitted."""
    left, chosen = columns[some].clone(), []
    for _ in range(min(SHARED + 16, len(some))):
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

"""The search for read-outs of few rows: combinations whose response to the examples is sparse.

A row's pulls minus a few other rows' cancel for most examples where the rows were made to differ for one. The
fit is robust (least absolute values), so that the spike that is to remain does not pull it. Which rows are
subtracted: the most correlated ones, those of a matching pursuit, and those that fire for the same examples,
because what a server's rows share is their hyperplane, and their outgoing weights may be anything.

Shape letters: N examples, R rows, r rows of a block, k subtracted rows, C read-outs, w rows in each.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.pursuit.limits import (
    AT_A_TIME,
    GIVEN_UP,
    LIKELY,
    LITTLE,
    ROUNDS,
    SPIKES,
    SUPPORTS,
)

_DEAD: Final = 1e-9  # of the largest row
FIRES: Final = 1e-6  # of a row's root mean square
NEVER_ZERO: Final = 0.99  # share of nonzero pulls from which on zeros say nothing
_RIDGE: Final = 1e-10
_SMALL, _FILLED = 128, 4  # rows of a block up to which supports are filled up, and to how many rows


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReadOuts:
    """C fixed read-outs of few rows.

    Attributes:
        rows: of each read-out, (C, w).
        weights: of these rows, (C, w); 0 where a read-out has fewer.
    """

    rows: Tensor
    weights: Tensor

    @classmethod
    def single(cls, count: int) -> "ReadOuts":
        """Each of ``count`` rows by itself."""
        return cls(rows=torch.arange(count)[:, None], weights=torch.ones(count, 1, dtype=torch.double))

    @classmethod
    def none(cls) -> "ReadOuts":
        """No read-outs."""
        return cls(rows=torch.zeros(0, 2, dtype=torch.long), weights=torch.zeros(0, 2, dtype=torch.double))

    @property
    def alone(self) -> Tensor:
        """Which of them read one row, (C,)."""
        return (self.weights != 0).sum(1) == 1

    def of(self, pulls: Tensor) -> Tensor:
        """Responses (N, C) to pulls (N, R); of transposed rows of an update (n, R), what is read (n, C)."""
        weights = self.weights.to(pulls)
        return F.embedding_bag(self.rows, pulls.T, per_sample_weights=weights, mode="sum").T.contiguous()

    def __add__(self, other: "ReadOuts") -> "ReadOuts":
        width = max(self.rows.shape[1], other.rows.shape[1])
        pad = F.pad
        both = (
            torch.cat([pad(t, (0, width - t.shape[1])) for t in pair])
            for pair in ((self.rows, other.rows), (self.weights, other.weights))
        )
        rows, weights = both
        return ReadOuts(rows=rows, weights=weights)


def search(pulls: Tensor, fires: Tensor | None = None) -> ReadOuts:
    """The read-outs of 2 to 10 rows that are sparse on these examples.

    Args:
        pulls: of N examples on the R rows of a group, (N, R).
        fires: for which examples each row fires, (N, R); None: where it has any pull.

    Returns:
        Combinations only (add :meth:`ReadOuts.single`); none if fewer than 2 rows are alive.
    """
    return in_blocks(pulls, _in_block, fires=fires)


def in_blocks(
    pulls: Tensor,
    find: Callable[[Tensor, Tensor], ReadOuts],
    *,
    fires: Tensor | None = None,
    blocks: Callable[[Tensor, Tensor], list[Tensor]] | None = None,
) -> ReadOuts:
    """What ``find`` finds in blocks of the R rows of a group, each scaled to a root mean square of 1.

    Args:
        pulls: of N examples on the rows, (N, R).
        find: read-outs of the rows (N, r) of a block that fire for some examples, (N, r).
        fires: for which examples each row fires, (N, R); None: where it has any pull.
        blocks: divides scaled rows (R, N) of which each fires for some number of examples, (R,), where they
            are more than one block has; None: those that fire about equally often share a block.
    """
    pulls = pulls.double()
    sizes = pulls.square().mean(0).sqrt()
    alive = (sizes > _DEAD * sizes.max().clamp_min(1e-300)).nonzero()[:, 0]
    found = ReadOuts.none()
    if len(alive) < 2:
        return found
    is_on = pulls.abs() > FIRES * sizes if fires is None else fires
    # Rows that a server made to differ for few examples fire for about as many: they share a block.
    counts = is_on[:, alive].sum(0)
    if blocks is not None and len(alive) > AT_A_TIME:
        parts = [alive[part] for part in blocks((pulls[:, alive] / sizes[alive]).T.contiguous(), counts)]
    else:
        parts = list(torch.split(alive[counts.argsort(stable=True)], AT_A_TIME))
    for block in parts:
        if len(block) > 1:
            own = find(pulls[:, block] / sizes[block], is_on[:, block])
            found = found + ReadOuts(rows=block[own.rows], weights=own.weights / sizes[block][own.rows])
    return found


def _in_block(scaled: Tensor, fires: Tensor) -> ReadOuts:
    """The read-outs of a block of rows, each scaled to a root mean square of 1, (N, r)."""
    count = scaled.shape[1]
    columns, every = scaled.T.contiguous(), torch.arange(count)
    correlation = (columns @ scaled / len(scaled)).fill_diagonal_(0)
    # a. Most correlated rows, fitted, and the nearest with the sign of the correlation as it is.
    near = correlation.abs().topk(min(LIKELY, count - 1), dim=1).indices
    supports = [near[:, : k + 1] for k in range(near.shape[1])]
    # b. Matching pursuit, which takes a second and third row for what the first leaves.
    supports += _matching(columns, correlation, most=min(3, count - 1))
    # c. Rows that fire for the same examples, whatever the sign and size of their pulls.
    alike = likeness(columns, fires.T.double()).fill_diagonal_(-1)
    order = alike.topk(min(max(SUPPORTS), count - 1), dim=1).indices
    supports += [order[:, :k] for k in sorted({min(k, order.shape[1]) for k in SUPPORTS})]
    # Supports of one width are fitted together; in small layers, where the number of operations is what it
    # costs, those of few rows too, filled up with a row of zeros.
    least = _FILLED if count <= _SMALL else 1
    of_width: dict[int, list[Tensor]] = defaultdict(list)
    for support in supports:
        lacks = max(0, least - support.shape[1])
        of_width[support.shape[1] + lacks].append(F.pad(support, (0, lacks), value=count))
    filled = torch.cat([columns, torch.zeros_like(columns[:1])])
    found = [fit(filled, *_different(of_width[width], every)) for width in sorted(of_width)]
    signs = correlation.gather(1, near[:, :1]).sign()
    hopeful = _is_hopeful(columns - signs * columns[near[:, 0]])
    found.append(_fixed(near[hopeful, :1], signs[hopeful], every[hopeful]))
    total = found[0]
    for more in found[1:]:
        total = total + more
    return total


def _different(supports: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """The supports of ``rows`` (r, k) that differ, and the row that each belongs to: no fit is done twice."""
    if len(supports) == 1:
        return supports[0], rows
    every = torch.cat([torch.cat([rows[:, None], one.sort(1).values], 1) for one in supports])
    different = torch.unique(every, dim=0)
    return different[:, 1:], different[:, 0]


def _fixed(support: Tensor, weights: Tensor, rows: Tensor) -> ReadOuts:
    """Each of ``rows`` minus ``weights`` times the rows of its support, (r, k)."""
    ones = torch.ones(len(support), 1, dtype=torch.double)
    support = torch.where(weights == 0, rows[:, None], support)
    return ReadOuts(
        rows=torch.cat([rows[:, None], support], 1), weights=torch.cat([ones, -weights.double()], 1)
    )


def fit(columns: Tensor, support: Tensor, rows: Tensor) -> ReadOuts:
    """Weights that minimise the sum of absolute residuals, by reweighted least squares.

    Args:
        columns: rows of the block, (r, N).
        support: of each of ``rows``, (r, k).
        rows: from which others are subtracted; one may come several times.
    """
    aimed, others = columns[rows], columns[support]  # (r, N), (r, k, N)
    weights, beta = torch.ones_like(aimed), torch.zeros_like(support, dtype=torch.double)
    eye = _RIDGE * columns.shape[1] * torch.eye(support.shape[1], dtype=columns.dtype)
    for step in range(ROUNDS):
        weighted = others * weights[:, None]
        products = weighted @ others.mT + eye
        aims = (weighted @ aimed[..., None])[..., 0]
        beta = torch.linalg.solve_ex(products, aims)[0].nan_to_num(0, 0, 0)
        residual = aimed - _summed(beta, others)
        if step == GIVEN_UP and not bool((hopeful := _is_hopeful(residual)).all()):
            aimed, others, residual = aimed[hopeful], others[hopeful], residual[hopeful]
            beta, support, rows = beta[hopeful], support[hopeful], rows[hopeful]
            if not len(rows):
                break
        weights = 1 / (residual.abs() + max(1e-6, 0.1 * 0.6**step))
        weights = weights / weights.mean(1, keepdim=True)
    return _fixed(support, beta, rows)


def _summed(weights: Tensor, rows: Tensor) -> Tensor:
    """Rows (r, k, N) times their weights (r, k), summed, (r, N).

    Weights come from a solver, column by column: a product of matrices takes ten times as long then.
    """
    return (weights[..., None] * rows).sum(1)


def _is_hopeful(residual: Tensor) -> Tensor:
    """Whether what a fit leaves, (r, N), may still become sparse: it is little, or few examples have it."""
    energy = residual.square()
    whole = energy.sum(1)
    examples = whole.square() / energy.square().sum(1).clamp_min(1e-300)
    return (whole < LITTLE * residual.shape[1]) | (examples <= SPIKES)


def _matching(columns: Tensor, correlation: Tensor, *, most: int) -> list[Tensor]:
    """Supports of 2 and more rows by orthogonal matching pursuit."""
    support = correlation.abs().argmax(1)[:, None]
    supports = []
    for _ in range(1, most):
        others = columns[support]
        eye = _RIDGE * columns.shape[1] * torch.eye(support.shape[1], dtype=columns.dtype)
        aims = (others @ columns[..., None])[..., 0]
        beta = torch.linalg.solve_ex(others @ others.mT + eye, aims)[0].nan_to_num(0, 0, 0)
        residual = columns - _summed(beta, others)
        left = (residual @ columns.T).abs().fill_diagonal_(-1).scatter(1, support, -1.0)
        support = torch.cat([support, left.argmax(1)[:, None]], dim=1)
        supports.append(support)
    return supports


def likeness(columns: Tensor, fires: Tensor) -> Tensor:
    """How alike the supports of two rows are, (r, r): Jaccard, or a cosine where nothing is zero."""
    if float(fires.mean()) > NEVER_ZERO:
        sizes = F.normalize(columns.abs(), dim=1)
        return sizes @ sizes.T
    both, each = fires @ fires.T, fires.sum(1)
    return both / (each + each[:, None] - both).clamp_min(1)

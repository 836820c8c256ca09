"""Which of a client's examples fill columns of its update alone.

Whoever gates a layer's inputs, by frozen weights or anything else before it, lets few examples in through
each column, or through one and not through another, and the gradient there is theirs, whatever the rows are.
Combinations of columns are searched like those of rows.

Shape letters: B examples behind the update, R rows of a tensor, n columns, K read-outs of columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from glasshouse.guard.layers.standing import Leak
from glasshouse.guard.pursuit.groups import Group
from glasshouse.guard.pursuit.judge import Responses, cells_of, dominance
from glasshouse.guard.pursuit.limits import ROUNDING, SEARCHED, VISIBLE
from glasshouse.guard.pursuit.rows import FIRST, Side
from glasshouse.guard.pursuit.search import ReadOuts, search

FEWEST: Final = 32
"""Own columns from which on an example may count as exposed."""
BY_CHANCE: Final = 128
"""One in so many columns may be an example's own by chance: of 68 honest architectures at most 0.03 of a
batch has more, of random features in 12,288 columns 0.04."""
COMBINED: Final = 64
"""The same where combinations of columns count, too: of eight honest architectures at most 2 of 64."""
CROSSED: Final = 16
"""One in so many columns of some row may be an example's own by chance, of ``OFTEN`` of a batch: where few
units fire and few features are there, both meet for one example (eight honest architectures: up to 0.34)."""
OFTEN: Final = 0.4
_COLUMNS: Final = (1,)
_TINY: Final = 1e-300


def find_columns(
    side: Side, sent: Tensor, count: int, turns: Iterable[tuple[Tensor, Tensor]], *, is_known: bool = True
) -> Iterator[Leak]:
    """The examples whose features stand in columns of what is sent of one tensor.

    Of tensors that read the examples as they are, a few own columns show single numbers, as the border of a
    digit, which every model sends: the caller leaves these tensors out.

    Args:
        side: its rows, and what all examples add to them.
        sent: the tensor's update; only matrices and vectors have columns that can be named.
        count: how many examples are behind it, B: the first ones.
        turns: on which examples to search, and which of the B are judged then.
        is_known: the update is what the examples add; else it also holds what was there before.
    """
    read = side.directions
    if sent.ndim > 2 or read is None or read.shape[1] < FEWEST:
        return
    rows = Responses.of_all(side.sizes[:count])
    matrix = sent.detach().double().reshape(-1, read.shape[1])
    added = torch.zeros(len(side.pulls[:count]), len(matrix), dtype=torch.double)
    added[:, side.numbers if len(matrix) > 1 else slice(None)] = side.pulls[:count].double()
    if not is_known:
        matrix = (added.T @ read[:count].double()) * (matrix != 0)
    # Too few examples to search on: single columns are judged.
    for where, judged in [*turns] or [(torch.arange(0), torch.ones(count, dtype=torch.bool))]:
        more = search(read[where[:SEARCHED]]) if len(where) else ReadOuts.none()
        both = ReadOuts.single(read.shape[1]) + more
        own, is_enough = _own(rows, Responses.of(read[:count], more), count)
        seen, mine = both.of(matrix), both.of(read[:count].double())
        for example in (is_enough & judged).nonzero()[:, 0].tolist():
            which = own[example].nonzero()[:, 0]
            missing = _missing(seen[:, which], torch.outer(added[example], mine[example, which]))
            if missing < 1 - VISIBLE:
                yield Leak(
                    example=example,
                    what="features",
                    layer=side.layer,
                    by="own columns",
                    missing=missing,
                    rows=tuple(torch.unique(both.rows[which, 0]).tolist()),
                    tensor=side.name,
                    axes=_COLUMNS if sent.ndim == 2 else FIRST,
                )


def find_crossed(groups: Iterable[Group], count: int, turns: Sequence[tuple[Tensor, Tensor]]) -> list[str]:
    """Tensors in which most examples fill columns of some row, or combination of rows, alone.

    Which rows and columns a server reads together cannot be told from an update: none of them is named. Of
    fewer than ``SEARCHED`` examples some are alone where any row and any column meet, in every model.

    Args:
        groups: of tensors that read features.
        count: how many examples are behind the update, B: the first ones.
        turns: on which examples to search, and which of the B are judged then.
    """
    found: dict[str, None] = {}
    for group in groups:
        read = group.sides[0].directions
        if read is None or read.shape[1] < FEWEST or group.pulls.shape[1] < 2 or count < SEARCHED:
            continue
        for where, judged in turns:
            few = where[:SEARCHED]
            fires = None if group.fires is None else group.fires[few]
            rows = Responses.of(group.pulls[:count], search(group.pulls[few], fires))
            columns = Responses.of(read[:count], search(read[few]))
            # Whom a row gives away by itself is named by that.
            is_told = dominance(rows.energy[:count], ROUNDING**2 * rows.parts[:count].sum(0)) > VISIBLE
            own = torch.zeros(count, read.shape[1], dtype=torch.bool)
            for cells in cells_of(rows, columns, torch.arange(count)):
                crossed = cells.is_clear & ~is_told[cells.example, cells.row]
                own[cells.example[crossed], columns.first[cells.column[crossed]]] = True
            alone = own.sum(1) >= max(FEWEST, read.shape[1] // CROSSED)
            if float(alone[judged].double().mean()) > OFTEN:
                found |= dict.fromkeys(group.names)
    return list(found)


def _own(rows: Responses, columns: Responses, count: int) -> tuple[Tensor, Tensor]:
    """Which read-outs of columns are an example's own, (B, K), and whether these are many, (B,)."""
    own = torch.zeros(count, len(columns.first), dtype=torch.bool)
    for cells in cells_of(rows, columns, torch.arange(count)):
        own[cells.example, cells.column] = True
    n = int(columns.first.max()) + 1
    filled = torch.zeros(count, n, dtype=torch.bool)
    example, column = own.nonzero(as_tuple=True)
    filled[example, columns.first[column]] = True
    few, many = own[:, :n].sum(1), filled.sum(1)
    return own, (few >= max(FEWEST, n // BY_CHANCE)) | (many >= max(FEWEST, n // COMBINED))


def _missing(block: Tensor, added: Tensor) -> float:
    """Share of the energy of some columns, (R, c), that the example did not add: noise, or others."""
    both = (block.square().sum() * added.square().sum()).clamp_min(_TINY)
    return float(1 - (block * added).sum().square() / both)

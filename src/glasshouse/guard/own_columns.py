"""Which of a client's examples fill columns of its update alone.

Whoever gates a layer's inputs, by frozen weights or by anything else before it, lets few examples in through
each column, and the gradient there is theirs, whatever the rows are. The client knows what each example adds
to each column, so that nothing has to be searched.

Shape letters: B examples behind the update, R rows of a tensor, n columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from glasshouse.guard.layers.standing import Leak
from glasshouse.guard.pursuit.judge import dominance
from glasshouse.guard.pursuit.limits import ROUNDING, VISIBLE
from glasshouse.guard.pursuit.pulls import Side
from glasshouse.guard.pursuit.rows import FIRST

FEWEST: Final = 32
"""Own columns from which on an example may count as exposed."""
BY_CHANCE: Final = 128
"""One in so many columns may be an example's own by chance: of 68 honest architectures at most 0.03 of a
batch has more, of random features in 12,288 columns 0.04."""
_COLUMNS: Final = (1,)
_TINY: Final = 1e-300


def find_columns(sides: Iterable[Side], sent: Mapping[str, Tensor], count: int) -> Iterator[Leak]:
    """The examples whose features stand in columns of an update.

    Of tensors that read the examples as they are, a few own columns show single numbers, as the border of a
    digit, which every model sends: the caller leaves these tensors out.

    Args:
        sides: of the tensors, of all examples; only matrices and vectors have columns that can be named.
        sent: the update, by name.
        count: how many examples are behind it, B: the first ones.
    """
    for side in sides:
        if side.name not in sent or side.axes not in (FIRST, ()) or sent[side.name].ndim > 2:
            continue
        if (filled := side.filled) is None:
            continue
        energy = filled[:count].square()
        energy = energy / energy.max().clamp_min(_TINY)
        own = dominance(energy, ROUNDING**2 * energy.sum(0)) > VISIBLE
        rows = sent[side.name].detach().double().reshape(-1, filled.shape[1])
        least = max(FEWEST, filled.shape[1] // BY_CHANCE)
        for example in (own.sum(1) >= least).nonzero()[:, 0].tolist():
            columns = own[example].nonzero()[:, 0]
            missing = _missing(rows[:, columns], side, example, columns)
            if missing < 1 - VISIBLE:
                yield Leak(
                    example=example,
                    what="features",
                    layer=side.layer,
                    by="own columns",
                    missing=missing,
                    rows=tuple(columns.tolist()),
                    tensor=side.name,
                    axes=_COLUMNS if sent[side.name].ndim == 2 else FIRST,
                )


def _missing(block: Tensor, side: Side, example: int, columns: Tensor) -> float:
    """Share of the energy of some columns (R, c) that the example did not add: noise, or others."""
    assert side.directions is not None
    mine = torch.zeros(len(block), dtype=torch.double)
    mine[side.numbers if len(block) > 1 else slice(None)] = side.pulls[example].double()
    added = torch.outer(mine, side.directions[example, columns].double())
    both = (block.square().sum() * added.square().sum()).clamp_min(_TINY)
    return float(1 - (block * added).sum().square() / both)

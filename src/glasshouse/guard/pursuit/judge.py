"""What read-outs isolate among examples on which they were not searched.

Shape letters: N examples, R rows, C read-outs, B examples of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.guard.pursuit.limits import CLEAR, DRAWS, OWN_COLUMNS, ROUNDING, VISIBLE
from glasshouse.guard.pursuit.search import ReadOuts

_TINY: Final = 1e-300
_TINIER: Final = 1e-37  # in single precision
_NUMBERS: Final = 2**18  # of responses in one pass
_CELLS: Final = 2**21  # of a tensor in one pass
_NEARLY: Final = 1 - 1e-9  # sums are added in another order


@final
@dataclass(frozen=True, kw_only=True)
class Isolated:
    """Share of the examples of a batch that some read-out isolates.

    Attributes:
        clear: at 30 dB.
        visible: at 18 dB.
        clear_alone: at 30 dB by a single row.
        visible_alone: likewise at 18 dB.
        best: index of the read-out that isolates an example in most batches at 30 dB.
        hits: share of the batches in which it does.
    """

    clear: float
    visible: float
    clear_alone: float
    visible_alone: float
    best: int
    hits: float


def dominance(energy: Tensor, noise: Tensor) -> Tensor:
    """Share of a read-out's energy that each example of a batch has, (..., B, C).

    Args:
        energy: squared responses, (..., B, C).
        noise: energy that rounding adds, (..., C).
    """
    return energy * (energy.sum(-2) + noise).clamp_min(_TINY).reciprocal()[..., None, :]


def rounding(read_outs: ReadOuts, rows: Tensor) -> Tensor:
    """Energy that rounding of a sum over a batch adds to each read-out, (..., C).

    Args:
        read_outs: C of them.
        rows: energy of the batch in each row, (..., R).
    """
    return ROUNDING**2 * (read_outs.weights.to(rows).square() * rows[..., read_outs.rows]).sum(-1)


def judge(pulls: Tensor, read_outs: ReadOuts, *, batch: int) -> Isolated:
    """What ``read_outs`` isolate in random batches of ``batch`` of these examples, (N, R)."""
    batches, pulls = _batches(len(pulls), batch), _scaled(pulls)
    member = _membership(batches, len(pulls))
    energy = read_outs.of(pulls).square()
    # A batch's energy tells of most read-outs that no example has enough of it: only the others are judged.
    able = (energy.amax(0) > _NEARLY * VISIBLE * (member @ energy).amin(0)).nonzero()[:, 0]
    if not len(able):
        return Isolated(clear=0, visible=0, clear_alone=0, visible_alone=0, best=0, hits=0)
    energy, few = energy[:, able], ReadOuts(rows=read_outs.rows[able], weights=read_outs.weights[able])
    noise, alone = rounding(few, member @ pulls.square()), few.alone
    tops, lone, hits = [], [], torch.zeros(len(able), dtype=torch.double)
    # As many batches in one pass as fit: most layers are small, and each operation has its price.
    size = max(1, _NUMBERS // (batch * len(able)))
    for some, added in zip(torch.split(batches, size), torch.split(noise, size), strict=True):
        d = dominance(energy[some], added)
        tops.append(d.amax(2))
        lone.append(d[..., alone].amax(2) if alone.any() else torch.zeros_like(tops[-1]))
        hits += (d.amax(1) > CLEAR).sum(0)
    top, single = torch.cat(tops), torch.cat(lone)
    best = int(hits.argmax())
    return Isolated(
        clear=float((top > CLEAR).double().mean()),
        visible=float((top > VISIBLE).double().mean()),
        clear_alone=float((single > CLEAR).double().mean()),
        visible_alone=float((single > VISIBLE).double().mean()),
        best=int(able[best]) if hits[best] else 0,
        hits=float(hits[best] / len(batches)),
    )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Responses:
    """What read-outs along one side of a tensor get of N examples, each scaled to a largest number of 1.

    Attributes:
        energy: squared responses, (N, C).
        parts: energy of what each read-out adds up, as rounding of the sums grows with it, (N, C).
        first: the row, or column, from which each read-out subtracts others, (C,).
    """

    energy: Tensor
    parts: Tensor
    first: Tensor

    @classmethod
    def of(cls, pulls: Tensor, read_outs: ReadOuts) -> "Responses":
        """Of ``read_outs`` and of each of the rows, or columns, by itself, (N, R)."""
        both, pulls = ReadOuts.single(pulls.shape[1]) + read_outs, _scaled(pulls).float()
        energy = both.of(pulls).square()
        squared = ReadOuts(rows=both.rows, weights=both.weights.square())
        parts, largest = squared.of(pulls.square()), energy.amax(0).clamp_min(_TINIER)
        return cls(energy=energy / largest, parts=parts / largest, first=both.rows[:, 0])

    @classmethod
    def of_all(cls, sizes: Tensor) -> "Responses":
        """Of all rows together, whatever is added to each, (N, R)."""
        energy = _scaled(sizes).square().sum(1, keepdim=True)
        energy = (energy / energy.max().clamp_min(_TINY)).float()
        return cls(energy=energy, parts=energy, first=torch.zeros(1, dtype=torch.long))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Cells of a tensor of which one example of a batch has nearly all the energy.

    Attributes:
        example: its place in the batch.
        row: number of the read-out of rows.
        column: number of the read-out of columns.
        is_clear: whether the example is read at 30 dB, else at 18 dB.
    """

    example: Tensor
    row: Tensor
    column: Tensor
    is_clear: Tensor


def cells_of(rows: Responses, columns: Responses, some: Tensor) -> Iterator[Cells]:
    """Where one example of a batch is alone: read-outs of rows and columns at once, block by block.

    What an example adds to a tensor is a product, of what it passes back and what it reads. Where a few
    examples pass back to a row, and a few others enter a column, one may be alone where both meet.

    Args:
        rows: C read-outs of rows.
        columns: K read-outs of columns.
        some: numbers of the examples of the batch, (B,).
    """
    passed, known = rows.energy[some].T.contiguous(), rows.parts[some].T
    for block in torch.split(torch.arange(columns.energy.shape[1]), max(1, _CELLS // len(passed))):
        read = columns.energy[some][:, block].T.contiguous()
        whole = passed @ read.T + ROUNDING**2 * (known @ columns.parts[some][:, block])
        # The sum of squared shares is 1 where one example has everything: two products of matrices tell it.
        pure = (passed.square() @ read.square().T) / whole.square().clamp_min(_TINIER)
        row, column = (pure > _pure(VISIBLE)).nonzero(as_tuple=True)
        for at in torch.split(torch.arange(len(row)), 1 + _NUMBERS // len(some)):
            here, there = row[at], column[at]
            example = (passed[here] * read[there]).argmax(1)
            yield Cells(
                example=example,
                row=here,
                column=block[there],
                is_clear=pure[here, there] > _pure(CLEAR),
            )


def _pure(share: float) -> float:
    """The sum of squared shares if one example has this share, and another one the rest: at most that."""
    return share**2 + (1 - share) ** 2


def filled_by(rows: Responses, columns: Responses, *, batch: int) -> dict[str, float]:
    """Share of the examples of a batch that alone fill so many columns of some row, by ``OWN_COLUMNS``.

    A layer's inputs may be gated, by frozen weights or anything else before it, so that few examples enter
    through one column, or through one and not through another; its gradient there is those examples',
    and in rows that few of them reach it is one example's. One number would not do: chance fills more
    columns of wide layers.

    Args:
        rows: read-outs of the rows, of N examples.
        columns: read-outs of the n columns.
        batch: size of the batches.

    Returns:
        At 30 dB as ``8`` and so on, at 18 dB as ``8_visible`` and so on.
    """
    count, height = int(columns.first.max()) + 1, rows.energy.shape[1]
    found: dict[str, list[Tensor]] = {"": [], "_visible": []}
    for some in _batches(len(rows.energy), batch, draws=1):
        keys: dict[str, list[Tensor]] = {ending: [torch.zeros(0, dtype=torch.long)] for ending in found}
        for cells in cells_of(rows, columns, some):
            key = (cells.example * height + cells.row) * count + columns.first[cells.column]
            keys["_visible"].append(key)
            keys[""].append(key[cells.is_clear])
        for ending, parts in keys.items():
            # Several read-outs begin with one column; of an example's rows the one with most columns counts.
            one = torch.unique(torch.cat(parts)) // count
            place, filled = torch.unique_consecutive(one, return_counts=True)
            most = torch.zeros(len(some), dtype=torch.long)
            found[ending].append(most.scatter_reduce(0, place // height, filled, "amax"))
    return {
        f"{n}{ending}": float((torch.cat(some) >= n).double().mean())
        for ending, some in found.items()
        for n in OWN_COLUMNS
    }


def focus_of(pulls: Tensor, *, batch: int) -> float:
    """How rarely rows fire: the mean over rows that anybody reaches of the largest dominance in a batch.

    Args:
        pulls: of N examples on R rows, (N, R).
        batch: size of the batches.
    """
    energy, batches = _scaled(pulls).square(), _batches(len(pulls), batch)
    whole = (1 + ROUNDING**2) * (_membership(batches, len(pulls)) @ energy)
    largest = torch.stack([energy[some].amax(0) for some in batches]) / whole.clamp_min(_TINY)
    reached = (largest > 0).sum(1).clamp_min(1)
    return float((largest.sum(1) / reached).mean())


def _scaled(pulls: Tensor) -> Tensor:
    pulls = pulls.double()
    return pulls / pulls.abs().max().clamp_min(_TINY)


def _membership(batches: Tensor, count: int) -> Tensor:
    """Which of ``count`` examples are in each batch, as 0 and 1, (T, N)."""
    return torch.zeros(len(batches), count, dtype=torch.double).scatter(1, batches, 1.0)


def _batches(count: int, batch: int, *, draws: int = DRAWS) -> Tensor:
    """Numbers of the examples of each batch, (T, B): random divisions of ``count`` examples."""
    generator = torch.Generator().manual_seed(0)
    whole = max(1, count // batch)
    size = min(batch, count)
    draws = draws if whole > 1 or count > batch else 1
    orders = [torch.randperm(count, generator=generator)[: whole * size] for _ in range(draws)]
    return torch.stack(orders).view(draws * whole, size)

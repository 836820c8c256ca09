"""What read-outs isolate among examples on which they were not searched.

Shape letters: N examples, R rows, C read-outs, B examples of a batch.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.guard.pursuit.limits import CLEAR, DRAWS, OWN_COLUMNS, ROUNDING, VISIBLE
from glasshouse.guard.pursuit.search import ReadOuts

_TINY: Final = 1e-300
_NUMBERS: Final = 2**18  # of responses in one pass
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


def columns_of(filled: Tensor, *, batch: int) -> dict[str, float]:
    """Share of the examples of a batch that alone fill so many columns, for each of ``OWN_COLUMNS``.

    A layer's inputs may be gated, by frozen weights or anything else before it, so that few examples enter
    through one column; its gradient there is those examples', whatever its rows are.

    Args:
        filled: by N examples in n columns, (N, n).
        batch: size of the batches.

    Returns:
        At 30 dB as ``columns_8`` and so on, at 18 dB as ``columns_8_visible`` and so on.
    """
    energy, batches = _scaled(filled).square(), _batches(len(filled), batch)
    # Most columns are filled by so many examples that none ever dominates them.
    able = energy.amax(0) > _NEARLY * VISIBLE * (_membership(batches, len(filled)) @ energy).amin(0)
    energy, levels = energy[:, able], {"": CLEAR, "_visible": VISIBLE}
    counts: dict[str, list[Tensor]] = {ending: [] for ending in levels}
    for some in batches:  # one after the other: columns may be as many as a vocabulary's words
        share = dominance(energy[some], ROUNDING**2 * energy[some].sum(0))
        for ending, least in levels.items():
            counts[ending].append((share > least).sum(1))
    own = {ending: torch.cat(parts) for ending, parts in counts.items()}
    return {
        f"columns_{n}{ending}": float((some >= n).double().mean())
        for ending, some in own.items()
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


def _batches(count: int, batch: int) -> Tensor:
    """Numbers of the examples of each batch, (T, B): random divisions of ``count`` examples."""
    generator = torch.Generator().manual_seed(0)
    whole = max(1, count // batch)
    size = min(batch, count)
    draws = DRAWS if whole > 1 or count > batch else 1
    orders = [torch.randperm(count, generator=generator)[: whole * size] for _ in range(draws)]
    return torch.stack(orders).view(draws * whole, size)

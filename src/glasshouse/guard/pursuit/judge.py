"""What read-outs isolate among examples on which they were not searched.

Shape letters: N examples, R rows, C read-outs, B examples of a batch.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.guard.pursuit.limits import CLEAR, DRAWS, ROUNDING, VISIBLE
from glasshouse.guard.pursuit.search import ReadOuts

_TINY: Final = 1e-300


@final
@dataclass(frozen=True, kw_only=True)
class Isolated:
    """Share of the examples of a batch that some read-out isolates.

    Attributes:
        clear: at 30 dB.
        visible: at 18 dB.
        best: index of the read-out that isolates an example in most batches at 30 dB.
        hits: share of the batches in which it does.
        focus: mean over the read-outs that anybody reaches of the largest dominance of one example.
    """

    clear: float
    visible: float
    best: int
    hits: float
    focus: float


def dominance(responses: Tensor, noise: Tensor) -> Tensor:
    """Share of a read-out's energy that each example has, (B, C), from responses (B, C) and noise (C,)."""
    energy = responses.square()
    return energy / (energy.sum(0) + noise).clamp_min(_TINY)


def rounding(read_outs: ReadOuts, pulls: Tensor) -> Tensor:
    """Energy that rounding of a sum over the examples adds to each read-out, (C,), from pulls (B, R)."""
    rows = pulls.square().sum(0)
    return ROUNDING**2 * (read_outs.weights.to(pulls).square() * rows[read_outs.rows]).sum(1)


def judge(pulls: Tensor, read_outs: ReadOuts, *, batch: int) -> Isolated:
    """What ``read_outs`` isolate in random batches of ``batch`` of these examples, (N, R)."""
    if not len(read_outs.rows):
        return Isolated(clear=0.0, visible=0.0, best=0, hits=0.0, focus=0.0)
    pulls = pulls.double() / pulls.double().abs().max().clamp_min(_TINY)
    responses = read_outs.of(pulls)
    generator = torch.Generator().manual_seed(0)
    count = max(1, len(pulls) // batch)
    tops, focused, hits = [], [], torch.zeros(responses.shape[1], dtype=torch.double)
    for _ in range(DRAWS if count * batch > batch or len(pulls) > batch else 1):
        order = torch.randperm(len(pulls), generator=generator)[: count * batch]
        for some in torch.split(order, batch):
            d = dominance(responses[some], rounding(read_outs, pulls[some]))
            tops.append(d.amax(1))
            largest = d.amax(0)
            focused.append(float(largest[largest > 0].mean()) if largest.any() else 0.0)
            hits += (d > CLEAR).any(0)
    top = torch.cat(tops)
    best = int(hits.argmax())
    return Isolated(
        clear=float((top > CLEAR).double().mean()),
        visible=float((top > VISIBLE).double().mean()),
        best=best,
        hits=float(hits[best] / (len(top) / batch)),
        focus=sum(focused) / len(focused),
    )

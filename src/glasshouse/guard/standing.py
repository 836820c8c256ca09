"""Which examples stand in the rows of an update to one linear layer.

Shape letters: m rows of the weight, n its columns, B examples, k vectors that are looked at.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.measures import OWNED, differences
from glasshouse.guard.behaviour.trace import LayerTrace

RECOGNISED: Final = 0.5
"""Share of an example's contrast that may be missing; 18 dB of PSNR for an image of ordinary contrast."""
_TINY: Final = torch.finfo(torch.double).tiny
MOST: Final = 0.5
"""Share of a row, or of a difference, from which on it may show an example."""
HARDLY: Final = 0.01
"""Share below which it is luck that it comes near to one."""
APART: Final = 1.5
"""After several steps a row that is so many times as near to one example as to any other shows it, whatever
its share: in one of the steps it may have had a row to itself that it shares before and after."""
CLOSER: Final = 0.2
"""Where so much less is missing than may be, it does not matter who else resembles the row."""
ALIKE: Final = 0.9
"""Cosine of what two examples differ by from the mean from which on they are one picture."""

What = Literal["input", "features"]
By = Literal["a row", "several rows", "a difference of two rows", "all rows"]


@final
@dataclass(frozen=True, kw_only=True)
class Leak:
    """One example that stands in the update.

    Attributes:
        example: its number among the client's.
        what: the input itself, or what the layers in front made of it.
        layer: name of the layer.
        by: where in the layer's weight.
        missing: share of its contrast that is not there, below ``RECOGNISED``.
        rows: all rows of the weight that show it, alone, together or two by two.
    """

    example: int
    what: What
    layer: str
    by: By
    missing: float
    rows: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class _Vectors:
    """Rows, or differences of two, beside the examples.

    Attributes:
        energy: of each example in the direction of each vector, (k, B).
        rows: the vector is the first row, (k,),
        others: less the second, (k,),
        multiples: times this, (k,); 0: it is a row.
    """

    energy: Tensor
    rows: Tensor
    others: Tensor
    multiples: Tensor

    def of(self, signed: Tensor) -> Tensor:
        """(k, B): how much each example enters each vector, by how much it enters each row, (m, B)."""
        return signed[self.rows] - self.multiples[:, None] * signed[self.others]


def _compare(rows: Tensor, goal: Tensor, of: tuple[Tensor, Tensor, Tensor]) -> _Vectors:
    first, second, multiples = of
    products, squares = rows @ goal.T, rows.square().sum(1)
    cross = (rows[first] * rows[second]).sum(1)
    length = squares[first] - 2 * multiples * cross + multiples.square() * squares[second]
    inner = products[first] - multiples[:, None] * products[second]
    energy = inner.square() / length.clamp_min(_TINY)[:, None]
    return _Vectors(energy=energy, rows=first, others=second, multiples=multiples)


def find_examples(
    rows: Tensor,
    one: LayerTrace,
    what: What,
    *,
    passes: Sequence[LayerTrace],
    recognised: float = RECOGNISED,
) -> list[Leak]:
    """The examples that stand in ``rows``.

    Args:
        rows: of the update, (m, n).
        one: a pass of the examples through the layer.
        what: goes into it.
        passes: of the model before and after training; what entered a row in neither is there by chance.
        recognised: share of an example's contrast that may be missing.
    """
    rows, goal = rows.detach().double(), one.inputs.double()
    whole, spread = goal.square().sum(1), _contrast(goal)

    def missing(energy: Tensor) -> Tensor:
        return (whole - energy).clamp_min(0).sqrt() / spread

    signed = torch.where(rows.any(1, keepdim=True), _signed(one), 0.0)  # rows of zeros show nobody
    every = torch.arange(len(rows), device=rows.device)
    found = differences(signed.T)
    single = _compare(rows, goal, (every, every, torch.zeros_like(rows[:, 0])))
    double = _compare(rows, goal, (found.rows, found.others, found.multiples))
    in_order = _compare(rows, goal, _in_order_of_thresholds(one, rows))
    luck = torch.maximum(*(_strange(vectors, passes) for vectors in (single, double)))
    near = min(recognised, float(missing(luck).min()))
    shares = _shares(signed)
    looked_at: list[tuple[By, _Vectors]] = [
        ("a row", single),
        ("a difference of two rows", double),
        ("a difference of two rows", in_order),
    ]
    shown = [
        (by, vectors, (_shares(vectors.of(signed)) >= MOST) & (missing(vectors.energy) < near))
        for by, vectors in looked_at
    ]
    if what == "input" and len(passes) > 1:  # of few features rows come near to one example by chance
        shown += [
            (by, vectors, _clearly_nearest(missing(vectors.energy), goal, recognised))
            for by, vectors in looked_at
        ]
    summed = missing(_together(rows, goal, signed, shares))
    by_example = (_shown_of(example, shown, missing) for example in range(len(goal)))
    leaks = []
    for example, (least, where) in enumerate(by_example):
        if summed[example] < near:
            least.append((float(summed[example]), "several rows"))
            where.append((shares[:, example] >= OWNED).nonzero()[:, 0])
        if least:
            nearest, by = min(least)
            numbers = tuple(torch.unique(torch.cat(where)).tolist())
            leaks.append(
                Leak(example=example, what=what, layer=one.name, by=by, missing=nearest, rows=numbers)
            )
    return leaks


def _strange(vectors: _Vectors, passes: Sequence[LayerTrace]) -> Tensor:
    """(B,), the largest energy of each example in a vector that it hardly entered in any pass."""
    shares = torch.stack([_shares(vectors.of(_signed(each))) for each in passes]).amax(0)
    return _most(vectors.energy, shares < HARDLY)


def _together(rows: Tensor, goal: Tensor, signed: Tensor, shares: Tensor) -> Tensor:
    """(B,), energy of each example in the sum of the rows that are its own, so that noise averages out."""
    total = torch.where(shares >= OWNED, signed, 0.0).T @ rows
    energy: Tensor = (F.normalize(total, dim=1, eps=_TINY) * goal).sum(1).square()
    return energy


def _shown_of(
    example: int, shown: list[tuple[By, _Vectors, Tensor]], missing: Callable[[Tensor], Tensor]
) -> tuple[list[tuple[float, By]], list[Tensor]]:
    """How much of an example is missing in the vectors that show it, and the rows behind these."""
    least: list[tuple[float, By]] = []
    where = []
    for by, vectors, counted in shown:
        mine = counted[:, example]
        if mine.any():
            least.append((float(missing(vectors.energy[mine])[:, example].min()), by))
            where += [vectors.rows[mine], vectors.others[mine]]
    return least, where


def _in_order_of_thresholds(one: LayerTrace, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Differences of rows whose units begin to fire one after the other along their own direction."""
    weight, bias = one.layer.weight.detach(), one.layer.bias
    offset = torch.zeros(len(weight), device=weight.device) if bias is None else bias.detach()
    length = weight.flatten(1).norm(dim=1).clamp_min(torch.finfo(weight.dtype).tiny)
    order = (-offset / length).to(rows.device).argsort()
    order = order[rows[order].any(1)]
    return order[1:], order[:-1], torch.ones(max(0, len(order) - 1), dtype=rows.dtype, device=rows.device)


def _signed(one: LayerTrace) -> Tensor:
    """(m, B), how much each example adds to the gradient of each row, with its sign."""
    signed: Tensor = one.pulls.double().T * one.inputs.double().norm(dim=1)
    return signed


def _shares(signed: Tensor) -> Tensor:
    """Of each row of (k, B): whose it is."""
    return F.normalize(signed.abs(), p=1, dim=1, eps=_TINY)


def _most(energies: Tensor, counted: Tensor) -> Tensor:
    """(B,), the largest of (k, B) that counts; 0 if none does."""
    if not len(energies):
        return energies.new_zeros(energies.shape[1])
    return torch.where(counted, energies, 0.0).amax(0)


def _clearly_nearest(missing: Tensor, goals: Tensor, recognised: float) -> Tensor:
    """(k, B), of bool: which vector shows which example and no other nearly as well."""
    if not len(missing):
        return torch.zeros_like(missing, dtype=torch.bool)
    centred = F.normalize(goals - goals.mean(0), dim=1)
    first, who = missing.min(1)
    others = centred[who] @ centred.T <= ALIKE
    second = torch.where(others, missing, torch.inf).amin(1)
    distinct = (second > APART * first) | (first < recognised - CLOSER)
    shown = (first < recognised) & distinct & (len(goals) > 1)
    clear = torch.zeros_like(missing, dtype=torch.bool)
    clear[shown, who[shown]] = True
    return clear


def _contrast(goals: Tensor) -> Tensor:
    """(B,), how far each is from a flat one, or from the mean of all, whichever is nearer."""
    flat = (goals - goals.mean(1, keepdim=True)).norm(dim=1)
    mean = (goals - goals.mean(0)).norm(dim=1) if len(goals) > 1 else flat
    return torch.minimum(flat, mean).clamp_min(1e-12)

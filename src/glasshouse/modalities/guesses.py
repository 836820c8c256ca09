"""Null adversaries that several modalities share: means and random draws of auxiliary data.

They take what any adversary of that rung knows, and nothing of the victims but their labels, from the rung
``label`` on.
"""

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from glasshouse.examples import Batch
from glasshouse.modalities.base import Null, Wanted
from glasshouse.rng import Rng

KEPT: Final = 4
"""Number of auxiliary sets whose means, and rows by label, a process caches."""


def drawn(noun: str) -> tuple[Null, ...]:
    """Random auxiliary examples, of any label and of the victim's."""
    return (
        Null(name=f"random auxiliary {noun}", knows="domain", guess=draw),
        Null(name=f"random auxiliary {noun} of the same label", knows="label", guess=draw_alike),
    )


def averaged(noun: str) -> tuple[Null, ...]:
    """Means of auxiliary examples: of all, of a guessed label, and of the victim's label."""
    return (
        Null(name=f"mean auxiliary {noun}", knows="domain", guess=mean_example, steady=True),
        Null(name=f"mean {noun} of a guessed class", knows="domain", guess=guessed_mean),
        Null(name=f"mean auxiliary {noun} of the same label", knows="label", guess=mean_alike, steady=True),
    )


def squared_distance(candidates: Tensor, originals: Tensor, *, width: float) -> Tensor:
    """Mean squared difference of candidates (R, ...) and originals (N, ...), over ``width``²: (R, N)."""
    left, right = candidates.double().flatten(1), originals.double().flatten(1).to(candidates.device)
    # By inner products, so that thousands of examples fit in memory; the error is about 1e-14.
    squares = left.square().sum(1)[:, None] + right.square().sum(1)[None]
    return (squares - 2 * left @ right.T).clamp_min(0) / (left.shape[1] * width**2)


def labels_for(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Tensor:
    """The victims' labels where they are known, else labels drawn from the auxiliary data."""
    if wanted.labels is not None:
        return wanted.labels
    return auxiliary.labels[_rows(auxiliary, wanted.count, rng)]


def draw(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """Random examples with their labels, with replacement."""
    return auxiliary.pick(_rows(auxiliary, wanted.count, rng))


def mean_example(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """The mean of all auxiliary examples."""
    mean = _mean(auxiliary)
    inputs = mean.expand(wanted.count, *mean.shape[1:]).contiguous()
    return Batch(inputs=inputs, labels=labels_for(auxiliary, wanted, rng))


def guessed_mean(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """For labels drawn from the auxiliary data, the mean auxiliary example of each."""
    return _means(auxiliary, auxiliary.labels[_rows(auxiliary, wanted.count, rng)])


def mean_alike(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """For each victim, the mean auxiliary example of its label."""
    return _means(auxiliary, labels_for(auxiliary, wanted, rng))


def draw_alike(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """For each victim, a random auxiliary example of its label; of any label where there is none."""
    labels, draws = labels_for(auxiliary, wanted, rng), rng.child("alike").torch()
    known, every = _rows_by_label(auxiliary), torch.arange(len(auxiliary))
    chosen = []
    for key in _keys(labels):
        rows = known.get(key, every)
        chosen.append(rows[torch.randint(len(rows), (1,), generator=draws)])
    inputs = auxiliary.inputs[torch.cat(chosen)] if chosen else auxiliary.inputs[:0]
    return Batch(inputs=inputs, labels=labels)


def _rows(auxiliary: Batch, count: int, rng: Rng) -> Tensor:
    return torch.randint(len(auxiliary), (count,), generator=rng.torch())


def _means(auxiliary: Batch, labels: Tensor) -> Batch:
    means, mean = _means_by_label(auxiliary), _mean(auxiliary)[0]
    inputs = [means.get(key, mean) for key in _keys(labels)]
    stacked = torch.stack(inputs) if inputs else auxiliary.inputs[:0]
    return Batch(inputs=stacked, labels=labels)


def _keys(labels: Tensor) -> list[tuple[float, ...]]:
    """Each label as a key."""
    return list(map(tuple, labels.reshape(len(labels), -1).tolist()))


@lru_cache(maxsize=KEPT)
def _mean(auxiliary: Batch) -> Tensor:
    return auxiliary.inputs.mean(0, keepdim=True)


@lru_cache(maxsize=KEPT)
def _rows_by_label(auxiliary: Batch) -> dict[tuple[float, ...], Tensor]:
    rows: dict[tuple[float, ...], list[int]] = {}
    for row, key in enumerate(_keys(auxiliary.labels)):
        rows.setdefault(key, []).append(row)
    return {key: torch.tensor(own) for key, own in rows.items()}


@lru_cache(maxsize=KEPT)
def _means_by_label(auxiliary: Batch) -> dict[tuple[float, ...], Tensor]:
    return {key: auxiliary.inputs[rows].mean(0) for key, rows in _rows_by_label(auxiliary).items()}

"""What honest models of an architecture do to a batch: the range that a received one is held against."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.guard.behaviour.measures import isolate, silent, unevenness
from glasshouse.guard.behaviour.trace import trace

MEASURES = ("examples", "rows", "uneven", "silent")
STEPS = (0, 2, 8, 32)
"""Steps of training after which a fresh model is measured."""


@final
@dataclass(frozen=True, kw_only=True)
class Range:
    """The least and most of each measure of each layer over honest models."""

    least: dict[tuple[str, str], float]
    most: dict[tuple[str, str], float]


def measure(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[tuple[str, str], float]:
    """By (layer, measure)."""
    measured = {}
    for one in trace(model, inputs, labels, balanced=True).layers:
        isolation = isolate(one)
        values = (float(isolation.examples.double().mean()), isolation.rows, unevenness(one), silent(one))
        measured |= {(one.name, name): value for name, value in zip(MEASURES, values, strict=True)}
    return measured


def learn_range(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int, models: int = 3) -> Range:
    seen = [
        measure(one, inputs[:batch], labels[:batch])
        for seed in range(models)
        for one in _trained(fresh_copy(model, seed=seed), inputs, labels, batch=batch)
    ]
    names = seen[0].keys()
    return Range(
        least={name: min(one[name] for one in seen) for name in names},
        most={name: max(one[name] for one in seen) for name in names},
    )


def fresh_copy(model: nn.Module, *, seed: int) -> nn.Module:
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for part in fresh.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    return fresh


def _trained(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int) -> Iterator[nn.Module]:
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(0)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            yield model
        rows = torch.randint(len(inputs), (batch,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()

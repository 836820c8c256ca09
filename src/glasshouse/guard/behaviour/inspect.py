"""Is a received model like honest ones, in what it does to a client's own batch?"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.guard.behaviour.measures import concentration, isolated
from glasshouse.guard.behaviour.trace import trace
from glasshouse.wire import Inspection

NAME = "behaviour"
STEPS = (0, 2, 8, 32)
"""Steps of training after which honest models are measured."""
MORE_ISOLATED = 0.08
"""Share of the batch by which more examples may stand alone than under any honest model that was measured.

Three standard deviations of a count among so many examples, where that is more."""
MORE_CONCENTRATED = 0.15


@final
@dataclass(frozen=True, kw_only=True)
class LayerBehaviour:
    """What one layer did with a batch.

    Attributes:
        isolated: share of the examples that stand alone in a row of its gradient, or in a difference of two.
        concentration: how few of the examples shape its gradient, from 0 (all alike) to 1.
    """

    isolated: float
    concentration: float


Behaviour = dict[str, LayerBehaviour]
"""By name of the layer."""


def observe(model: nn.Module, inputs: Tensor, labels: Tensor) -> Behaviour:
    """What each layer of ``model`` does with a batch, if every example pulls alike on the logits.

    Raises:
        BadValue: as :func:`~glasshouse.guard.behaviour.trace.trace`.
    """
    return {
        one.name: LayerBehaviour(
            isolated=float(isolated(one).double().mean()), concentration=concentration(one)
        )
        for one in trace(model, inputs, labels, balanced=True).layers
    }


def learn_honest_range(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int, models: int = 3
) -> Behaviour:
    """The largest values that honest models of the same architecture reach, each trained a little.

    Args:
        model: its weights are not read; all layers that can be initialised again are.
        inputs: the client's own examples, or public ones like them.
        labels: their classes.
        batch: examples in a batch.
        models: fresh models that are trained.
    """
    seen = [
        observe(one, inputs[:batch], labels[:batch])
        for seed in range(models)
        for one in _train(initialise_again(model, seed=seed), inputs, labels, batch=batch)
    ]
    return join(seen)


def join(observed: list[Behaviour]) -> Behaviour:
    """The largest values of each layer."""
    return {
        name: LayerBehaviour(
            isolated=max(one[name].isolated for one in observed),
            concentration=max(one[name].concentration for one in observed),
        )
        for name in observed[0]
    }


def inspect_behaviour(model: nn.Module, inputs: Tensor, labels: Tensor, *, honest: Behaviour) -> Inspection:
    """Findings: one sentence for each way in which ``model`` goes beyond ``honest``, for the worst layer.

    Args:
        model: as received.
        inputs: one batch of the client's own examples.
        labels: their classes.
        honest: of the same architecture and batch size.
    """
    observed = observe(model, inputs, labels)
    alone = max(observed, key=lambda name: observed[name].isolated - honest[name].isolated)
    few = max(observed, key=lambda name: observed[name].concentration - honest[name].concentration)
    findings = []
    if observed[alone].isolated > honest[alone].isolated + _margin(honest[alone].isolated, len(inputs)):
        findings.append(
            f"{alone} would give away {round(observed[alone].isolated * len(inputs))} of your {len(inputs)} "
            f"examples, each alone in a row of the update or in the difference of two "
            f"(honest models: at most {round(honest[alone].isolated * len(inputs))})"
        )
    if observed[few].concentration > honest[few].concentration + MORE_CONCENTRATED:
        findings.append(
            f"the update of {few} would be as if only {1 - observed[few].concentration:.0%} of your examples "
            f"had been used (honest models: at least {1 - honest[few].concentration:.0%})"
        )
    return Inspection(
        guard=NAME,
        findings=tuple(findings),
        values={
            "isolated": observed[alone].isolated,
            "isolated_honest": honest[alone].isolated,
            "concentration": observed[few].concentration,
            "concentration_honest": honest[few].concentration,
        },
    )


def _margin(share: float, examples: int) -> float:
    """How much more than ``share`` of so many examples may stand alone, by the luck of the draw."""
    return max(MORE_ISOLATED, 3 * math.sqrt(share * (1 - share) / examples))


def initialise_again(model: nn.Module, *, seed: int) -> nn.Module:
    """A copy of ``model`` with new weights in all layers that can draw them."""
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for part in fresh.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
    return fresh


def _train(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int) -> Iterator[nn.Module]:
    """``model`` after each of ``STEPS``."""
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(0)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            yield model
        rows = torch.randint(len(inputs), (batch,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(inputs[rows]), labels[rows]))
        optimizer.step()

"""Comparison of a received model with honest ones, by its behaviour on the client's own batch."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.observe import Behaviour, LayerBehaviour, concentrations, observe
from glasshouse.guard.sentences import ReadsSentences, preflight_sentences
from glasshouse.wire import Inspection

NAME = "behaviour"
STEPS = (0, 2, 8, 32)
"""Training steps after which honest models are measured."""
LONGER = (*STEPS, 64, 128)
"""The same, used if a model isolates more examples than those do."""
FRESH = 12
"""Honest models that are measured as initialised; as many as there are recipes are also trained."""
CHANCE = 1e-5
"""False-positive rate: share of honest models in which more examples are isolated than the limit allows."""
MORE_ISOLATED = 0.05
"""Margin over all measured honest models: share of the batch by which more examples may be isolated."""
MANY = 64
"""Minimum batch size assumed for that margin: in smaller batches one example more is not significant."""
FEWEST = 6
"""Minimum number of examples: in smaller batches all may be isolated, and one is a fifth of the batch."""
MORE_NARROW = 0.1
"""Excess narrowness over honest models from which on only that margin is allowed."""
MORE_ALIKE, FEW_UNITS = 0.05, 17
"""Margin over honest models for units that are alike: share of a layer's units, and minimum number.

A bin has two thresholds, and up to eight copies of each are undone by the difference of rows: it takes 18.
"""
COUNTS = ("isolated", "paired", "alike")
"""Names of the values for isolated examples and units that are alike."""
OTHERS = 1000
"""Maximum number of further examples that are tried on a layer whose update few of the batch make up."""
FEWER = 1 / 5
"""The effective share of examples in a layer's update may be this fraction of the least in honest models."""


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an honest model is trained.

    Attributes:
        optimizer: of its parameters.
        every: train only on every ``every``-th class; 1: on all.
    """

    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    every: int = 1


RECIPES = (
    Recipe(optimizer=torch.optim.Adam),
    Recipe(optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    Recipe(optimizer=torch.optim.Adam, every=3),
)


@final
@dataclass(frozen=True, kw_only=True)
class HonestLayer:
    """Range of one layer in honest models.

    Attributes:
        most: the largest value of each measure.
        isolated_limit: share of isolated examples beyond which a model is refused.
        paired_limit: the same for examples isolated in differences of two rows.
    """

    most: LayerBehaviour
    isolated_limit: float
    paired_limit: float

    @property
    def alike_limit(self) -> float:
        """Share of units that are alike beyond which a model is refused; 1 and above: never."""
        return self.most.alike + max(MORE_ALIKE, FEW_UNITS / self.most.units)

    @property
    def least_used(self) -> float:
        """Effective share of the examples in the layer's update below which a model is refused."""
        return FEWER * self.most.used


HonestRange = dict[str, HonestLayer]
"""By name of the layer."""


def learn_honest_range(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int, steps: Sequence[int] = STEPS
) -> HonestRange:
    """Measure the range of honest models of the same architecture: fresh ones, and briefly trained ones.

    The number of isolated examples varies between honest models like a Poisson count, or more. The limit is
    the count that a share of ``CHANCE`` of fresh models exceeds (the predictive distribution under Jeffreys's
    prior, with the measured overdispersion; for differences of two rows of all models, because units become
    more alike in training), and at least ``MORE_ISOLATED`` above every measured model (for a batch below
    ``MANY``: the same number of examples as in a batch of ``MANY``).

    Args:
        model: its weights are not used; all layers that can be reinitialised are.
        inputs: the client's own examples, or public ones like them.
        labels: their classes.
        batch: examples in a batch.
        steps: of training after which models are measured, rising from 0.

    Returns:
        By layer; empty if the model reads sentences, or the batch has fewer than ``FEWEST`` examples.
    """
    if isinstance(model, ReadsSentences) or batch < FEWEST:
        return {}
    measures = watch_honest_models(model, inputs, labels, batch=batch, steps=steps)
    every = [one for observed in measures.values() for one in observed]
    learnt = {}
    for name in every[0]:
        most = LayerBehaviour(
            isolated=max(one[name].isolated for one in every),
            paired=max(one[name].paired for one in every),
            concentration=max(one[name].concentration for one in every),
            narrowness=max(one[name].narrowness for one in every),
            alike=max(one[name].alike for one in every),
            units=every[0][name].units,
        )
        alone = _predict_most([one[name].isolated for one in measures[0]], batch)
        in_pairs = _predict_most([one[name].paired for one in every], batch)
        learnt[name] = HonestLayer(
            most=most,
            isolated_limit=max(most.isolated + _margin(batch), alone),
            paired_limit=max(most.paired + _margin(batch), in_pairs),
        )
    return learnt


def widen(honest: HonestRange, longer: HonestRange) -> HonestRange:
    """``honest``, with the limits on isolated examples and similar units extended to models trained longer.

    The limits on narrowness and concentration are unchanged: otherwise crafted models that are narrow or fish
    for one example could pass as models that memorised the client's examples.
    """
    return {
        name: HonestLayer(
            most=replace(
                one.most,
                isolated=max(one.most.isolated, longer[name].most.isolated),
                paired=max(one.most.paired, longer[name].most.paired),
                alike=max(one.most.alike, longer[name].most.alike),
            ),
            isolated_limit=max(one.isolated_limit, longer[name].isolated_limit),
            paired_limit=max(one.paired_limit, longer[name].paired_limit),
        )
        for name, one in honest.items()
    }


def _margin(batch: int) -> float:
    """``MORE_ISOLATED``, but at least as many examples as in a batch of ``MANY``."""
    return MORE_ISOLATED * max(batch, MANY) / batch


def _predict_most(shares: Sequence[float], batch: int) -> float:
    """The share of a batch that only a share of ``CHANCE`` of further models exceeds."""
    counts = batch * np.array(shares)
    binomial = counts.mean() * (1 - counts.mean() / batch)
    dispersion = max(1.0, float(counts.var(ddof=1) / binomial)) if binomial > 0 else 1.0
    n, total = len(counts), counts.sum() / dispersion
    return dispersion * float(scipy.stats.nbinom.isf(CHANCE, total + 0.5, n / (n + 1))) / batch


def watch_honest_models(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int, steps: Sequence[int] = STEPS
) -> dict[int, list[Behaviour]]:
    """The behaviour of honest models on a batch, by their number of training steps.

    Args:
        model: as in :func:`learn_honest_range`.
        inputs: as there; the first ``batch`` are the batch.
        labels: their classes.
        batch: examples in a batch.
        steps: as there.
    """
    seen: dict[int, list[Behaviour]] = {step: [] for step in steps}
    for seed in range(FRESH):
        fresh = initialise_again(model, seed=seed)
        recipe = RECIPES[seed] if seed < len(RECIPES) else None
        models = _train(fresh, inputs, labels, recipe=recipe, steps=steps) if recipe else [fresh]
        for step, one in zip(steps, models, strict=False):
            try:
                seen[step].append(observe(one, inputs[:batch], labels[:batch]))
            except BadValue:
                if step == steps[0]:
                    raise
                break  # its training diverged
    return seen


def inspect_behaviour(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    honest: HonestRange,
    longer: Callable[[], HonestRange] | None = None,
    others: tuple[Tensor, Tensor] | None = None,
) -> Inspection:
    """Findings: one sentence for each limit of ``honest`` that ``model`` exceeds, for the worst layer.

    Args:
        model: as received.
        inputs: one batch of the client's own examples.
        labels: their classes.
        honest: of the same architecture and batch size.
        longer: measures models that are trained longer (``LONGER``); called if more examples are isolated, or
            units alike, than ``honest`` allows.
        others: further examples of the client, and their classes. If few of the batch, or none, make up a
            layer's update, up to ``OTHERS`` of these are tried, too, and it is judged by all.

    Returns:
        Findings, and the underlying numbers. ``unreached`` counts layers to which none of ``tried`` examples
        contributes, though in honest models some do. That is no finding, since none of these examples can be
        read there and nothing is known about others; if no layer is left, ``concentration`` is 0.
        For fewer than ``FEWEST`` examples there are no findings and no values. For a model that reads
        sentences there are no findings, because honest ones expose whole sentences too; its value ``full_at``
        is the number of such sentences in one update that fill the first attention layer, so that it reveals
        nothing (:mod:`glasshouse.guard.sentences`).
    """
    if isinstance(model, ReadsSentences):
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        seen = preflight_sentences(trained, model, inputs)
        values = {"full_at": float(seen.full_at), "width": float(seen.width), "rows": float(seen.rows)}
        return Inspection(guard=NAME, findings=(), values=values)
    if len(inputs) < FEWEST:
        return Inspection(guard=NAME, findings=())
    observed, tried = observe(model, inputs, labels), len(labels)
    few = [name for name, one in observed.items() if one.used < honest[name].least_used]
    if few and others is not None and len(others[1]):
        every = [torch.cat([own, more[:OTHERS]]) for own, more in zip((inputs, labels), others, strict=True)]
        tried, seen_by_all = len(every[1]), concentrations(model, *every, layers=few)
        observed |= {name: replace(observed[name], concentration=x) for name, x in seen_by_all.items()}
    inspection = _judge(observed, honest, len(inputs))
    numbers = inspection.values
    if longer is not None and any(numbers[name] > numbers[f"{name}_limit"] for name in COUNTS):
        inspection = _judge(observed, widen(honest, longer()), len(inputs))
    return replace(inspection, values={**inspection.values, "tried": float(tried)})


def _judge(observed: Behaviour, honest: HonestRange, batch: int) -> Inspection:
    rows = {name: one.isolated - _limit(one, honest[name], batch) for name, one in observed.items()}
    pairs = {name: one.paired - honest[name].paired_limit for name, one in observed.items()}
    copies = {name: one.alike - honest[name].alike_limit for name, one in observed.items()}
    same = max(copies, key=lambda name: copies[name])
    alone, paired_in = max(rows, key=lambda name: rows[name]), max(pairs, key=lambda name: pairs[name])
    reached = {name: one for name, one in observed.items() if one.is_reached} or observed
    few = min(reached, key=lambda name: reached[name].used - honest[name].least_used)
    findings = []
    if rows[alone] > 0:
        shares = observed[alone].isolated, honest[alone].most.isolated
        findings.append(_sentence(alone, "a row of the update", shares, batch))
    if pairs[paired_in] > 0:
        shares = observed[paired_in].paired, honest[paired_in].most.paired
        findings.append(_sentence(paired_in, "the difference of two rows", shares, batch))
    if copies[same] > 0:
        findings.append(_copies(same, observed[same], honest[same].most))
    if reached[few].is_reached and reached[few].used < honest[few].least_used:
        findings.append(
            f"the update of {few} would be as if only {reached[few].used:.0%} of your examples had been used "
            f"(honest models: at least {honest[few].most.used:.0%})"
        )
    return Inspection(
        guard=NAME,
        findings=tuple(findings),
        values={
            "isolated": observed[alone].isolated,
            "isolated_limit": _limit(observed[alone], honest[alone], batch),
            "paired": observed[paired_in].paired,
            "paired_limit": honest[paired_in].paired_limit,
            "alike": observed[same].alike,
            "alike_limit": honest[same].alike_limit,
            "concentration": observed[few].concentration if reached[few].is_reached else 0.0,
            "concentration_limit": 1 - honest[few].least_used,
            "unreached": float(
                sum(honest[n].most.is_reached and not one.is_reached for n, one in observed.items())
            ),
        },
    )


def _copies(layer: str, seen: LayerBehaviour, usual: LayerBehaviour) -> str:
    return (
        f"{seen.alike * seen.units:.0f} of {seen.units} units of {layer} answer to your examples alike "
        "but for a threshold and a factor, so that their differences would give examples away "
        f"(honest models: at most {usual.alike * usual.units:.0f})"
    )


def _sentence(layer: str, where: str, shares: tuple[float, float], examples: int) -> str:
    seen, usual = (round(share * examples) for share in shares)
    return (
        f"{layer} would give away {seen} of your {examples} examples, each alone in {where} "
        f"(honest models: up to {usual})"
    )


def _limit(one: LayerBehaviour, honest: HonestLayer, batch: int) -> float:
    """The limit on isolated examples; stricter for narrow units, as honest models isolate by chance only."""
    is_narrow = one.narrowness > honest.most.narrowness + MORE_NARROW
    return honest.most.isolated + _margin(batch) if is_narrow else honest.isolated_limit


def initialise_again(model: nn.Module, *, seed: int) -> nn.Module:
    """A copy of ``model`` with new weights in all layers that have ``reset_parameters``."""
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for part in fresh.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
    return fresh


def _train(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, recipe: Recipe, steps: Sequence[int]
) -> Iterator[nn.Module]:
    """Yield ``model`` after each of ``steps`` on batches of ``MANY``; stop if training diverges."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = recipe.optimizer(weights)
    generator = torch.Generator().manual_seed(0)
    classes = torch.unique(labels)[:: recipe.every]
    known = torch.isin(labels, classes).nonzero()[:, 0]
    for step in range(max(steps) + 1):
        if not all(bool(p.isfinite().all()) for p in weights):
            return
        if step in steps:
            yield model
        rows = known[torch.randint(len(known), (MANY,), generator=generator)]
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(inputs[rows]), labels[rows]))
        optimizer.step()

"""What the update of honest models of an architecture gives away: fresh ones, and briefly trained ones.

Honest models are initialised by the architecture alone: nothing of a received model is in them. Modules that
cannot initialise themselves again get ordinary values of their shape, and are named.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.pursuit.crowds import search_crowds
from glasshouse.guard.pursuit.examples import Own, train_loss
from glasshouse.guard.pursuit.judge import judge
from glasshouse.guard.pursuit.limits import (
    CHANCE,
    CHANCE_ROUNDS,
    FEWER,
    JUDGED,
    MANY,
    MARGIN,
    MARGIN_VISIBLE,
    SEARCHED,
)
from glasshouse.guard.pursuit.pulls import Group, groups_of, pulls_of, stacked
from glasshouse.guard.pursuit.search import ReadOuts, search

STEPS: Final = (0, 2, 8, 32)
"""Training steps after which honest models are measured."""
LONGER: Final = (*STEPS, 64, 128)
"""The same, used if single rows of a model isolate more examples than those do."""
DRAWN: Final = -1
"""In place of steps: fresh models whose buffers are drawn anew, too, however odd that makes them."""
FRESH: Final = 12
"""Honest models that are measured as initialised; as many as there are recipes are also trained."""
MOVES: Final = (3e-4, 1e-3, 3e-3, 1e-2)
"""Length of the step between two honest rounds, relative to the weights: what two rounds give away together
peaks in between, at another length for each architecture."""
FEW: Final = 3
"""Honest models of which pairs are measured first: mostly two rounds give away less than those."""
_WARM: Final = 8  # steps of training before, for every other pair
_BATCH: Final = 64
_BOUND: Final = 10.0  # of the buffers that are kept: statistics and constants of normalisation are below it


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


RECIPES: Final = (
    Recipe(optimizer=torch.optim.Adam),
    Recipe(optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    Recipe(optimizer=torch.optim.Adam, every=3),
)


@final
@dataclass(frozen=True, kw_only=True)
class Given:
    """What fixed read-outs of one group get, as shares of a batch.

    Attributes:
        rows: isolated at 30 dB by single rows.
        rows_visible: the same at 18 dB.
        excess: what combinations of few rows add at 30 dB.
        excess_visible: the same at 18 dB.
        focus: mean over the group's rows of the largest dominance of one example: how rarely rows fire.
    """

    rows: float
    rows_visible: float
    excess: float
    excess_visible: float
    focus: float


MEASURES: Final = ("rows", "rows_visible", "excess", "excess_visible")
"""Measures of which each has a limit; ``focus`` decides which limits hold."""
PARTS: Final = (*MEASURES, "focus")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What was found in one group.

    Attributes:
        names: of its tensors.
        given: what it gives away.
        rows: number of rows of the read-out that isolates an example in most batches.
        hits: share of the batches in which that one does.
    """

    names: tuple[str, ...]
    given: Given
    rows: int
    hits: float


@final
@dataclass(frozen=True, kw_only=True)
class Range:
    """Range of honest models, for one tensor; or of pairs of them, for all groups that two rounds share.

    Attributes:
        most: the largest value of each measure.
        limits: value of each measure beyond which a model is refused.
        focused: the same for a model whose focus is beyond its limit. Chance spreads what single rows of
            honest models isolate, because few of their rows do; it excuses no model all of whose rows do.
    """

    most: Given
    limits: Given
    focused: Given

    def limits_of(self, given: Given) -> Given:
        """The limits for a model with these measures."""
        return self.focused if given.focus > self.limits.focus else self.limits


@final
@dataclass(frozen=True, kw_only=True)
class Ranges:
    """What honest models of one architecture show to a client.

    Attributes:
        tensors: by name, of the groups that a tensor is part of.
        used: the least effective share of examples in a tensor's update, by name.
        kept: modules that could not be initialised again, and got ordinary values.
        buffers: sent buffers whose values honest models share with the received one.
    """

    tensors: Mapping[str, Range] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    def of(self, names: Sequence[str]) -> Range:
        """The widest range of these tensors, which honest models may have in groups of their own."""
        known = [self.tensors[name] for name in names if name in self.tensors]
        return _widest(known) if known else NOTHING

    def widened(self, longer: "Ranges") -> "Ranges":
        """The same for single rows extended to models trained longer; the other limits stay."""
        return Ranges(
            tensors={name: _widest([one, longer.tensors[name]]) for name, one in self.tensors.items()},
            used=self.used,
            kept=self.kept,
            buffers=self.buffers,
        )


_NOTHING: Final = Given(rows=0.0, rows_visible=0.0, excess=0.0, excess_visible=0.0, focus=0.0)


def turns(own: Own) -> tuple[list[tuple[slice, slice]], int]:
    """Which examples are searched and which judged, and the size of the batches they are judged in.

    Few examples take both parts in turn: chance would otherwise decide what is found among so few.
    """
    judged = min(JUDGED, max(len(own) // 2, len(own) - SEARCHED))
    searched = min(SEARCHED, len(own) - judged)
    first, second = slice(0, searched), slice(searched, searched + judged)
    pairs = [(first, second)] if judged == JUDGED else [(first, second), (second, first)]
    return pairs, min(_BATCH, judged)


Search = Callable[[Tensor], ReadOuts]


def look(
    groups: Sequence[Group], own: Own, *, searches: Sequence[Search] = (search, search_crowds)
) -> list[Found]:
    """What fixed read-outs of each group get: searched on one half of ``own``, judged on the other.

    Single rows are not searched for, so that they are judged on all examples. Read-outs of many rows are
    searched on the other half, which is the larger one: as many weights are fitted.

    Args:
        groups: of tensors.
        own: the examples behind their pulls.
        searches: what looks for read-outs.
    """
    pairs, batch = turns(own)
    every = []
    for group in groups:
        single = ReadOuts.single(group.pulls.shape[1])
        sized = judge(group.sizes, single, batch=min(_BATCH, len(own)))
        best, added = (0.0, 0), [(0.0, 0.0)]
        for find in searches:
            clear, visible = 0.0, 0.0
            for first, second in pairs:
                here, there = (second, first) if find is search_crowds else (first, second)
                more = find(group.pulls[here])
                if not len(more.rows):
                    continue
                both = single + more
                joint = judge(group.pulls[there], both, batch=min(batch, len(group.pulls[there])))
                clear += (joint.clear - joint.clear_alone) / len(pairs)
                visible += (joint.visible - joint.visible_alone) / len(pairs)
                best = max(best, (joint.hits, int((both.weights[joint.best] != 0).sum())))
            added.append((clear, visible))
        clear, visible = (max(parts) for parts in zip(*added, strict=True))
        given = Given(
            rows=sized.clear,
            rows_visible=sized.visible,
            excess=clear,
            excess_visible=visible,
            focus=sized.focus,
        )
        every.append(Found(names=group.names, given=given, hits=best[0], rows=best[1]))
    return every


def used(lengths: Tensor) -> float:
    """Effective share of the examples in a tensor's update, (Σ r)² / (N Σ r²); 0: nobody reaches it."""
    lengths = lengths.double()
    if not lengths.any():
        return 0.0
    lengths = lengths / lengths.max()
    return float(lengths.sum().square() / (len(lengths) * lengths.square().sum()))


def learn(model: nn.Module, own: Own, *, steps: Sequence[int] = STEPS) -> Ranges:
    """Measure the range of honest models of the architecture of ``model``, in its mode.

    Args:
        model: its values are not used.
        own: the client's own examples, or public ones like them.
        steps: of training after which models are measured, rising from 0.

    Raises:
        BadValue: a fresh model does not run on the examples.
    """
    tried = _tried(own)
    found: list[list[Found]] = []
    as_initialised: list[list[Found]] = []
    least: dict[str, float] = {}
    kept: tuple[str, ...] = ()
    is_drawn = tuple(steps) == (DRAWN,)
    for seed in range(FRESH):
        fresh, kept = initialise_again(model, seed=seed)
        if is_drawn:
            _draw_buffers(fresh, seed)
        recipe = RECIPES[seed] if seed < len(RECIPES) else None
        mine = _shuffled(tried, seed)
        for number, one in enumerate(_train(fresh, own, recipe=recipe, steps=STEPS if is_drawn else steps)):
            try:
                pulls = pulls_of(one, mine)
            except BadValue:
                if is_drawn:
                    return Ranges()  # it does not run with other buffers
                if not number:
                    raise
                break  # its training diverged
            found.append(look(groups_of(pulls.sides), mine))
            if not number:
                as_initialised.append(found[-1])
            for name, lengths in pulls.lengths.items():
                least[name] = min(least.get(name, 1.0), used(lengths))
    batch = turns(tried)[1]
    names = dict.fromkeys(name for one in found for group in one for name in group.names)
    return Ranges(
        tensors={
            name: _range_of(
                [_of(one, name) for one in found], batch, [_of(one, name) for one in as_initialised]
            )
            for name in names
        },
        used=least,
        kept=kept,
        buffers=tuple(_kept_buffers(model)),
    )


def learn_rounds(model: nn.Module, own: Own, *, models: int = FRESH) -> Range:
    """Measure what two rounds of honest models give away together, if the examples are the same in both.

    Between near models few examples change sides at a row, so that the difference of its two rounds isolates
    them: honest pairs give away much, at their worst distance. Each honest model, fresh or briefly trained,
    is moved by steps of several lengths along the signs of a gradient, as Adam does (along the gradient pairs
    give away less); its worst pair counts. The limit is what a share of ``CHANCE_ROUNDS`` of further models
    exceeds; of few models, a margin over all that was measured.

    Args:
        model: its values are not used.
        own: the client's own examples; each pair is searched and judged on other halves of them.
        models: how many are measured, at most ``FRESH``.
    """
    tried = _tried(own)
    worst: list[Given] = []
    for seed in range(models):
        fresh, _ = initialise_again(model, seed=seed)
        steps = (_WARM * (seed % 2),)
        one = next(iter(_train(fresh, own, recipe=RECIPES[1], steps=steps)), None)
        mine = _shuffled(tried, seed)
        if one is None:
            continue  # its training diverged
        before = pulls_of(one, mine)
        found = [
            look(stacked(before, pulls_of(moved, mine)), mine, searches=(search,))
            for moved in _moved(one, mine[: _BATCH // 2])
        ]
        worst.append(_most([each.given for groups in found for each in groups]))
    spread = worst if models == FRESH else ()
    return _range_of(worst, turns(tried)[1], spread, chance=CHANCE_ROUNDS)


def _moved(model: nn.Module, some: Own) -> Iterator[nn.Module]:
    """Copies of ``model`` a step of training away, of each length."""
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        train_loss(model, some), weights, allow_unused=True
    )
    steps = [torch.zeros_like(p) if g is None else g.sign() for g, p in zip(gradients, weights, strict=True)]
    unit = _length(weights) / max(_length(steps), 1.0)
    for move in MOVES:
        other = copy.deepcopy(model)
        with torch.no_grad():
            trained = (p for p in other.parameters() if p.requires_grad)
            for p, step in zip(trained, steps, strict=True):
                p.sub_(step, alpha=move * unit)
        yield other


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors))


def _tried(own: Own) -> Own:
    return own[: SEARCHED + JUDGED]


def _shuffled(own: Own, seed: int) -> Own:
    """In another order: on which examples one searches and judges is part of the spread of honest models."""
    return own[torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))]


def _of(found: Sequence[Found], name: str) -> Given:
    """The largest values of the groups that a tensor is part of."""
    return _most([one.given for one in found if name in one.names])


def _most(every: Sequence[Given]) -> Given:
    """The largest value of each measure; 0 without any."""
    return Given(**{m: max((getattr(one, m) for one in every), default=0.0) for m in PARTS})


def _range_of(
    every: Sequence[Given],
    batch: int,
    fresh: Sequence[Given] = (),
    *,
    chance: float = CHANCE,
) -> Range:
    """Limits by the spread of honest models.

    What models isolate varies among fresh ones: the limit is what a share of ``chance`` of further ones
    exceeds, and at least a margin over all that was measured.

    Args:
        every: measured, trained models too.
        batch: size of the batches in which their combinations were judged.
        fresh: of these, the models by whose spread limits are set.
        chance: share of further models that may exceed a limit.
    """
    many = MANY / min(batch, MANY)  # in smaller batches: as many examples
    whole = MANY / min(2 * batch, MANY)  # single rows are judged on both halves
    most = {m: max(getattr(one, m) for one in every) for m in PARTS}
    margins = {
        **dict.fromkeys(("rows", "rows_visible"), MARGIN * whole),
        "excess": MARGIN * many,
        "excess_visible": MARGIN_VISIBLE * many,
        "focus": MARGIN,
    }
    focused = {m: most[m] + margins[m] for m in PARTS}
    limits = dict(focused)
    for m in PARTS if fresh else ():
        limits[m] = max(limits[m], _predict_most([getattr(one, m) for one in fresh], chance))
    return Range(most=Given(**most), limits=Given(**limits), focused=Given(**focused))


def _widest(ranges: Sequence[Range]) -> Range:
    def largest(part: str) -> Given:
        return Given(**{m: max(getattr(getattr(one, part), m) for one in ranges) for m in PARTS})

    return Range(most=largest("most"), limits=largest("limits"), focused=largest("focused"))


def _predict_most(shares: Sequence[float], chance: float) -> float:
    """The share that only a share ``chance`` of further models exceeds, if they spread normally."""
    n, values = len(shares), np.array(shares)
    if n < 2:
        return float(values.max(initial=0.0))
    reach = float(scipy.stats.t.isf(chance, n - 1)) * math.sqrt(1 + 1 / n)
    return float(values.mean() + reach * values.std(ddof=1))


NOTHING: Final = _range_of([_NOTHING] * FRESH, _BATCH)
"""The range where no honest model gives anything away."""


def least_used(ranges: Ranges, name: str) -> float:
    """Effective share of the examples in a tensor's update below which a model is refused."""
    return FEWER * ranges.used.get(name, 0.0)


def initialise_again(model: nn.Module, *, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of ``model`` with values drawn anew, and the modules that had to be helped.

    Modules with ``reset_parameters`` (torch's own) do it themselves, buffers included. Other parameters get
    zeros (vectors), ones (vectors that are called a weight or a scale), or normal numbers of variance
    1 / fan-in; other sent buffers are bounded.
    """
    fresh = copy.deepcopy(model)
    helped = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        _undo_parametrizations(fresh)
        for name, part in fresh.named_modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            own = dict(part.named_parameters(recurse=False))
            kept = list(_sent_buffers(part).values())
            if own or kept:
                helped.append(name or type(part).__name__)
            for key, p in own.items():
                p.copy_(_ordinary(key, p))
            for t in kept:
                t.nan_to_num_(0, _BOUND, -_BOUND).clamp_(-_BOUND, _BOUND)
    return fresh, tuple(helped)


def _sent_buffers(part: nn.Module) -> dict[str, Tensor]:
    """Those of one module that a server sets."""
    return {
        key: t
        for key, t in part.named_buffers(recurse=False)
        if t.is_floating_point() and key not in part._non_persistent_buffers_set
    }


def _kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Sent buffers of modules that cannot initialise themselves, by name."""
    return {
        f"{name}.{key}".removeprefix("."): t
        for name, part in model.named_modules()
        if not callable(getattr(part, "reset_parameters", None))
        for key, t in _sent_buffers(part).items()
    }


def _draw_buffers(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, t in _kept_buffers(model).items():
        if t.ndim < 2:
            t.copy_(_ordinary(name.rpartition(".")[2], t))
        else:  # as large as it is, and without order
            spread = t.std(unbiased=False).nan_to_num(0)
            t.copy_(spread * torch.randn(t.shape, generator=generator).to(t))


def _undo_parametrizations(model: nn.Module) -> None:
    """Initialise what lies behind a parametrised weight: the layer's own initialisation, then set."""
    for part in model.modules():
        if not nn.utils.parametrize.is_parametrized(part):
            continue
        chains = part.get_submodule("parametrizations")
        for name, chain in list(chains.named_children()):
            for p in chain.parameters():
                p.copy_(_ordinary(name if p.ndim > 1 else "scale", p))


def _ordinary(name: str, p: Tensor) -> Tensor:
    if p.ndim < 2:
        scales = any(word in name for word in ("weight", "scale", "gamma", "std", "var"))
        return torch.full_like(p, float(scales))
    return torch.randn_like(p) / math.sqrt(max(1, p[0].numel()))


def _train(model: nn.Module, own: Own, *, recipe: Recipe | None, steps: Sequence[int]) -> Iterator[nn.Module]:
    """Yield ``model`` after each of ``steps``; stop if training diverges. Without a recipe: as it is."""
    if recipe is None:
        yield model
        return
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = recipe.optimizer(weights)
    generator = torch.Generator().manual_seed(0)
    known = own.classes(recipe.every)
    for step in range(max(steps) + 1):
        if not all(bool(p.isfinite().all()) for p in weights):
            return
        if step in steps:
            yield model
        rows = known[torch.randint(len(known), (_BATCH,), generator=generator)]
        optimizer.zero_grad()
        torch.autograd.backward(train_loss(model, own[rows]))
        optimizer.step()

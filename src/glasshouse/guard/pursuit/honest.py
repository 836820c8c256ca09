"""What the update of honest models of an architecture gives away: fresh ones, and briefly trained ones."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.pursuit.examples import Own, train_loss
from glasshouse.guard.pursuit.found import (
    BATCH,
    CELLS,
    COLUMNS,
    OF_ROUNDS,
    PARTS,
    Found,
    Given,
    look,
    turns,
    used,
)
from glasshouse.guard.pursuit.fresh import RECIPES, draw_buffers, initialise_again, kept_buffers, train
from glasshouse.guard.pursuit.groups import groups_of, stacked
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
from glasshouse.guard.pursuit.pulls import pulls_of

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


_COMBINED: Final = ("excess", "excess_visible", "crowds", "crowds_visible")
_NOTHING: Final = Given(**dict.fromkeys(PARTS, 0.0))


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
    is_drawn, buffers = tuple(steps) == (DRAWN,), kept_buffers(model)
    for seed in range(FRESH):
        fresh, kept = initialise_again(model, seed=seed)
        if is_drawn:
            draw_buffers(fresh, buffers, seed)
        recipe = RECIPES[seed] if seed < len(RECIPES) else None
        mine = _shuffled(tried, seed)
        for number, one in enumerate(train(fresh, own, recipe=recipe, steps=STEPS if is_drawn else steps)):
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
        buffers=buffers,
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
        one = next(iter(train(fresh, own, recipe=RECIPES[1], steps=steps)), None)
        mine = _shuffled(tried, seed)
        if one is None:
            continue  # its training diverged
        before = pulls_of(one, mine)
        found = [
            look(stacked(before, pulls_of(moved, mine)), mine, searches=OF_ROUNDS)
            for moved in _moved(one, mine[: BATCH // 2])
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
        **{m: (MARGIN_VISIBLE if m.endswith("visible") else MARGIN) * many for m in (*COLUMNS, *_COMBINED)},
        # The emptier an honest model's features become in training, the more cells have a single example.
        **dict.fromkeys(CELLS, MARGIN_VISIBLE * many),
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


NOTHING: Final = _range_of([_NOTHING] * FRESH, BATCH)
"""The range where no honest model gives anything away."""


def least_used(ranges: Ranges, name: str) -> float:
    """Effective share of the examples in a tensor's update below which a model is refused."""
    return FEWER * ranges.used.get(name, 0.0)

"""Score claims round by round, with null and exchanged scores: the loop shared by most scorers.

Kinds of claims unknown to the core are scored by it too: a named field against the private examples.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from glasshouse.attacks.base import About, Claim, tensors_of
from glasshouse.audit.scoring.claims.scored import Numbers, ScoredMetric
from glasshouse.audit.scoring.judge import Judge, Target
from glasshouse.audit.scoring.nulls import CHANCE
from glasshouse.errors import BadValue, NothingClaimed, Undefined
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.wire import Batch

Measure = Callable[[Target, Target], Numbers]
"""(target, the claim's own target) → scores of the claim against the target, its own or another."""
Null = Callable[[int, Target, Numbers], Numbers]
"""(round, the claim's own target, the claim's scores) → scores of the null adversary on that target."""
Exchange = Callable[[Target], list[float]]
"""The claim's mean score for each exchange of its own target; empty: it cannot be exchanged."""
OWN_NULL: Final = "the metric's own null adversary"


def score_rounds(
    about: About,
    judge: Judge,
    *,
    measure: Measure,
    null: Null,
    claimed: bool,
    exchange: Exchange | None = None,
) -> ScoredMetric:
    """Score a claim with one victim per round.

    Args:
        about: of the claim.
        judge: of its group.
        measure: scores the claim against a target.
        null: scores the null adversary.
        claimed: the claim is not empty.
        exchange: scores exchanged targets; None: the claim is measured against other victims.
    """
    values, nulls, exchanged, victims = [], [], [], []
    people: dict[str, frozenset[int]] = {}
    for number in about.rounds:
        target = judge.target(number, about.client)
        values.append(measure(target, target))
        nulls.append(null(number, target, values[-1]))
        levels = exchange(target) if exchange else _exchange_scores(about, number, judge, measure, target)
        exchanged.append(np.outer(levels, np.ones(len(values[-1]))) if levels else None)
        victims.append(judge.truth.identity(number, about.client))
        people[victims[-1]] = judge.truth.people(number, about.client)
    return ScoredMetric(
        values=tuple(values),
        nulls=tuple(nulls),
        exchanged=tuple(exchanged),
        victims=tuple(victims),
        people={victim: group for victim, group in people.items() if group},
        claimed=frozenset(victims if claimed else ()),
        runs=frozenset({judge.run}),
    )


def _exchange_scores(about: About, number: int, judge: Judge, measure: Measure, own: Target) -> list[float]:
    """The claim's mean score against each other victim with a score."""
    levels = []
    for target in judge.others(about, number):
        with suppress(NothingClaimed):
            levels.append(float(measure(target, own).mean()))
    return levels


@runtime_checkable
class ComparesWith(Protocol):
    """A metric that compares with another part of the ground truth than the inputs."""

    compares_with: Literal["inputs", "labels", "owners"]


@runtime_checkable
class HasNull(Protocol):
    """A metric with its own null adversary, which does not see the update."""

    def null(self, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext) -> Numbers:
        """One score per unit of the ground truth, like :meth:`glasshouse.metrics.base.Metric.score`."""


@runtime_checkable
class NamesNull(Protocol):
    """A metric that names its ``null`` for the report."""

    null_name: str


def score_field(name: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score the field that the metric reads against the private inputs, or another named part of the truth.

    Raises:
        BadValue: the claim has no such field.
        Undefined: neither a chance level nor a null adversary is known.
    """
    tensors = tensors_of(claim)
    if metric.reads not in tensors:
        raise BadValue(
            f"metric '{name}' on claims '{claim.kind}'",
            needs=f"a tensor '{metric.reads}' in the claim",
            got=", ".join(sorted(tensors)) or "none",
            fix="correct what the metric reads, or add the field to the claim",
        )
    claimed = tensors[metric.reads]

    def measure(target: Target, _: Target) -> Numbers:
        return metric.score(claimed, truth_part(metric, target), context=judge.context)

    def null(_: int, target: Target, values: Numbers) -> Numbers:
        return null_numbers(name, metric, target, judge, count=len(values))

    scored = score_rounds(claim.about, judge, measure=measure, null=null, claimed=len(claimed) > 0)
    own = metric.null_name if isinstance(metric, NamesNull) else OWN_NULL
    return scored.named(own if isinstance(metric, HasNull) else CHANCE)


def truth_part(metric: Metric, target: Target) -> Tensor:
    """The part of the ground truth that the metric compares with."""
    part = metric.compares_with if isinstance(metric, ComparesWith) else "inputs"
    parts = {"inputs": target.batch.inputs, "labels": target.batch.labels, "owners": target.owners}
    return parts[part]


def null_numbers(name: str, metric: Metric, target: Target, judge: Judge, *, count: int) -> Numbers:
    """The null baseline's scores on a target.

    Raises:
        Undefined: neither a chance level nor a null adversary is known.
    """
    if isinstance(metric, HasNull):
        return metric.null(truth_part(metric, target), judge.auxiliary, context=judge.context)
    chance = metric.chance(judge.context)
    if chance is None:
        raise Undefined(
            f"null baseline of metric '{name}'",
            needs="a chance level, or a method 'null' of the metric",
            got="neither",
            fix="say what somebody without the update would get",
        )
    return np.full(count, chance)

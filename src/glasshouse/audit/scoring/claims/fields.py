"""Score kinds of claims unknown to the core: a named field against the private examples."""

from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from glasshouse.attacks.base import Claim, tensors_of
from glasshouse.audit.scoring.claims.rounds import score_rounds
from glasshouse.audit.scoring.claims.scored import Numbers, ScoredMetric
from glasshouse.audit.scoring.judge import Judge, Target
from glasshouse.audit.scoring.nulls import CHANCE
from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.wire import Batch

TruthPart = Literal["inputs", "labels", "owners"]
OWN_NULL: Final = "the metric's own null adversary"


@runtime_checkable
class ComparesWith(Protocol):
    """A metric that compares with another part of the ground truth than the inputs."""

    compares_with: TruthPart


@runtime_checkable
class HasNull(Protocol):
    """A metric with its own null adversary, which does not see the update."""

    def null(self, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext) -> Numbers:
        """One score per unit of the ground truth, like :meth:`glasshouse.metrics.base.Metric.score`."""
        ...


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

    def null(number: int, target: Target, values: Numbers) -> Numbers:
        del number
        return null_numbers(name, metric, target, judge, count=len(values))

    scored = score_rounds(claim.about, judge, measure=measure, null=null, claimed=len(claimed) > 0)
    return scored.named(name_of_null(metric))


def name_of_null(metric: Metric) -> str:
    """The name of the null baseline, in words."""
    if not isinstance(metric, HasNull):
        return CHANCE
    return metric.null_name if isinstance(metric, NamesNull) else OWN_NULL


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

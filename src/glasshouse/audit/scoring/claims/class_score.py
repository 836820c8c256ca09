"""Score claimed images of private classes, and null baselines that use no uploads.

The nulls are the prior image (the public mean of the private domain, or the attack's own prior if it returned
one) and the public mean of the class itself. All are scored on the judged classes and the best is quoted,
which can only make the gain smaller (decision 0003). The exchange swaps the private images of classes.
"""

from typing import Final

import numpy as np
from torch import Tensor

from glasshouse.attacks.base import Claim, ClassRepresentatives
from glasshouse.audit.scoring.claims.scored import Numbers, ScoredMetric
from glasshouse.audit.scoring.judge import Judge
from glasshouse.audit.scoring.nulls import EXAMPLES
from glasshouse.metrics.base import Metric
from glasshouse.metrics.gallery import null_images

GUESS: Final = "guess among the clients"
SHIFTS: Final = 3
"""Largest number of other classes that each image is scored against; fewer if there are many classes."""


def score_classes(_: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """One value, one null and one exchanged value per private class."""
    assert isinstance(claim, ClassRepresentatives)
    values = _scores(metric, claim, judge)
    baseline, nulls = _null(metric, claim, judge, len(values))
    gallery = judge.context.gallery
    assert gallery is not None  # otherwise the metric has raised
    people = tuple(f"class {gallery.classes[j]}" for j in claim.labels.tolist())
    exchanged = _exchange_scores(metric, claim, judge, gallery.targets)
    return ScoredMetric(
        values=tuple(values[:, None]),
        nulls=tuple(nulls[:, None]),
        exchanged=(None,) * len(values) if exchanged is None else tuple(exchanged.T[..., None]),
        victims=people,
        baseline=baseline,
        claimed=frozenset(people),
        runs=frozenset({judge.run}),
    )


def _scores(metric: Metric, claim: ClassRepresentatives, judge: Judge) -> Numbers:
    claimed: Tensor = claim.source if metric.reads == "source" else claim.inputs
    return metric.score(claimed, claim.labels, context=judge.context)


def _null(metric: Metric, claim: ClassRepresentatives, judge: Judge, count: int) -> tuple[str, Numbers]:
    """The name of the quoted null, and its score for every class."""
    context, draws = judge.context, judge.draws
    if metric.reads == "source":
        chance = metric.chance(context)
        return GUESS, np.full(count, np.nan if chance is None else chance)
    assert context.gallery is not None  # otherwise the metric has raised
    sign = 1 if metric.higher_leaks else -1
    images = null_images(context.gallery, claim.labels, None if draws is None else draws.inputs)
    scored = [(name, metric.score(image, claim.labels, context=context)) for name, image in images.items()]
    return max(scored, key=lambda pair: sign * float(pair[1].mean()))


def _exchange_scores(
    metric: Metric, claim: ClassRepresentatives, judge: Judge, classes: int
) -> Numbers | None:
    """Scores against some other classes, (others, classes); owners against those of all other classes."""
    most = max(1, min(SHIFTS, EXAMPLES // (2 * classes)))
    shifts = range(1, classes if metric.reads == "source" else min(classes, 1 + most))
    scored = [_scores(metric, claim, judge.with_classes_moved(by)) for by in shifts]
    return np.stack(scored) if scored else None

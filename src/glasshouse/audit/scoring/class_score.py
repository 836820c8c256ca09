"""Scores claimed images of private classes, each beside what an adversary without uploads would have shown.

The nulls are the prior image (the public mean of the private domain; the attack's own prior where it filed
one) and the public mean of the class itself. All are scored on the judged classes and the best one is quoted:
that choice can only make the gain smaller (decision 0040).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.gallery import null_images
from glasshouse.wire import Batch

GUESS: Final = "guess among the clients"


def score_classes(
    metric: Metric, claim: ClassRepresentatives, context: ScoreContext, draws: Batch | None
) -> tuple[tuple[NDArray[np.float64], ...], tuple[NDArray[np.float64], ...], str]:
    """One value and one null per private class, and the null's name."""
    if metric.reads == "source":
        values = metric.score(claim.source, claim.labels, context=context)
        nulls = np.full(len(values), metric.chance(context) or np.nan)
        return _split(values), _split(nulls), GUESS
    values = metric.score(claim.inputs, claim.labels, context=context)
    assert context.gallery is not None  # the metric has refused otherwise
    sign = 1 if metric.higher_leaks else -1
    name, nulls = max(
        (
            (name, metric.score(images, claim.labels, context=context))
            for name, images in null_images(
                context.gallery, claim.labels, None if draws is None else draws.inputs
            ).items()
        ),
        key=lambda pair: sign * float(pair[1].mean()),
    )
    return _split(values), _split(nulls), name


def _split(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    return tuple(np.array([v]) for v in values)

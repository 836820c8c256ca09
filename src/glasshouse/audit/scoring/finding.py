"""From numbers per victim to a finding: value, interval, gain over the null, verdict."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.audit.scoring.score import Scored
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric, PooledMetric, ScoreContext
from glasshouse.metrics.interval import Interval, mean_interval, paired_gain
from glasshouse.metrics.shares import paired_share_gain, share_interval
from glasshouse.results.records import Control, Verdict
from glasshouse.rng import Rng

SMALL: Final[Mapping[str, float]] = {"dB": 1.0, "share": 0.1, "": 0.05}
"""Gain, by unit, below which an interval that holds 0 is called "no leak found" and not "inconclusive"."""


RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "ssim": (-1.0, 1.0),
    "mse": (0.0, np.inf),
    "mse_r": (0.0, np.inf),
    "perceptual": (0.0, np.inf),
    "lpips": (0.0, np.inf),
}
"""What a metric can be at all: an interval of its mean is cut to it."""


def within(interval: Interval, metric_name: str) -> Interval:
    """The interval, cut to what the metric can be."""
    low, high = RANGES.get(metric_name, (-np.inf, np.inf))
    return replace(interval, low=max(interval.low, low), high=min(interval.high, high))


def value_of(scored: Scored, metric: Metric, *, rng: Rng) -> Interval:
    """The metric over all victims, with its 95 % interval.

    Raises:
        Undefined: fewer than two victims, or the metric is not determined.
    """
    if scored.clients:
        return _pooled(scored, metric)
    if metric.counts:
        return share_interval(np.concatenate(scored.values), _clusters(scored.values))
    return mean_interval(_means(scored.values), rng=rng)


def middle(scored: Scored) -> float:
    """The median over victims of their means: what a few failures do not move."""
    return float(np.median(_means(scored.values)))


def null_of(scored: Scored, metric: Metric) -> float:
    """The null adversary's value on the same victims."""
    if scored.clients:
        return _coin(scored, metric)
    if metric.counts:
        return float(np.concatenate(scored.nulls).mean())
    return float(_means(scored.nulls).mean())


def gain_of(scored: Scored, metric: Metric, *, rng: Rng) -> Interval:
    """Improvement over the null, paired by victim, signed so that positive is leakage.

    Raises:
        Undefined: fewer than two victims, or the metric is not determined.
    """
    if scored.clients:
        gain = _pooled(scored, metric).minus(_coin(scored, metric))
        return gain if metric.higher_leaks else gain.negated()
    if metric.counts:
        gain = paired_share_gain(
            np.concatenate(scored.values), np.concatenate(scored.nulls), _clusters(scored.values)
        )
        return gain if metric.higher_leaks else gain.negated()
    return paired_gain(_means(scored.values), _means(scored.nulls), rng=rng, higher_leaks=metric.higher_leaks)


def verdict_of(gain: Interval, unit: str, control: Control | None) -> Verdict:
    """What the gain means; a failed control leaves nothing to say but ``no power``."""
    if control is not None and not control.passed:
        return "no power"
    if gain.above_zero:
        return "leaks"
    return "no leak found" if gain.high <= SMALL.get(unit, SMALL[""]) else "inconclusive"


def _means(values: tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
    return np.array([v.mean() for v in values])


def _clusters(values: tuple[NDArray[np.float64], ...]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(values)), [len(v) for v in values])


def _pooled(scored: Scored, metric: Metric) -> Interval:
    if not isinstance(metric, PooledMetric):
        raise Undefined(
            "scores of clients",
            needs="a metric over clients",
            got=type(metric).__name__,
            fix="use auc, f1 or tpr_at_fpr",
        )
    claimed = np.concatenate([c for c, _ in scored.clients])
    truth = np.concatenate([t for _, t in scored.clients])
    # The client is the unit: with few seeds, a variance between them would say nothing.
    return metric.pool(claimed, truth)


def _coin(scored: Scored, metric: Metric) -> float:
    claimed, truth = (np.concatenate([pair[i] for pair in scored.clients]) for i in (0, 1))
    called = float(claimed.mean()) if metric.reads == "decisions" else None
    chance = metric.chance(ScoreContext(prior=float(truth.mean()), called=called))
    if chance is None:
        raise Undefined(
            f"null baseline of {type(metric).__name__}",
            needs="a chance level",
            got="none",
            fix="choose another metric",
        )
    return chance

"""From scores per victim to a value and to its gain over a null adversary, with intervals and p-values.

The interval and the one-sided p-value of a gain agree: the interval lies above 0 where p is below 0.025.

Victims of one federation share its first weights, and what an attack trained for it. Where there are enough
federations (``FEW_RUNS``), every interval is the wider of two, over victims and over federations, and every
p-value the larger (decision 0298). Neither contains the other: one person may be a victim in several.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.audit.scoring.nulls import CHANCE, GUESS, OWNERS
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.statistics.interval import (
    Interval,
    gain_p_value,
    mean_interval,
    paired_gain,
    with_unseen,
)
from glasshouse.metrics.statistics.permutation import FEW_RUNS, GuessTest, compare_with_guesses
from glasshouse.metrics.statistics.shares import (
    paired_share_gain,
    paired_share_p_value,
    share_gain,
    share_interval,
    share_p_value,
)
from glasshouse.metrics.statistics.units import Numbers, cluster, means_of
from glasshouse.rng import Rng

Bools = NDArray[np.bool_]

KNOWN: Final = frozenset({CHANCE, GUESS, OWNERS})
"""Baselines whose score is a chance level in closed form, and so has no uncertainty."""


FEWEST_PAIRED: Final = 6
"""With fewer victims no paired test of rates has power: the upper bound on the null's rate is used."""


def within(interval: Interval, bounds: tuple[float, float]) -> Interval:
    """The interval, clipped to the possible range of the metric; its value stays inside."""
    low, high = bounds
    return replace(
        interval,
        low=min(max(interval.low, low), interval.value),
        high=max(min(interval.high, high), interval.value),
    )


def spans_draws(scored: ScoredMetric) -> bool:
    """Whether federations are units, too: there are enough to see how much they differ."""
    return not scored.clients and len(scored.draws) >= FEW_RUNS


def value_of(scored: ScoredMetric, metric: Metric, *, rng: Rng) -> Interval:
    """The metric over all victims, with its 95 % interval, within the metric's range.

    Raises:
        Undefined: fewer than two victims and no finite range to bound the error, or the data do not determine
        the metric.
    """
    value = _value(scored, metric, rng)
    if spans_draws(scored):
        value = within(widened(value, _value(scored.by_draws(), metric, rng)), metric.range)
    return value


def widened(interval: Interval, other: Interval) -> Interval:
    """The interval, reaching at least as far to either side as another one of the same estimate."""
    low, high = other.value - other.low, other.high - other.value
    return replace(
        interval, low=min(interval.low, interval.value - low), high=max(interval.high, interval.value + high)
    )


def _value(scored: ScoredMetric, metric: Metric, rng: Rng) -> Interval:
    """:func:`value_of` with victims as units."""
    if scored.clients:
        return _pooled_interval(scored, metric)
    if _is_single_victim(scored, metric) and not (metric.counts and len(scored.values[0]) == 1):
        return _whole_range(scored, metric)
    if metric.counts:
        return share_interval(*cluster(scored.values))
    return within(mean_interval(means_of(scored.values), rng=rng), metric.range)


def middle(scored: ScoredMetric) -> float:
    """The median over victims of their mean scores, robust to a few failures."""
    return float(np.median(means_of(scored.values)))


def with_chance(scored: ScoredMetric, metric: Metric, chance: float | None) -> ScoredMetric:
    """The same scores, with the chance level as null if the null scored worse than that.

    Args:
        scored: of one attack.
        metric: of the scores.
        chance: score of random guessing in closed form; None: unknown.
    """
    if chance is None or scored.clients or not scored.nulls:
        return scored
    worse = _null(scored, metric) < chance if metric.higher_leaks else _null(scored, metric) > chance
    if not worse:
        return scored
    return replace(scored, nulls=tuple(np.full(len(v), chance) for v in scored.values), baseline=CHANCE)


def null_of(scored: ScoredMetric, metric: Metric) -> float:
    """The null adversary's value on the same victims."""
    return _coin(scored, metric) if scored.clients else _null(scored, metric)


def gain_of(scored: ScoredMetric, metric: Metric, *, rng: Rng) -> Interval:
    """Improvement over the null, paired by victim, signed so that positive is leakage.

    Args:
        scored: of one attack.
        metric: of the scores.
        rng: random stream for resampling; the same as for :func:`p_of`.

    Raises:
        Undefined: as :func:`value_of`.
    """
    if scored.clients:
        return _clients_gain(scored, metric, rng)
    if _is_single_victim(scored, metric):
        gain = _whole_range(scored, metric).minus(_null(scored, metric))
        return gain if metric.higher_leaks else gain.negated()
    gain = _gain(scored, metric, rng)
    if spans_draws(scored):
        gain = widened(gain, _draws_gain(scored, metric, rng))
    ends = sorted(_sign(metric) * (end - _null(scored, metric)) for end in metric.range)
    return gain if metric.counts else within(gain, (ends[0], ends[1]))


def _gain(scored: ScoredMetric, metric: Metric, rng: Rng) -> Interval:
    """:func:`gain_of` with victims as units."""
    if not metric.counts:
        values, nulls = means_of(scored.values), means_of(scored.nulls)
        return paired_gain(values, nulls, rng=rng, higher_leaks=metric.higher_leaks)
    hits, null, clusters = _outcomes(scored, metric)
    level = _null_share(scored, null)
    return paired_share_gain(hits, null, clusters) if level is None else _over(level, hits, null, clusters)


def _draws_gain(scored: ScoredMetric, metric: Metric, rng: Rng) -> Interval:
    """:func:`gain_of` with federations as units."""
    each = scored.by_draws()
    if not metric.counts:
        return _gain(each, metric, rng)
    hits, null, clusters = _outcomes(each, metric)
    return _over(_null_most(scored, metric), hits, null, clusters)


def _over(level: float, hits: Numbers, null: Numbers, clusters: NDArray[np.int64]) -> Interval:
    """The gain of a rate over the null's; its lower end is that over a constant at or above it."""
    mean = float(null.mean())
    alone = share_gain(hits, mean, clusters)
    return replace(alone, low=alone.low - (level - mean))


def _null_most(scored: ScoredMetric, metric: Metric) -> float:
    """The constant that a rate over federations is tested against: at most this the null would reach.

    With few federations no paired test has power. The null's own rate is known from all victims, which it
    guesses one by one.
    """
    _, null, clusters = _outcomes(scored, metric)
    level = _null_share(scored, null)
    return share_interval(null, clusters).high if level is None else level


def p_of(scored: ScoredMetric, metric: Metric, *, rng: Rng) -> float:
    """One-sided p-value of "the attack does no better than the null"; below 0.025 where the gain is above 0.

    Args:
        scored: of one attack.
        metric: of the scores.
        rng: random stream for resampling; the same as for :func:`gain_of`.

    Raises:
        Undefined: as :func:`gain_of`.
    """
    if scored.clients:
        return _test_clients(scored, metric, rng).p
    if _is_single_victim(scored, metric):
        return 1.0
    p = _p(scored, metric)
    if not spans_draws(scored):
        return p
    each = scored.by_draws()
    if not metric.counts:
        return max(p, _p(each, metric))
    hits, _, clusters = _outcomes(each, metric)
    return max(p, share_p_value(hits, _null_most(scored, metric), clusters))


def _p(scored: ScoredMetric, metric: Metric) -> float:
    """:func:`p_of` with victims as units."""
    if metric.counts:
        hits, null, clusters = _outcomes(scored, metric)
        level = _null_share(scored, null)
        if level is not None:
            return share_p_value(hits, level, clusters)
        return paired_share_p_value(hits, null, clusters)
    return gain_p_value(means_of(scored.values), means_of(scored.nulls), higher_leaks=metric.higher_leaks)


def value_with_unseen(value: Interval, scored: ScoredMetric, metric: Metric) -> Interval:
    """The interval of :func:`value_of` if victims may leak more than those tried; rates know that already."""
    if scored.clients or metric.counts:
        return value
    most = metric.range[1 if metric.higher_leaks else 0]
    return with_unseen(value, means_of(scored.values), most=most, upper=metric.higher_leaks)


def gain_with_unseen(gain: Interval, scored: ScoredMetric, metric: Metric) -> Interval:
    """The interval of :func:`gain_of` if victims may leak more than those tried; rates know that already."""
    if scored.clients or metric.counts:
        return gain
    null = _null(scored, metric)
    most = _sign(metric) * (metric.range[1 if metric.higher_leaks else 0] - null)
    gains = _sign(metric) * (means_of(scored.values) - means_of(scored.nulls))
    return with_unseen(gain, gains, most=most)


def rung_with_unseen(gain: Interval, scored: ScoredMetric, metric: Metric) -> Interval:
    """The same of a further rung; where it is not beaten, victims may also leak less than those tried.

    The lower end of a rung that is beaten is that of its test, which is about victims like these.
    """
    wide = gain_with_unseen(gain, scored, metric)
    if scored.clients or metric.counts or gain.above_zero:
        return wide
    least = _sign(metric) * (metric.range[0 if metric.higher_leaks else 1] - _null(scored, metric))
    gains = _sign(metric) * (means_of(scored.values) - means_of(scored.nulls))
    return with_unseen(wide, gains, most=least, upper=False)


def _sign(metric: Metric) -> float:
    return 1.0 if metric.higher_leaks else -1.0


def _null(scored: ScoredMetric, metric: Metric) -> float:
    scores = np.concatenate(scored.nulls) if metric.counts else means_of(scored.nulls)
    return float(scores.mean())


def is_constant(scored: ScoredMetric) -> bool:
    """Whether a rate is compared with a constant: a known chance level, or too few victims for pairing."""
    too_few = len(scored.values) < FEWEST_PAIRED and scored.null_most is not None
    return scored.baseline in KNOWN or too_few


def _null_share(scored: ScoredMetric, null: Numbers) -> float | None:
    """The constant that a rate is tested against; None if it is compared with the null's in pairs.

    For a null without a known chance level: the upper bound from auxiliary data, but at least its rate on the
    victims themselves.
    """
    if not is_constant(scored):
        return None
    mean = float(null.mean())
    return mean if scored.baseline in KNOWN else max(mean, scored.null_most or 0.0)


def _is_single_victim(scored: ScoredMetric, metric: Metric) -> bool:
    """Whether there is only one victim, whose score has no interval but the metric's range."""
    if len(scored.values) != 1 or not all(math.isfinite(end) for end in metric.range):
        return False
    return not (metric.counts and len(scored.values[0]) == 1 and is_constant(scored))


def _whole_range(scored: ScoredMetric, metric: Metric) -> Interval:
    low, high = metric.range
    return Interval(value=float(scored.values[0].mean()), low=low, high=high, n=1, level=0.95)


def _outcomes(scored: ScoredMetric, metric: Metric) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
    """Hits, the null's hits and victim indices of all examples; misses instead if a low rate is the leak."""
    (hits, victims), null = cluster(scored.values), np.concatenate(scored.nulls)
    return (hits, null, victims) if metric.higher_leaks else (1 - hits, 1 - null, victims)


def pooled(metric: Metric, claimed: Numbers, truth: Bools, runs: NDArray[np.int64] | None = None) -> Interval:
    """The metric over clients with its interval.

    Raises:
        Undefined: it is no metric over clients.
    """
    interval = metric.pool(claimed, truth, runs=runs)
    if interval is None:
        raise not_pooled(metric)
    return interval


def not_pooled(metric: Metric) -> Undefined:
    """The error of a metric on claims about clients that is none over clients."""
    return Undefined(
        "scores of clients", needs="a metric over clients", got=type(metric).__name__,
        fix="use auc, f1 or tpr_at_fpr",
    )  # fmt: skip


def _pooled_interval(scored: ScoredMetric, metric: Metric) -> Interval:
    """The metric over all clients; runs are clusters if there are enough to estimate their variance."""
    claimed, truth, runs = scored.pool_clients(decisions=metric.reads == "decisions")
    return pooled(metric, claimed, truth, runs if len(np.unique(runs)) >= FEW_RUNS else None)


def _clients_gain(scored: ScoredMetric, metric: Metric, rng: Rng) -> Interval:
    """The value's interval minus chance; a permutation test decides whether it lies above 0."""
    value = _pooled_interval(scored, metric).minus(_coin(scored, metric))
    gain = value if metric.higher_leaks else value.negated()
    tested = _test_clients(scored, metric, rng).low
    low = max(tested, gain.low) if tested > 0 else min(tested, gain.low)
    return replace(gain, low=min(low, gain.value))


def _test_clients(scored: ScoredMetric, metric: Metric, rng: Rng) -> GuessTest:
    sign = _sign(metric)
    claimed, truth, runs = scored.pool_clients(decisions=metric.reads == "decisions")

    def values(decisions: Bools, truths: Bools) -> Numbers:
        numbers = metric.values(claimed[decisions], truths[:, decisions])
        if numbers is None:
            raise not_pooled(metric)
        return sign * numbers

    chance = sign * _coin(scored, metric)
    return compare_with_guesses(values, claimed, truth, runs, chance=chance, rng=rng.child("guesses"))


def _coin(scored: ScoredMetric, metric: Metric) -> float:
    claimed, truth, _ = scored.pool_clients(decisions=metric.reads == "decisions")
    share = float(claimed.mean()) if metric.reads == "decisions" else None
    chance = metric.chance(ScoreContext(prior=float(truth.mean()), called=share))
    if chance is None:
        raise Undefined(
            f"null baseline of {type(metric).__name__}",
            needs="a chance level",
            got="none",
            fix="choose another metric",
        )
    return chance

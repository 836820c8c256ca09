"""Exchange control: score claims against other victims' ground truth, as if the update were ignored."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import scipy

from glasshouse.audit.scoring.gains import (
    gain_of,
    gain_with_unseen,
    is_constant,
    null_of,
    p_of,
    spans_draws,
    value_of,
    widened,
)
from glasshouse.audit.scoring.nulls import CHANCE
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.audit.scoring.table import Crossing, Table
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.exchange import ExchangeTest, merge_alike, permutation_test
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.metrics.statistics.pairing import compare_with_others
from glasshouse.metrics.statistics.permutation import GuessTest, exchange_truth
from glasshouse.metrics.statistics.strangers import strangers_p
from glasshouse.results.records import Exchange
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class ExchangeGain:
    """The gain of claims over the same claims on exchanged victims.

    Attributes:
        level: the metric on exchanged victims.
        gain: of the true pairing over the exchanged one, signed so that positive is leakage; its interval is
            that of a test about these victims, by which the verdict goes.
        p: one-sided p-value of "that gain is not above 0".
        drawn: interval of the same gain if other victims had been drawn.
    """

    level: float
    gain: Interval
    p: float
    drawn: Interval

    def record(self, scored: ScoredMetric, metric: Metric) -> Exchange:
        """The record for the result; ``scored``: whose gain it is.

        Its interval is about all victims like these: a test of orders takes who of them came out for given.
        """
        other, gain = scored.with_exchange(), widened(self.gain, self.drawn)
        gain = gain if other is None else gain_with_unseen(gain, other, metric)
        return Exchange(
            value=self.level,
            gain=gain.value,
            gain_low=gain.low,
            gain_high=gain.high,
            n=gain.n,
            beaten=self.gain.above_zero,
        )


def exchange(
    scored: ScoredMetric, metric: Metric, *, rng: Rng, tables: Sequence[Table | Crossing | None] = ()
) -> ExchangeGain | None:
    """The gain of the true pairing over exchanged ones, paired by victim; None: nothing can be exchanged.

    Args:
        scored: with the scores of each claim on some other victims.
        metric: of the scores.
        rng: stream of intervals and orders.
        tables: every claim against every victim, by run, where there are so few that all were compared: the
            test then exchanges all of them, and near-duplicates count as one victim.
    """
    if scored.clients:
        return _exchange_clients(scored, metric, rng)
    other = scored.with_exchange()
    if other is None:
        return None
    if metric.counts and is_constant(scored):
        # Each claim is compared with equally many others: for a constant claim, the mean is its hit rate.
        level = float(np.concatenate(other.nulls).mean())
        other = replace(other, nulls=tuple(np.full(len(v), level) for v in other.values), baseline=CHANCE)
    try:
        stream = rng.child("exchange")
        gain, p = gain_of(other, metric, rng=stream), p_of(other, metric, rng=stream)
    except Undefined:  # fewer than two victims could be exchanged
        return None
    drawn = gain
    over_draws = (gain, p) if spans_draws(other) else None
    if _all_alike(tables):
        # Whose a claim is has no answer: all that can be told apart is how near near-duplicates are.
        gain, p = replace(gain, low=min(gain.low, 0.0)), 1.0
    elif (all_pairs := _compare_all(tables, stream)) is not None:
        low, high = min(all_pairs.low, gain.value), max(all_pairs.high, gain.value)
        gain, p = replace(gain, low=low, high=high), all_pairs.p
    elif not metric.counts and (tested := _compare_pairs(scored, metric, stream)) is not None:
        gain, p = replace(gain, low=min(tested.low, gain.value)), tested.p
    if over_draws is not None:  # the tests above are about these federations alone
        wide, p = over_draws[0], max(p, over_draws[1])
        gain = replace(gain, low=min(gain.low, wide.low), high=max(gain.high, wide.high))
    return ExchangeGain(level=null_of(other, metric), gain=gain, p=p, drawn=drawn)


def within_labels(tables: Sequence[Table | Crossing | None], rng: Rng) -> bool | None:
    """Whether claims match their own victims better than others of the same label; None: cannot be tested.

    What a claim knows by the label alone, which may have been granted, it also knows of these others.
    """
    labelled = [(t, t.strata) for t in tables if t is not None and t.strata is not None]
    single = [(t.updates(), strata) for t, strata in labelled if len(t.matches) == len(strata)]
    if not single:
        return None
    strata = np.concatenate([1_000_000 * run + own for run, (_, own) in enumerate(single)])
    matches = scipy.linalg.block_diag(*(updates for updates, _ in single))
    test = permutation_test(matches, strata, rng=rng.child("within labels"))
    return None if test is None else test.low > 0


def mixed_up_p(tables: Sequence[Table | None], rng: Rng) -> float:
    """The p-value of "claims know nobody, not even others than their own"; 1 where it cannot be tested."""
    tested = [t for t in tables if t is not None and t.heldout.shape[1] and len(t.matches) > 1]
    p_values: list[float] = []
    for number, table in enumerate(tested):
        about = table.claim_of[None] == np.arange(len(table.matches))[:, None]  # (k, n)
        beside = table.alike[:, None] == table.alike[None]  # (n, n)
        own = about.astype(np.float64) @ beside.astype(np.float64) > 0
        p_values.append(
            strangers_p(
                table.matches,
                table.heldout,
                own,
                table.strata,
                table.heldout_strata,
                rng=rng.child(f"strangers/{number}"),
            )
        )
    return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0


def groups_of(tables: Sequence[Table | None]) -> int | None:
    """How many victims can be told apart in the run in which most can be; None: unknown."""
    counts = [len(np.unique(table.alike_updates())) for table in tables if table is not None]
    return max(counts, default=None)


def _all_alike(tables: Sequence[Table | Crossing | None]) -> bool:
    """Whether in no run there are two victims that can be told apart, though there are several."""
    groups = [table.alike_updates() for table in tables if table is not None and len(table.matches) > 1]
    return bool(groups) and all(len(np.unique(group)) == 1 for group in groups)


def _compare_all(tables: Sequence[Table | Crossing | None], rng: Rng) -> ExchangeTest | None:
    """The permutation test of all claims over all victims, within each run; None if too few."""
    blocks = [merge_alike(t.updates(), t.alike_updates()) for t in tables if t is not None]
    if not blocks:
        return None
    runs = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    return permutation_test(scipy.linalg.block_diag(*blocks), runs, rng=rng.child("all pairs"))


def _compare_pairs(scored: ScoredMetric, metric: Metric, rng: Rng) -> GuessTest | None:
    """The exact test of real-valued scores over victims; None if there are too few victims."""
    sign = 1 if metric.higher_leaks else -1
    pairs = [(v, e) for v, e in zip(scored.values, scored.exchanged, strict=True) if e is not None]
    own, others = [sign * v.mean() for v, _ in pairs], [sign * e.mean(1) for _, e in pairs]
    return compare_with_others(own, others, rng=rng.child("pairs"))


def _exchange_clients(scored: ScoredMetric, metric: Metric, rng: Rng) -> ExchangeGain | None:
    """The gain over the mean over exchanges of the clients of each run.

    The gain over the null already tests whether the score exceeds exchanged ones, so its lower end is used.
    """
    claimed, truth, runs = scored.pool_clients(decisions=metric.reads == "decisions")
    truths, weights = exchange_truth(claimed, truth, runs, rng=rng.child("exchange"))
    try:
        numbers = metric.values(claimed, truths)
    except Undefined:  # e.g. no client is called positive
        return None
    if numbers is None:
        return None
    level = float(numbers @ weights)
    value = value_of(scored, metric, rng=rng).minus(level)
    gain = value if metric.higher_leaks else value.negated()
    tested = gain_of(scored, metric, rng=rng)
    gain = replace(gain, low=min(tested.low, gain.value))
    return ExchangeGain(level=level, gain=gain, p=0.0, drawn=gain)

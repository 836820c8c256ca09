"""Compare two attacks by the paired difference on the same victims, with its own interval.

If both attacks have the same victims, overlap of their intervals says little about the difference; the paired
difference does. Over four federations or more its interval is the wider of two, over victims (or clients) and
over federations: which attack leads may be the luck of one draw of first weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from glasshouse.audit.scoring.gains import pooled, spans_draws, widened
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.audit.scoring.words import place_of
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.interval import Interval, mean_interval, paired_gain
from glasshouse.metrics.statistics.permutation import FEW_RUNS
from glasshouse.metrics.statistics.shares import paired_share_gain
from glasshouse.metrics.statistics.units import cluster, means_of
from glasshouse.registry import create, load
from glasshouse.results.records import Contrast
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell

RESAMPLES = 1000
"""Number of bootstrap samples of clients, for metrics that are not means over clients."""


def contrasts(cell: Cell, scored: Mapping[str, Mapping[str, ScoredMetric]]) -> Iterator[Contrast]:
    """Compare the attack named by ``audit.contrast`` with every other, metric by metric.

    Args:
        scored: attack → metric → scores. Pairs that were not scored on the same victims are left out.
        cell: the cell that both attacks ran in.
    """
    contrast = cell.scenario.audit.contrast
    for other, numbers in scored.items():
        if other == contrast:
            continue
        for plugin in cell.scenario.audit.metrics:
            key = plugin.label or plugin.name
            left, right = scored.get(contrast, {}).get(key), numbers.get(key)
            if left is None or right is None or not _same_victims(left, right):
                continue
            metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
            stream = Rng.root(cell.scenario.seed, salt="contrast").child(f"{contrast}/{other}/{key}")
            try:
                interval = difference(left, right, metric, rng=stream)
            except Undefined:  # the attacks' own findings are undefined too, and report it
                continue
            yield Contrast(
                **place_of(cell),
                attack=contrast,
                other=other,
                metric=key,
                unit_of_value=metric.unit,
                difference=interval.value,
                low=interval.low,
                high=interval.high,
                n=interval.n,
                unit="clients" if left.clients else "victims",
            )


def difference(left: ScoredMetric, right: ScoredMetric, metric: Metric, *, rng: Rng) -> Interval:
    """Leakage of ``left`` minus that of ``right``.

    Raises:
        Undefined: fewer than two victims, or the data do not determine the metric.
    """
    if left.clients:
        return _clients(left, right, metric, rng)
    means = (means_of(side.values) for side in (left, right))
    if metric.counts:
        hits, victims = cluster(left.values)
        gap = paired_share_gain(hits, np.concatenate(right.values), victims)
        gap = gap if metric.higher_leaks else gap.negated()
    else:
        gap = paired_gain(*means, rng=rng, higher_leaks=metric.higher_leaks)
    if not (spans_draws(left) and left.draws == right.draws):
        return gap
    of_draws = (means_of(side.by_draws().values) for side in (left, right))
    return widened(gap, paired_gain(*of_draws, rng=rng.child("draws"), higher_leaks=metric.higher_leaks))


def _same_victims(left: ScoredMetric, right: ScoredMetric) -> bool:
    """Whether both were scored on the same victims with equal numbers of scores, or on the same clients."""
    if left.clients or right.clients:
        if not (left.clients and right.clients):
            return False
        truth, other = ([c.truth for c in side.clients] for side in (left, right))
        return np.array_equal(np.concatenate(truth), np.concatenate(other))
    sizes, others = (list(map(len, side.values)) for side in (left, right))
    return left.victims == right.victims and sizes == others


def _clients(left: ScoredMetric, right: ScoredMetric, metric: Metric, rng: Rng) -> Interval:
    """Percentile bootstrap over the clients of all runs, with the same resamples for both attacks."""
    decisions = metric.reads == "decisions"
    (a, truth, runs), (b, _, _) = (side.pool_clients(decisions=decisions) for side in (left, right))

    def gap_of(rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> float:
        return pooled(metric, a[rows], truth[rows]).value - pooled(metric, b[rows], truth[rows]).value

    differences = []
    for rows in rng.numpy().integers(0, len(truth), (RESAMPLES, len(truth))):
        with suppress(Undefined):  # a sample without positive clients
            differences.append(gap_of(rows))
    value = gap_of(slice(None))
    if len(differences) < RESAMPLES / 2:
        raise Undefined(
            "difference between two attacks on clients",
            needs="a metric that most samples of the clients determine",
            got=f"{len(differences)} of {RESAMPLES}",
            fix="add clients or seeds",
        )
    low, high = np.quantile(differences, [0.025, 0.975])
    gap = Interval(
        value=value, low=min(float(low), value), high=max(float(high), value), n=len(truth), level=0.95
    )
    of_runs = []
    for run in np.unique(runs):
        with suppress(Undefined):
            of_runs.append(gap_of(runs == run))
    if len(of_runs) >= FEW_RUNS:
        gap = widened(gap, mean_interval(np.array(of_runs), rng=rng.child("runs")))
    return gap if metric.higher_leaks else gap.negated()

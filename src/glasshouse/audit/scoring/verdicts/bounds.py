"""Upper bounds on any attack from the proven guarantees of a cell's defences, added to its findings.

A bound protects one unit. Claims about something else (labels of a batch, where single examples are
protected) have no bound, nor have metrics without a finite range.
"""

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from glasshouse.attacks.base import Reconstruction, Representations
from glasshouse.audit.scoring.claims.scored import ScoredMetric
from glasshouse.audit.scoring.verdicts.finding import value_of
from glasshouse.errors import Undefined
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.base import BoundedMetric, Metric
from glasshouse.results.records import Finding
from glasshouse.results.strength import UpperBound
from glasshouse.rng import Rng

if TYPE_CHECKING:
    from glasshouse.privacy.bound import Ceiling

MEMBERSHIP = "membership"
EXAMPLES = (Reconstruction.kind, Representations.kind)
"""Kinds of claims whose metrics are means over single private examples."""


def with_bound(
    finding: Finding,
    metric: Metric,
    scored: ScoredMetric,
    guarantee: Guarantee | None,
    *,
    marked: frozenset[str],
    rng: Rng,
) -> Finding:
    """The finding with its bound; unchanged if no guarantee covers its metric.

    Args:
        finding: about one attack in one cell.
        metric: of the finding.
        scored: its scores.
        guarantee: of the cell's defences over the whole federation.
        marked: properties of clients under audit.
        rng: for the null's interval.
    """
    if (
        guarantee is None
        or not metric.wording.private
        or not _covers(guarantee, metric, marked, clients=bool(scored.clients))
    ):
        return finding
    ceiling = _ceiling(guarantee.noise_multiplier, guarantee.steps, guarantee.rate, guarantee.neighbours)
    chance = finding.chance
    if scored.clients:
        if not isinstance(metric, BoundedMetric):
            return finding
        # "In" and "out" are both neighbours of a federation without the client: apply the bound twice.
        most = metric.most(lambda rate: ceiling.share(ceiling.share(rate).value).value)
    else:
        chance = _best_guess(metric, scored, chance, rng)
        low, high = metric.range
        if chance is None or not np.isfinite([low, high]).all():
            return finding
        most = ceiling.mean(chance, low=low, high=high, higher_leaks=metric.higher_leaks).value
    beyond = finding.low > most if metric.higher_leaks else finding.high < most
    bound = UpperBound(
        value=most,
        chance=chance,
        unit=guarantee.neighbours,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        steps=guarantee.steps,
        contradicted=bool(beyond),
    )
    return replace(finding, bound=bound, verdict="contradiction" if beyond else finding.verdict)


def _covers(guarantee: Guarantee, metric: Metric, clients_marked: frozenset[str], *, clients: bool) -> bool:
    if guarantee.neighbours == "update":
        return True
    return clients_marked == {MEMBERSHIP} if clients else metric.claim in EXAMPLES


def _best_guess(metric: Metric, scored: ScoredMetric, chance: float | None, rng: Rng) -> float | None:
    """The best score without the update: the better of chance and null, or the end of the null's interval."""
    nulls = ScoredMetric(values=scored.nulls, nulls=scored.nulls, victims=scored.victims)
    try:
        interval = value_of(nulls, metric, rng=rng)
    except Undefined:
        return chance
    if chance is not None:
        return max(chance, interval.value) if metric.higher_leaks else min(chance, interval.value)
    low, high = metric.range
    return float(np.clip(interval.high if metric.higher_leaks else interval.low, low, high))


@functools.cache
def _ceiling(noise_multiplier: float, steps: int, rate: float, unit: str) -> "Ceiling":
    # Imported here: a defence with a guarantee implies that the extra is installed.
    from glasshouse.privacy.bound import Release, attack_ceiling  # noqa: PLC0415

    release = Release(noise_multiplier=noise_multiplier, steps=steps, rate=rate)
    return attack_ceiling([release], unit="update" if unit == "update" else "example")

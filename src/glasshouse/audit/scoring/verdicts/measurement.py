"""Build a finding from the scores of one metric of one attack: interval, null, exchange, verdict and bound.

The bound holds for any attack, by the proven guarantees of the cell's defences. It protects one unit: claims
about something else (labels of a batch, where single examples are protected) have none, nor have metrics
without a finite range.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from glasshouse.attacks.base import Reconstruction, Representations
from glasshouse.audit.scoring.certificate import SEARCHED
from glasshouse.audit.scoring.claims.scored import ScoredMetric
from glasshouse.audit.scoring.score import Run
from glasshouse.audit.scoring.verdicts.exchange import exchange
from glasshouse.audit.scoring.verdicts.finding import (
    gain_of,
    middle,
    null_of,
    p_of,
    value_of,
    verdict_of,
    with_chance,
)
from glasshouse.audit.scoring.wording import chosen_words, given_words, place_of
from glasshouse.errors import Undefined
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.base import BoundedMetric, Metric
from glasshouse.results.records import Control, Finding, Victim
from glasshouse.results.strength import Search, UpperBound
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin

if TYPE_CHECKING:
    from glasshouse.privacy.bound import Ceiling

MEMBERSHIP = "membership"
EXAMPLES = (Reconstruction.kind, Representations.kind)
"""Kinds of claims whose metrics are means over single private examples."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """One metric of one attack, scored.

    Attributes:
        name: of the metric, as registered.
        metric: with its settings.
        scored: the scores.
        claim: kind of the claims scored.
        primary: the attack is judged by this metric.
        victims: verdicts on single victims.
        control: of the attack; None where it has none or it was not run.
    """

    name: str
    metric: Metric
    scored: ScoredMetric
    claim: str
    primary: bool
    victims: tuple[Victim, ...]
    control: Control | None


def finding_of(cell: Cell, attack: Plugin, measured: Measurement, runs: Sequence[Run]) -> Finding:
    """The finding, with the certificates of its searches and its upper bound.

    Raises:
        Undefined: too few victims, or the data do not determine the metric.
    """
    return with_bound(
        _unbounded_finding(cell, attack, measured, runs),
        measured.metric,
        measured.scored,
        _weakest(runs),
        marked=frozenset(name for run in runs for name in run.judge.truth.marked),
        rng=Rng.root(cell.scenario.seed, salt="bounds").child(f"{attack.name}/{measured.name}"),
    )


def _unbounded_finding(cell: Cell, attack: Plugin, measured: Measurement, runs: Sequence[Run]) -> Finding:
    scenario, metric, control = cell.scenario, measured.metric, measured.control
    chance = metric.chance(runs[0].judge.context)
    scored = with_chance(measured.scored, metric, chance)
    stream = Rng.root(scenario.seed, salt="intervals").child(f"{attack.name}/{measured.name}")
    value, gain = value_of(scored, metric, rng=stream), gain_of(scored, metric, rng=stream)
    null, other = null_of(scored, metric), exchange(scored, metric, rng=stream)
    over_exchange = other.gain if other else None
    searches = _searches(measured, runs)
    unfinished = sum(not s.finished for s in searches) if searches else None
    verdict = verdict_of(
        metric=metric, gain=gain, null=null, control=control, exchange=over_exchange, finished=not unfinished
    )
    return Finding(
        **place_of(cell),
        attack=attack.label or attack.name,
        protocol=scenario.federation.protocol,
        metric=measured.name,
        unit_of_value=metric.unit,
        higher_leaks=metric.higher_leaks,
        value=value.value,
        low=value.low,
        high=value.high,
        n=value.n,
        unit="clients" if scored.clients else "victims",
        baseline=scored.baseline,
        baseline_value=null,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        control=control,
        verdict=verdict,
        chosen=chosen_words(attack),
        given=given_words(scenario, attack),
        seconds=sum(outcome.seconds for run in runs for outcome in run.outcomes),
        about=_about(scored, runs),
        median=None if scored.clients or metric.counts else middle(scored),
        chance=None if scored.clients else chance,
        claim=measured.claim,
        primary=measured.primary,
        p=max(p_of(scored, metric, rng=stream), other.p if other else 0.0),
        exchange=other.record() if other else None,
        claimed=len(scored.claimed),
        runs=len(scored.runs),
        victims=measured.victims,
        searches=searches if measured.primary else (),
        unfinished=unfinished,
    )


def _weakest(runs: Sequence[Run]) -> Guarantee | None:
    """The guarantee that holds in every federation; None if one of them has none."""
    guarantees = [run.guarantee for run in runs if run.guarantee is not None]
    return max(guarantees, key=lambda g: g.epsilon) if len(guarantees) == len(runs) else None


def _searches(measurement: Measurement, runs: Sequence[Run]) -> tuple[Search, ...]:
    """Certificates of the claims that were scored, from all federations."""
    if measurement.claim not in SEARCHED:
        return ()
    several = len(runs) > 1
    return tuple(
        replace(s, name=f"run {position}, {s.name}") if several else s
        for position, run in enumerate(runs, start=1)
        for s in run.searches
    )


def _about(scored: ScoredMetric, runs: Sequence[Run]) -> str:
    rounds = sorted({r for run in runs for o in run.outcomes for c in o.claims for r in c.about.rounds})
    images = sum(len(v) for v in scored.values)
    what = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds"
    return f"{what}, {images} images" if images > len(scored.values) else what


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

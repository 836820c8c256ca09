"""Build a finding from the scores of one metric of one attack: interval, null, exchange, verdict and bound.

The bound holds for any attack, by the proven guarantees of the cell's defences. It protects one unit: claims
about something else (labels of a batch, where single examples are protected) have none, nor have metrics
without a finite range.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

import numpy as np

from glasshouse import registry
from glasshouse.attacks.base import Reconstruction, Representations
from glasshouse.audit.scoring.exchange import exchange, groups_of, mixed_up_p, within_labels
from glasshouse.audit.scoring.gains import (
    gain_of,
    gain_with_unseen,
    middle,
    null_of,
    p_of,
    rung_with_unseen,
    value_of,
    value_with_unseen,
    widened,
    with_chance,
)
from glasshouse.audit.scoring.judging.certificate import SEARCHED, certificate_of
from glasshouse.audit.scoring.judging.recognition import COUNTED, holds_copy, recognised_form
from glasshouse.audit.scoring.judging.verdict import (
    BEYOND_SMALL,
    NOT_PLANTED,
    UNBOUNDED,
    Decision,
    Evidence,
    decide,
)
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.audit.scoring.table import Crossing, Table
from glasshouse.audit.scoring.words import chosen_words, given_words, place_of
from glasshouse.audit.sealed import is_foreign
from glasshouse.errors import Undefined
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.metrics.statistics.ladder import best_guess
from glasshouse.metrics.statistics.permutation import FEW_RUNS
from glasshouse.metrics.statistics.share_out import equivalence
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.metrics.statistics.units import Numbers, means_of
from glasshouse.modalities.base import RUNGS
from glasshouse.results.judgement import ONE_SIDE
from glasshouse.results.records import Control, Draw, Finding, Knows, Power, Rung, Share, Victim
from glasshouse.results.strength import Search, UpperBound
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

if TYPE_CHECKING:
    from glasshouse.privacy.bound import Ceiling

MEMBERSHIP: Final = "membership"
EXAMPLES: Final = (Reconstruction.kind, Representations.kind)
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
        why_no_victims: why there are none, in words.
        control: of the attack; None where it has none or it was not run.
        power: planted leaks that the attack found in this cell; None: none were planted.
        alike: share of the victims with a near-duplicate among the others.
        alone: no attack of another kind makes such claims in this cell.
        singles: verdicts on single victims by the metric that judges them, if this one does not.
        tables: every claim against every victim, by run, where the metric compares examples.
        ranked: the same by the metric that ranks examples, where a yes-or-no metric cannot.
        crossings: the same of claims about something else, such as labels, where there are few.
    """

    name: str
    metric: Metric
    scored: ScoredMetric
    claim: str
    primary: bool
    victims: tuple[Victim, ...]
    control: Control | None
    why_no_victims: str = "the metric does not compare single examples"
    power: Power | None = None
    alike: float = 0.0
    alone: bool = False
    singles: tuple[Victim, ...] = ()
    tables: tuple[Table | None, ...] = ()
    ranked: tuple[Table | None, ...] = ()
    crossings: tuple[Crossing | None, ...] = ()


def finding_of(cell: Cell, attack: Plugin, measured: Measurement, runs: Sequence[Run]) -> Finding:
    """The finding: its parts, each there or with the reason why it is not, and the verdict on them.

    Raises:
        Undefined: too few victims, or the data do not determine the metric.
    """
    scenario, metric, control = cell.scenario, measured.metric, measured.control
    chance = metric.chance(runs[0].ground.context)
    scored = with_chance(measured.scored, metric, chance)
    stream = Rng.root(scenario.seed, salt="intervals").child(f"{attack.name}/{measured.name}")
    value, gain = value_of(scored, metric, rng=stream), gain_of(scored, metric, rng=stream)
    null, p = null_of(scored, metric), p_of(scored, metric, rng=stream)
    other = exchange(scored, metric, rng=stream, tables=measured.tables or measured.crossings)
    # What is printed must hold for victims like none of these; the verdict bounds the share of such victims.
    printed, gained = value_with_unseen(value, scored, metric), gain_with_unseen(gain, scored, metric)
    ladder = _ladder(scored, metric, _rung("domain", scored, null, gained, p), stream)
    bounds = Rng.root(scenario.seed, salt="bounds").child(f"{attack.name}/{measured.name}")
    by_label = within_labels(measured.tables or measured.ranked or measured.crossings, stream) is False
    guess = other is not None and (not other.gain.above_zero or by_label)
    bound = _bound(value, measured, runs, chance=chance, guess=guess, rng=bounds)
    bound = bound and replace(bound, word_of=_vouching(scenario))
    searches = _searches(measured, runs)
    share = share_of(measured.victims or measured.singles, scenario.audit.margin)
    evidence = Evidence(
        metric=metric, gain=gain, null=null, exchange=other.gain if other else None, ladder=ladder,
        control=control, contradicted=bound is not None and bound.contradicted,
        certificate=certificate_of(searches), share=share, why_no_share=measured.why_no_victims,
        power=measured.power, alike=measured.alike, groups=groups_of(measured.tables),
        claimed=bool(scored.claimed or scored.clients), mixed_up_p=mixed_up_p(measured.tables, stream),
        by_label=by_label,
    )  # fmt: skip
    decision = _decision(evidence, runs)
    finding = Finding(
        **place_of(cell),
        attack=attack.label or attack.name,
        protocol=scenario.federation.protocol,
        metric=measured.name,
        unit_of_value=metric.unit,
        higher_leaks=metric.higher_leaks,
        value=value.value,
        low=printed.low,
        high=printed.high,
        n=value.n,
        unit="clients" if scored.clients else "victims",
        baseline=scored.baseline,
        baseline_value=null,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gained.high,
        gain_high_seen=gain.high,
        control=control,
        verdict=decision.verdict,
        reason=decision.reason,
        remedy=decision.remedy,
        lacks=decision.lacks,
        chosen=chosen_words(attack),
        given=given_words(scenario, attack),
        seconds=sum(outcome.seconds for run in runs for outcome in run.outcomes),
        about=_about(scored, runs),
        median=None if scored.clients or metric.counts else middle(scored),
        chance=None if scored.clients else chance,
        claim=measured.claim,
        primary=measured.primary,
        p=max(p, other.p if other else 0.0),
        exchange=other.record(scored, metric) if other else None,
        claimed=len(scored.claimed),
        runs=len(scored.runs),
        victims=measured.victims,
        searches=searches if measured.primary else (),
        unfinished=sum(not s.finished for s in searches) if searches else None,
        bound=bound,
        ladder=ladder,
        share=share,
        power=measured.power,
        alone=measured.alone,
        draws=0 if scenario.federation.kind == "document" else len(_weights(scored, runs)),
        by_draw=tuple(_by_draw(scored, metric, runs)),
    )
    return _counted(replace(finding, missing=_absent(measured, finding, runs)), scored, metric)


def _decision(evidence: Evidence, runs: Sequence[Run]) -> Decision:
    """The verdict; where a silence or a limit would pass, last whether claims hold what no score sees.

    That is asked last, since it compares every claim with every example, in several forms.
    """
    decision, metric = decide(evidence), evidence.metric
    # Of labels nothing bounds who comes out, and yet a limit may hold; where they leak, the metric says it.
    labels = metric.against == COUNTED and decision.verdict != "leaks"
    lacks = {reason for reason in decision.lacks if not (labels and reason.startswith(UNBOUNDED))}
    if not lacks <= {BEYOND_SMALL, NOT_PLANTED}:
        return decision
    form = recognised_form(metric, runs, level=ONE_SIDE)
    copy = not labels and holds_copy(runs, level=ONE_SIDE)
    return decide(replace(evidence, other_form=form, holds_copy=copy)) if form or copy else decision


def _bound(
    value: Interval,
    measured: Measurement,
    runs: Sequence[Run],
    *,
    chance: float | None,
    guess: bool,
    rng: Rng,
) -> UpperBound | None:
    """The bound by the weakest guarantee of the runs; None where one has none.

    As good about victims whose update was not seen (``guess``): a good guess, which contradicts nothing.
    """
    if (guarantee := _weakest(runs)) is None:
        return None
    marked = frozenset(name for run in runs for name in run.ground.truth.marked)
    bound = bound_of(value, measured, guarantee, chance=chance, marked=marked, rng=rng)
    return replace(bound, contradicted=False) if bound is not None and guess else bound


def _vouching(scenario: Scenario) -> tuple[str, ...]:
    """Defences of other packages that state a guarantee, which nobody here has computed."""
    kinds = {defense.name: registry.load("defenses", defense.name) for defense in scenario.defenses}
    return tuple(name for name, kind in kinds.items() if is_foreign(kind) and hasattr(kind, "spent"))


def _counted(finding: Finding, scored: ScoredMetric, metric: Metric) -> Finding:
    """The finding with how many of its single scores are 1, for a metric that is 0 or 1 per example.

    Examples that are scored in several rounds are not that many examples, and are not counted.
    """
    values = [value for row in scored.values for value in row]
    if scored.clients or scored.repeated or not metric.counts or not set(values) <= {0.0, 1.0}:
        return finding
    return replace(finding, scored=len(values), hits=sum(value == 1.0 for value in values))


def _rung(knows: Knows, scored: ScoredMetric, value: float, gain: Interval, p: float) -> Rung:
    return Rung(
        knows=knows, name=scored.baseline, value=value, gain=gain.value, gain_low=gain.low,
        gain_high=gain.high, p=p, beaten=gain.above_zero,
    )  # fmt: skip


def _ladder(scored: ScoredMetric, metric: Metric, domain: Rung, rng: Rng) -> tuple[Rung, ...]:
    """The gains over the null adversaries of all rungs, from the lowest up; none is beaten above a lost one.

    A fixed sequence of tests needs no correction for their number (Maurer, Hothorn & Lehmacher 1995).
    """
    if not scored.rungs:
        return ()
    rungs: list[Rung] = []
    reached = True
    for knows in RUNGS:
        if knows == "domain":
            one = domain
        elif knows in scored.rungs:
            other = scored.against(knows)
            try:
                gain, p = gain_of(other, metric, rng=rng), p_of(other, metric, rng=rng)
                if knows == "twin" and not metric.counts:
                    wide = other.counted_twice()
                    gain = widened(gain, gain_of(wide, metric, rng=rng))
                    p = max(p, p_of(wide, metric, rng=rng))
            except Undefined:  # too few victims for a pair of rates
                continue
            gain = rung_with_unseen(gain, other, metric)
            one = _rung(knows, other, null_of(other, metric), gain, p)
        else:
            continue
        reached = reached and one.beaten
        rungs.append(replace(one, beaten=reached))
    return tuple(rungs)


def _weights(scored: ScoredMetric, runs: Sequence[Run]) -> set[str]:
    """Different first weights of the federations: a network from a file or in memory has the same in all."""
    return {run.ground.weights or run.ground.run for run in runs if run.ground.run in scored.runs}


def _by_draw(scored: ScoredMetric, metric: Metric, runs: Sequence[Run]) -> Iterator[Draw]:
    """The metric in each federation, where there are several and each determines it."""
    seeds = {run.ground.run: run.seed for run in runs}
    if len(scored.runs) < 2:
        return
    for name in (run.ground.run for run in runs if run.ground.run in scored.runs):
        of_clients = [one for one in scored.clients if one.run == name]
        own = [one[drawn == name] for one, drawn in zip(scored.values, scored.drawn, strict=True)]
        own = [one for one in own if len(one)]
        if of_clients:
            alone = replace(scored, clients=tuple(of_clients))
            with suppress(Undefined):
                value = value_of(alone, metric, rng=Rng.root(0))
                yield Draw(seed=seeds[name], value=value.value, n=value.n)
        elif own:
            mean = np.concatenate(own).mean() if metric.counts else means_of(own).mean()
            yield Draw(seed=seeds[name], value=float(mean), n=len(own))


def share_of(victims: Sequence[Victim], margin: float) -> Share | None:
    """How many single victims came out, and how many would; None: they could not be judged.

    Over ``FEW_RUNS`` federations or more the share is bounded twice, with independent victims and with
    federations as units, and the wider bound counts.
    """
    if not victims:
        return None
    # Who counts as come out is not corrected for how many victims there are: that would hide some of them.
    units = {v.unit or v.name for v in victims}
    out = {v.unit or v.name for v in victims if v.out}
    result = equivalence(len(out), len(units), margin=margin)
    most, independent = result.high, len(units)
    draws = {name: number for number, name in enumerate(dict.fromkeys(v.draw for v in victims))}
    if len(draws) >= FEW_RUNS:
        drawn = share_interval([v.out for v in victims], [draws[v.draw] for v in victims])
        if drawn.high > most:
            most, independent = drawn.high, min(independent, len(draws))
    return Share(
        out=sum(v.leaks for v in victims),
        n=len(victims),
        units=independent,
        most=most,
        margin=margin,
        needed=result.needed,
    )


def _absent(measured: Measurement, there: Finding, runs: Sequence[Run]) -> dict[str, str]:
    """Why a part of the finding is not there, by the part's name."""
    absent: dict[str, str] = {}
    if not there.ladder:
        absent["ladder"] = "the claim is not about examples, or there are no auxiliary data to guess from"
    else:
        known = {rung.knows for rung in there.ladder}
        if "label" not in known:
            absent["ladder.label"] = "nobody guesses by the label here"
        if "twin" not in known:
            absent["ladder.twin"] = "some victim is the only private example of its label"
    # One sentence for each part that a reader may look for.
    if there.exchange is None:
        absent["exchange"] = "the claim is the same for all victims, or there is one victim"
    if measured.control is None:
        absent["control"] = "the attack has none, or it was not run"
    if there.unfinished is None:
        absent["certificate"] = "the attack declares no loss, or its search could not be checked"
    if there.bound is None:
        proven = all(run.guarantee is not None for run in runs)
        absent["bound"] = "no guarantee covers this number" if proven else "no defence proves any"
    if not measured.victims:
        absent["victims"] = measured.why_no_victims
    if measured.power is None:
        absent["power"] = "no leaks were planted in this cell"
    return absent


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
    count = sum(len(v) for v in scored.values)
    what = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds"
    terms = runs[0].ground.terms
    nouns = "examples" if terms is None else terms.architecture.inputs.nouns
    return f"{what}, {count} {nouns}" if count > len(scored.values) else what


def bound_of(
    value: Interval,
    measured: Measurement,
    guarantee: Guarantee,
    *,
    chance: float | None,
    marked: frozenset[str],
    rng: Rng,
) -> UpperBound | None:
    """The upper bound for any attack; None if the guarantee does not cover the metric.

    A number beyond it is a contradiction only if it also lies beyond the bound that starts from the most that
    the best guess can score: all null adversaries of the ladder, and the same claims on other victims.

    Args:
        value: of the finding.
        measured: its metric and scores.
        guarantee: of the cell's defences over the whole federation.
        chance: score of random guessing, where known.
        marked: properties of clients under audit.
        rng: for the null's interval.
    """
    metric, scored = measured.metric, measured.scored
    private = metric.wording.private
    if not private or not _covers(guarantee, metric, marked, clients=bool(scored.clients)):
        return None
    ceiling = _ceiling(guarantee.noise_multiplier, guarantee.steps, guarantee.rate, guarantee.neighbours)
    if scored.clients:
        chance = None
        # "In" and "out" are both neighbours of a federation without the client: apply the bound twice.
        reached = metric.most(lambda rate: ceiling.share(ceiling.share(rate).value).value)
        if reached is None:
            return None
        most = limit = reached
    else:
        low, high = metric.range
        # A guess at what has no known chance may hit more rarely than once in these victims.
        is_share = metric.unit == "share" and metric.higher_leaks and (low, high) == (0.0, 1.0)
        rare = chance is None and is_share
        best = _best_guess(metric, scored, chance, rng, share=rare)
        if best is None:
            return None
        chance, top = (best[1], best[1]) if rare else best
        most, limit = (
            ceiling.mean(start, low=low, high=high, higher_leaks=metric.higher_leaks).value
            for start in (chance, top)
        )
    beyond = value.low > limit if metric.higher_leaks else value.high < limit
    return UpperBound(
        value=most,
        chance=chance,
        unit=guarantee.neighbours,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        steps=guarantee.steps,
        contradicted=bool(beyond),
    )


def _covers(guarantee: Guarantee, metric: Metric, clients_marked: frozenset[str], *, clients: bool) -> bool:
    if guarantee.neighbours == "update":
        return True
    return clients_marked == {MEMBERSHIP} if clients else metric.claim in EXAMPLES


def _best_guess(
    metric: Metric, scored: ScoredMetric, chance: float | None, rng: Rng, *, share: bool
) -> tuple[float, float] | None:
    """The best score without the update, and the most that the best guess can score; None: no range.

    All null adversaries of the ladder below the twins count, and the claims themselves on other victims.
    """
    low, high = metric.range
    if not np.isfinite([low, high]).all():
        return None
    rows: dict[str, dict[str, Numbers]] = {"domain": {scored.baseline or "null": means_of(scored.nulls)}}
    for knows, (name, nulls) in scored.rungs.items():
        if knows != "twin":  # private examples are no guess of an adversary without the data
            rows.setdefault(knows, {})[name] = means_of(nulls)
    levels = [one.mean() for one in scored.exchanged if one is not None]
    if len(levels) == len(scored.values):
        rows["exchange"] = {"the same claims on other victims": np.array(levels)}
    if chance is not None:
        rows["nothing"] = {**rows.get("nothing", {}), "chance": np.full(len(scored.values), chance)}
    try:
        kappa = best_guess(rows, low=low, high=high, rng=rng, higher_leaks=metric.higher_leaks, share=share)
    except Undefined:
        return None if chance is None else (chance, chance)
    return kappa.value, kappa.limit


@functools.cache
def _ceiling(noise_multiplier: float, steps: int, rate: float, unit: str) -> "Ceiling":
    # Imported here: a defence with a guarantee implies that the extra is installed.
    from glasshouse.privacy.bound import Release, attack_ceiling  # noqa: PLC0415

    release = Release(noise_multiplier=noise_multiplier, steps=steps, rate=rate)
    return attack_ceiling([release], unit="update" if unit == "update" else "example")

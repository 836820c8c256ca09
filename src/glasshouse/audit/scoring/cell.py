"""Turn one cell's claims into findings: read, pair with truth, score, test, decide."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final, final

from glasshouse.audit import guarded
from glasshouse.audit.attacking.needs import declared, federation_of
from glasshouse.audit.scoring.evidence import illustrate
from glasshouse.audit.scoring.finding import Measurement, finding_of
from glasshouse.audit.scoring.judging.apart import apart
from glasshouse.audit.scoring.judging.contrast import contrasts
from glasshouse.audit.scoring.judging.family import Judged, judges_of
from glasshouse.audit.scoring.judging.power import with_powers
from glasshouse.audit.scoring.judging.proofs import hold_proofs
from glasshouse.audit.scoring.judging.untouched import untouched
from glasshouse.audit.scoring.pair import claimed_kinds
from glasshouse.audit.scoring.read import Run, read_ground, read_runs
from glasshouse.audit.scoring.score import ScoredMetric, score_metric
from glasshouse.audit.scoring.table import crossings, share_alike, tables
from glasshouse.audit.scoring.tasks import CellResult, CellTask, Family, control_key, power_key
from glasshouse.audit.scoring.victims import can_judge_victims, ranked_by, victims_of
from glasshouse.audit.scoring.words import given_words, place_of
from glasshouse.audit.sealed import is_foreign
from glasshouse.audit.simulation.record import GroupRecord, read_record
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric
from glasshouse.process import processor_time
from glasshouse.registry import create, load
from glasshouse.results.records import TAMPERED, Control, Finding, Refused, Utility, Victim
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Refusal

GIVEN: Final = {"labels": ("labels", "counts")}
"""What a grant gives away, as the part of a claim that a metric reads."""


@final
@dataclass(frozen=True, kw_only=True)
class AttackScores:
    """The scores of one attack in one cell.

    Attributes:
        findings: one per metric of the scenario that scores its claims.
        refusals: of metrics whose value is undefined.
        numbers: the scores per victim in the findings, by metric.
        notes: on victims that could not be judged.
    """

    findings: tuple[Finding, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    numbers: dict[str, ScoredMetric] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def score_family(family: Family) -> list[tuple[str, CellResult]]:
    """Score the cell that shows the attacks' power, then the others beside it."""
    shown = score_cell(family.shown)
    return [shown, *map(score_cell, with_powers(family, shown[1].findings))]


def score_cell(task: CellTask) -> tuple[str, CellResult]:
    """Score all attacks of a cell over all its groups (seeds); return the cell's hash and result."""
    cell, scenario = task.cell, task.cell.scenario
    records = [read_record(Path(g.folder)) for g in task.groups]
    # Nothing of it changes once it is read, and every attack on a federation meets the same.
    ground_of = cache(partial(read_ground, scenario=scenario))
    runs = {i: list(read_runs(task, i, records, ground_of)) for i in range(len(scenario.attacks))}
    others = _kinds_beside(runs)
    held = [hold_proofs(cell, attack, runs[i]) for i, attack in enumerate(scenario.attacks)]
    scores = {
        i: score_attack(_with_terms(task, attack, records), attack, runs[i], alone=not others[i])
        for i, attack in enumerate(scenario.attacks)
    }
    # Beside the findings the numbers of single victims are kept: contrasts pair them across settings.
    numbers = {a.label or a.name: scores[i].numbers for i, a in enumerate(scenario.attacks)}
    findings = {i: one.findings for i, one in scores.items()}
    begun = processor_time()
    drawings = illustrate(task, records, runs, findings)
    drawing = processor_time() - begun
    unscored = {i: (*one.refusals, *held[i][1]) for i, one in scores.items()}
    refusals = list(_refusals(task, records, runs, unscored))
    refusals += [refusal_record(cell, refusal) for refusal in drawings.refusals]
    return cell.hash, CellResult(
        findings=tuple(f for one in scores.values() for f in one.findings),
        refusals=tuple(refusals),
        utility=tuple(_utility(cell, records)),
        drawings=drawings,
        contrasts=tuple(contrasts(cell, numbers)) if scenario.audit.contrast else (),
        facts=records[0].facts if records else None,
        notes=tuple(note for one in scores.values() for note in one.notes),
        proofs=tuple(proof for proofs, _ in held for proof in proofs),
        drawing=drawing,
    )


def score_attack(task: CellTask, attack: Plugin, runs: Sequence[Run], *, alone: bool = False) -> AttackScores:
    """Score one attack's claims with every metric of the scenario.

    Args:
        task: the cell.
        attack: with its settings.
        runs: its federations.
        alone: no attack of another kind makes such claims in this cell.
    """
    label = attack.label or attack.name
    refusals = list(_lacking(attack, runs))
    metrics, broken = _metrics(task.cell)
    refusals += broken
    kinds = claimed_kinds(outcome for run in runs for outcome in run.outcomes)
    judges = judges_of(metrics, kinds, alone=alone)
    # A federation in which nobody trained has no victims.
    runs = [run for run in runs if run.ground.truth.used]
    findings: dict[str, Finding] = {}
    numbers: dict[str, ScoredMetric] = {}
    notes: list[str] = []
    singles: dict[str, tuple[Victim, ...]] = {}
    for judge in judges:
        # The first metric of a claim names single victims; those after it take its word.
        by = replace(judge, singles=singles.get(judge.metric.claim, ()))

        foreign = is_foreign(judge.metric)
        # What a metric of another package changes in the examples of a victim is not kept for the next one.
        shown = [replace(run, ground=replace(run.ground)) for run in runs] if foreign else runs

        def work(
            judged: Judged = by, shown: Sequence[Run] = shown
        ) -> tuple[Finding, ScoredMetric, str] | None:
            with untouched(judged.name, judged.metric, shown):
                return _measure(task, attack, shown, judged=judged)

        about = f"of attack '{label}'"
        call = partial(guarded.call, "metric", judge.name, work, about=about)
        answer = apart(call, subject=f"metric '{judge.name}' {about}") if foreign else call()
        if isinstance(answer, Refusal):
            refusals.append(answer)
        elif answer is not None:
            finding, numbers[judge.name], note = answer
            findings[judge.name] = finding
            if finding.primary and finding.victims:
                singles[judge.metric.claim] = finding.victims
            notes += [f"{label}: {note}"] if note else []
    # Judges stand in an order of their own; the page keeps the scenario's.
    in_order = tuple(findings[name] for name in metrics if name in findings)
    return AttackScores(findings=in_order, refusals=tuple(refusals), numbers=numbers, notes=tuple(notes))


def _metrics(cell: Cell) -> tuple[dict[str, Metric], list[Refusal]]:
    """The metrics of the scenario by label, and refusals of those that cannot be made."""
    metrics: dict[str, Metric] = {}
    refusals = []
    for plugin in cell.scenario.audit.metrics:
        name = plugin.label or plugin.name

        def work(plugin: Plugin = plugin) -> Metric:
            metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
            return metric

        made = guarded.call("metric", name, work)
        if isinstance(made, Refusal):
            refusals.append(made)
        else:
            metrics[name] = made
    return metrics, refusals


def _measure(
    task: CellTask, attack: Plugin, runs: Sequence[Run], *, judged: Judged
) -> tuple[Finding, ScoredMetric, str] | None:
    """The finding by one metric, its scores, and a note on victims that could not be judged."""
    name, metric = judged.name, judged.metric
    _refuse_given(name, metric, given_words(task.cell.scenario, attack))
    scored = score_metric(name, metric, runs)
    if scored is None:
        return None
    single = judged.primary and can_judge_victims(metric)
    compares = can_judge_victims(metric) and not metric.counts
    alike = share_alike(runs) if single else 0.0
    # Every claim against every example: for the exchange, and to judge single victims by.
    compared = tuple(tables(metric, runs, singles=single)) if compares else ()
    ranked = (
        ()
        if compared or not can_judge_victims(metric)
        else tuple(tables(ranked_by(metric), runs, singles=single))
    )
    victims = victims_of(name, scored, runs, compared or ranked) if single else ()
    note = victims if isinstance(victims, str) else ""
    # Sentences are examples, too, but nothing ranks held-out ones beside them.
    none = "its claims are not compared with held-out examples" if scored.rungs else "no single examples"
    why = note or (none if judged.primary else "single victims are judged by another metric")
    scored = scored.by_people()
    measured = Measurement(
        **vars(judged),
        scored=scored,
        victims=() if isinstance(victims, str) else victims,
        why_no_victims=why,
        control=task.controls.get(control_key(attack)),
        power=task.powers.get(power_key(attack, judged.claim)),
        alike=alike,
        tables=compared,
        ranked=ranked,
        crossings=()
        if compared
        else tuple(crossings(metric, runs, of_examples=bool(scored.rungs) and not can_judge_victims(metric))),
    )
    return finding_of(task.cell, attack, measured, runs), scored, note


def _refuse_given(name: str, metric: Metric, given: Sequence[str]) -> None:
    """Refuse to score what the attack was given: it says nothing of what came out of the updates."""
    for grant in given:
        if metric.reads in GIVEN.get(grant, ()):
            raise Undefined(
                f"metric '{name}'",
                needs="claims about what the adversary was not given",
                got=f"grants.{grant}, which this attack uses",
                fix=f"leave the metric out, or set grants.{grant} = false",
            )


def _kinds_beside(runs: Mapping[int, Sequence[Run]]) -> dict[int, bool]:
    """Whether another attack makes claims of the same kind, for every attack by position."""
    kinds = {}
    for i, own in runs.items():
        kinds[i] = set(claimed_kinds(outcome for run in own for outcome in run.outcomes))
    claimed = Counter(kind for own in kinds.values() for kind in own)
    return {i: any(claimed[kind] > 1 for kind in own) for i, own in kinds.items()}


def _lacking(attack: Plugin, runs: Sequence[Run]) -> Iterator[Refusal]:
    """Refusals if the attack made no claim on any unit and gave no reason, or claims without ground truth."""
    subject = f"attack '{attack.label or attack.name}'"
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    if outcomes and not any(o.claims or o.refusal for o in outcomes):
        yield Refusal(
            subject=subject,
            needs="a claim about at least one victim",
            got=f"nothing in {len(outcomes)} calls",
            fix="correct the attack; one that finds nothing says so by a claim without inputs",
        )
    if claims := sum(len(o.claims) for run in runs if not run.ground.truth.used for o in run.outcomes):
        yield Refusal(
            subject=f"score of {subject}",
            needs="what the clients trained on",
            got=f"{claims} claims, not scored: no test client recorded its batches",
            fix="run a test client with truth_mod, then: glasshouse collect CAPTURE FOLDER",
        )


def _with_terms(task: CellTask, attack: Plugin, records: Sequence[GroupRecord]) -> CellTask:
    """The task; if terms of an attacked round are wrong, with a failed control of what repeats training."""
    audit, rounds = task.cell.scenario.audit.rounds, task.cell.scenario.federation.rounds
    last = max(number % rounds for number in audit)
    checks = [r.terms for r in records if r.terms is not None and r.terms.suspect and r.terms.since <= last]
    if not checks or not declared(attack)[0].repeats:
        return task
    key, check = control_key(attack), checks[0]
    control = task.controls.get(key) or Control(passed=False, setting="", n=check.n)
    remedy = check.advice or "terms that reproduce what test clients sent: glasshouse terms CAPTURE"
    reason = f"the declared training is not the real one ({check.suspect}); next, {remedy}"
    failed = replace(control, passed=False, reason=reason, remedy=remedy)
    return replace(task, controls={**task.controls, key: failed})


def _refusals(
    task: CellTask,
    records: Sequence[GroupRecord],
    runs: dict[int, list[Run]],
    unscored: Mapping[int, Sequence[Refusal]],
) -> Iterator[Refused]:
    """Refusals of federations and units, each once per attack; then ``unscored``, those of metrics."""
    for position in range(len(task.cell.scenario.attacks)):
        own = federation_of(task.cell.scenario, position)
        groups = zip(task.groups, records, strict=True)
        reasons = [record.refusal for group, record in groups if group.active == own]
        reasons += [outcome.refusal for run in runs[position] for outcome in run.outcomes]
        for refusal in dict.fromkeys(one for one in reasons if one is not None):
            yield refusal_record(task.cell, refusal)
        for refusal in unscored[position]:
            yield refusal_record(task.cell, refusal)


def refusal_record(cell: Cell, refusal: Refusal) -> Refused:
    """The record of a refusal in one cell, for the result."""
    return Refused(**place_of(cell), **vars(refusal))


def _utility(cell: Cell, records: Sequence[GroupRecord]) -> Iterator[Utility]:
    for record in records:
        if record.utility is None:
            continue
        tampered = "" if record.active is None else f"{TAMPERED}{cell.scenario.attacks[record.active].name}"
        guarantee = record.facts.guarantee
        yield Utility(
            **place_of(cell),
            metric=record.measured + tampered,
            rounds=record.rounds,
            epsilon=guarantee.epsilon if guarantee else None,
            delta=guarantee.delta if guarantee else None,
            **record.utility,
        )

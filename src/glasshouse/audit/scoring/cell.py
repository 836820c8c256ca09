"""Turn one cell's claims into findings: cell → attack → metric (and from there, ``score``)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from glasshouse.attacks.base import Claim
from glasshouse.audit.attacking.claims import Unit, read_outcome
from glasshouse.audit.attacking.needs import declared, federation_of, refusal_of
from glasshouse.audit.scoring.claims.scored import ScoredMetric
from glasshouse.audit.scoring.claims.scorers import scorer_of
from glasshouse.audit.scoring.claims.silence import claimed_kinds
from glasshouse.audit.scoring.evidence import illustrate
from glasshouse.audit.scoring.federation_judge import judge_of
from glasshouse.audit.scoring.judge import Judge
from glasshouse.audit.scoring.score import Run, score_metric
from glasshouse.audit.scoring.tasks import CellResult, CellTask, attack_key, control_key
from glasshouse.audit.scoring.verdicts.contrast import contrasts
from glasshouse.audit.scoring.verdicts.family import primary_metrics
from glasshouse.audit.scoring.verdicts.measurement import Measurement, finding_of
from glasshouse.audit.scoring.verdicts.victims import can_judge_victims, victims_of
from glasshouse.audit.scoring.wording import place_of
from glasshouse.audit.simulation.record import GroupRecord, read_record
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric
from glasshouse.registry import create, load
from glasshouse.results.records import Control, Finding, Refused, Utility
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Refusal


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


def score_cell(task: CellTask) -> tuple[str, CellResult]:
    """Score all attacks of a cell over all its groups (seeds); return the cell's hash and result."""
    cell, scenario = task.cell, task.cell.scenario
    records = [read_record(Path(g.folder)) for g in task.groups]
    judges: dict[str, Judge] = {}
    runs = {i: list(_runs(task, i, records, judges)) for i in range(len(scenario.attacks))}
    scores = {
        i: score_attack(_with_terms(task, attack, records), attack, runs[i])
        for i, attack in enumerate(scenario.attacks)
    }
    numbers = {a.label or a.name: scores[i].numbers for i, a in enumerate(scenario.attacks)}
    drawings = illustrate(task, records, runs, {i: one.findings for i, one in scores.items()})
    return cell.hash, CellResult(
        findings=tuple(f for one in scores.values() for f in one.findings),
        refusals=tuple(_refusals(task, records, runs, scores)),
        utility=tuple(_utility(cell, records)),
        drawings=drawings,
        contrasts=tuple(contrasts(cell, numbers)) if scenario.audit.contrast else (),
        facts=records[0].facts if records else None,
        notes=tuple(note for one in scores.values() for note in one.notes),
    )


def score_attack(task: CellTask, attack: Plugin, runs: Sequence[Run]) -> AttackScores:
    """Score one attack's claims with every metric of the scenario."""
    plugins = task.cell.scenario.audit.metrics
    metrics: dict[str, Metric] = {p.name: create(load("metrics", p.name), p.arguments) for p in plugins}
    kinds = claimed_kinds(outcome for run in runs for outcome in run.outcomes)
    primary = primary_metrics(metrics, kinds)
    findings, numbers, notes = [], {}, []
    refusals = list(_lacking(attack, runs))
    runs = [run for run in runs if run.judge.truth.used]
    for name, metric in metrics.items():
        try:
            scored = score_metric(name, metric, runs)
            if scored is None:
                continue
            single = name in primary.values() and can_judge_victims(metric)
            victims = victims_of(name, metric, scored, runs) if single else ()
            scored = scored.by_people()
            if isinstance(victims, str):
                notes.append(f"{attack.label or attack.name}: {victims}")
                victims = ()
            measured = Measurement(
                name=name,
                metric=metric,
                scored=scored,
                claim=_kind(metric, kinds),
                primary=name in primary.values(),
                victims=victims,
                control=task.controls.get(control_key(attack)),
            )
            findings.append(finding_of(task.cell, attack, measured, runs))
            numbers[name] = scored
        except Undefined as error:
            subject = f"metric '{name}' of attack '{attack.label or attack.name}'"
            refusals.append(replace(refusal_of(error), subject=subject))
    return AttackScores(
        findings=tuple(findings), refusals=tuple(refusals), numbers=numbers, notes=tuple(notes)
    )


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
    if claims := sum(len(o.claims) for run in runs if not run.judge.truth.used for o in run.outcomes):
        yield Refusal(
            subject=f"score of {subject}",
            needs="what the clients trained on",
            got=f"{claims} claims, not scored: no test client recorded its batches",
            fix="run a test client with truth_mod, then: glasshouse collect CAPTURE FOLDER",
        )


def _with_terms(task: CellTask, attack: Plugin, records: Sequence[GroupRecord]) -> CellTask:
    """The task; if the declared terms are wrong, with a failed control for attacks that repeat training."""
    checks = [r.terms for r in records if r.terms is not None and r.terms.suspect]
    if not checks or not declared(attack)[0].repeats:
        return task
    key, check = control_key(attack), checks[0]
    control = task.controls.get(key) or Control(passed=False, setting="", n=check.n)
    reason = f"the declared training is not the real one ({check.suspect})"
    failed = replace(control, passed=False, reason=reason)
    return replace(task, controls={**task.controls, key: failed})


def _kind(metric: Metric, kinds: Sequence[type[Claim]]) -> str:
    """The kind of claim that the metric scored: the one that it names, or the first that it can score."""
    scored = [kind.kind for kind in kinds if scorer_of(kind, metric)]
    return metric.claim if metric.claim in scored else scored[0]


def _runs(
    task: CellTask, position: int, records: Sequence[GroupRecord], judges: dict[str, Judge]
) -> Iterator[Run]:
    """The federations in which the attack ran, each with its claims and its judge."""
    attack = task.cell.scenario.attacks[position]
    for group, record in zip(task.groups, records, strict=True):
        if group.active != federation_of(task.cell.scenario, position) or record.refusal is not None:
            continue
        if group.folder not in judges:
            judges[group.folder] = judge_of(Path(group.folder), task.cell.scenario)
        folder = Path(group.folder) / "claims" / attack_key(position, attack)
        paths = sorted(folder.glob("*/claims.json"), key=_unit_order)
        units = [(Unit.named(path.parent.name), read_outcome(path.parent)) for path in paths]
        judge = judges[group.folder].of(outcome for _, outcome in units)
        searches = tuple(s for path in paths for s in task.searches.get(str(path.parent), ()))
        guarantee = record.facts.guarantee
        yield Run(folder=group.folder, units=units, judge=judge, searches=searches, guarantee=guarantee)


def _unit_order(path: Path) -> tuple[int, ...]:
    return tuple(int("".join(ch for ch in part if ch.isdigit()) or 0) for part in path.parent.name.split("-"))


def _refusals(
    task: CellTask,
    records: Sequence[GroupRecord],
    runs: dict[int, list[Run]],
    scores: dict[int, AttackScores],
) -> Iterator[Refused]:
    """Refusals of federations and units, each once per attack; then of metrics."""
    for position in range(len(task.cell.scenario.attacks)):
        own = federation_of(task.cell.scenario, position)
        groups = zip(task.groups, records, strict=True)
        reasons = [record.refusal for group, record in groups if group.active == own]
        reasons += [outcome.refusal for run in runs[position] for outcome in run.outcomes]
        for refusal in dict.fromkeys(one for one in reasons if one is not None):
            yield refusal_record(task.cell, refusal)
        for refusal in scores[position].refusals:
            yield refusal_record(task.cell, refusal)


def refusal_record(cell: Cell, refusal: Refusal) -> Refused:
    """The record of a refusal in one cell, for the result."""
    return Refused(**place_of(cell), **vars(refusal))


def _utility(cell: Cell, records: Sequence[GroupRecord]) -> Iterator[Utility]:
    for record in records:
        if record.utility is None:
            continue
        tampered = "" if record.active is None else f", under {cell.scenario.attacks[record.active].name}"
        guarantee = record.facts.guarantee
        yield Utility(
            **place_of(cell),
            metric="accuracy" + tampered,
            rounds=record.rounds,
            epsilon=guarantee.epsilon if guarantee else None,
            delta=guarantee.delta if guarantee else None,
            **record.utility,
        )

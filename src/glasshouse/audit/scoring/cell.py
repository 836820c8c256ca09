"""Turn one cell's claims into findings: read, pair with truth, score, test, decide."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch

from glasshouse.attacks.base import Claim
from glasshouse.audit import guarded
from glasshouse.audit.attacking.needs import declared, federation_of
from glasshouse.audit.scoring.claims import claimed_kinds
from glasshouse.audit.scoring.evidence import illustrate
from glasshouse.audit.scoring.finding import Measurement, finding_of
from glasshouse.audit.scoring.judging.contrast import contrasts
from glasshouse.audit.scoring.judging.family import primary_metrics
from glasshouse.audit.scoring.judging.proofs import hold_proofs
from glasshouse.audit.scoring.pair import can_score
from glasshouse.audit.scoring.read import Run, read_runs
from glasshouse.audit.scoring.score import ScoredMetric, score_metric
from glasshouse.audit.scoring.table import MOST_VICTIMS, tables
from glasshouse.audit.scoring.tasks import CellResult, CellTask, control_key, power_key
from glasshouse.audit.scoring.victims import can_judge_victims, victims_of
from glasshouse.audit.scoring.words import place_of
from glasshouse.audit.simulation.record import GroupRecord, read_record
from glasshouse.metrics.base import Metric
from glasshouse.registry import create, load
from glasshouse.results.records import TAMPERED, Control, Finding, Refused, Utility, Victim
from glasshouse.results.strength import Proofs
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
        proofs: what it proved, held against the truth.
    """

    findings: tuple[Finding, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    numbers: dict[str, ScoredMetric] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    proofs: tuple[Proofs, ...] = ()


def score_cell(task: CellTask) -> tuple[str, CellResult]:
    """Score all attacks of a cell over all its groups (seeds); return the cell's hash and result."""
    cell, scenario = task.cell, task.cell.scenario
    records = [read_record(Path(g.folder)) for g in task.groups]
    runs = {i: list(read_runs(task, i, records)) for i in range(len(scenario.attacks))}
    others = _kinds_beside(runs)
    scores = {
        i: score_attack(_with_terms(task, attack, records), attack, runs[i], alone=not others[i])
        for i, attack in enumerate(scenario.attacks)
    }
    numbers = {a.label or a.name: scores[i].numbers for i, a in enumerate(scenario.attacks)}
    findings = {i: one.findings for i, one in scores.items()}
    drawings = illustrate(task, records, runs, findings)
    refusals = list(_refusals(task, records, runs, scores))
    refusals += [refusal_record(cell, refusal) for refusal in drawings.refusals]
    return cell.hash, CellResult(
        findings=tuple(f for one in scores.values() for f in one.findings),
        refusals=tuple(refusals),
        utility=tuple(_utility(cell, records)),
        drawings=drawings,
        contrasts=tuple(contrasts(cell, numbers)) if scenario.audit.contrast else (),
        facts=records[0].facts if records else None,
        notes=tuple(note for one in scores.values() for note in one.notes),
        proofs=tuple(proof for one in scores.values() for proof in one.proofs),
    )


def score_attack(task: CellTask, attack: Plugin, runs: Sequence[Run], *, alone: bool = False) -> AttackScores:
    """Score one attack's claims with every metric of the scenario."""
    label = attack.label or attack.name
    refusals = list(_lacking(attack, runs))
    metrics, broken = _metrics(task.cell)
    refusals += broken
    kinds = claimed_kinds(outcome for run in runs for outcome in run.outcomes)
    primary = primary_metrics(metrics, kinds)
    findings: list[Finding] = []
    numbers: dict[str, ScoredMetric] = {}
    notes: list[str] = []
    runs = [run for run in runs if run.ground.truth.used]
    singles: dict[str, tuple[Victim, ...]] = {}
    # The metric that judges single examples comes first: what it says of them holds for all others.
    for name in sorted(metrics, key=lambda name: name not in primary.values()):
        metric = metrics[name]
        if not any(can_score(kind, metric) for kind in kinds):
            continue

        def work(name: str = name, metric: Metric = metric) -> tuple[Finding, ScoredMetric, str] | None:
            return _measure(task, attack, runs, judged=Judged(
                name=name, metric=metric, claim=_kind(metric, kinds), primary=name in primary.values(),
                alone=alone, singles=singles.get(metric.claim, ())))  # fmt: skip

        answer = guarded.call("metric", name, work, about=f"of attack '{label}'")
        if isinstance(answer, Refusal):
            refusals.append(answer)
        elif answer is not None:
            finding, numbers[name], note = answer
            findings.append(finding)
            if finding.primary and finding.victims:
                singles[metric.claim] = finding.victims
            notes += [f"{label}: {note}"] if note else []
    order = list(metrics)
    findings.sort(key=lambda finding: order.index(finding.metric))
    proofs, unheld = hold_proofs(task.cell, attack, runs)
    return AttackScores(
        findings=tuple(findings), refusals=(*refusals, *unheld), numbers=numbers, notes=tuple(notes),
        proofs=tuple(proofs),
    )  # fmt: skip


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


@final
@dataclass(frozen=True, kw_only=True)
class Judged:
    """A metric by which an attack is judged: its label, the kind of claims, and whether it decides.

    ``alone``: no attack of another kind makes such claims; ``singles``: verdicts on single victims, by the
    metric that judges them.
    """

    name: str
    metric: Metric
    claim: str
    primary: bool
    alone: bool
    singles: tuple[Victim, ...] = ()


def _measure(
    task: CellTask, attack: Plugin, runs: Sequence[Run], *, judged: Judged
) -> tuple[Finding, ScoredMetric, str] | None:
    """The finding by one metric, its scores, and a note on victims that could not be judged."""
    name, metric = judged.name, judged.metric
    scored = score_metric(name, metric, runs)
    if scored is None:
        return None
    single = judged.primary and can_judge_victims(metric)
    compares = can_judge_victims(metric) and not metric.counts
    compared = tuple(tables(metric, runs, singles=single)) if compares else ()
    victims = victims_of(name, metric, scored, runs, compared=compared) if single else ()
    note = victims if isinstance(victims, str) else ""
    why = note or ("no single examples" if judged.primary else "single victims are judged by another metric")
    scored = scored.by_people()
    measured = Measurement(
        **vars(judged),
        scored=scored,
        victims=() if isinstance(victims, str) else victims,
        why_no_victims=why,
        control=task.controls.get(control_key(attack)),
        power=task.powers.get(power_key(attack, judged.claim)),
        alike=share_alike(runs) if single else 0.0,
        tables=compared,
    )
    return finding_of(task.cell, attack, measured, runs), scored, note


def share_alike(runs: Sequence[Run]) -> float:
    """The share of the victims' examples that have a near-duplicate among the other victims of their run."""
    alike = []
    for run in runs:
        near = run.book.modality.near
        keys = sorted(run.ground.truth.used)
        batches = [run.ground.target(*key).batch.inputs for key in keys[:MOST_VICTIMS]]
        if len(batches) < 2:
            continue
        owners = torch.repeat_interleave(torch.arange(len(batches)), torch.tensor([len(b) for b in batches]))
        distances = run.book.modality.distance(torch.cat(batches), torch.cat(batches))
        distances[owners[:, None] == owners[None]] = torch.inf
        alike.append((distances.min(1).values <= near).double().mean())
    return float(torch.stack(alike).mean()) if alike else 0.0


def _kinds_beside(runs: Mapping[int, Sequence[Run]]) -> dict[int, bool]:
    """Whether another attack makes claims of the same kind, for every attack by position."""
    kinds = {i: set(claimed_kinds(o for run in own for o in run.outcomes)) for i, own in runs.items()}
    return {i: any(kinds[i] & kinds[j] for j in kinds if j != i) for i in kinds}


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
    """The task; if the declared terms are wrong, with a failed control for attacks that repeat training."""
    checks = [r.terms for r in records if r.terms is not None and r.terms.suspect]
    if not checks or not declared(attack)[0].repeats:
        return task
    key, check = control_key(attack), checks[0]
    control = task.controls.get(key) or Control(passed=False, setting="", n=check.n)
    remedy = check.advice or "terms that reproduce what test clients sent: glasshouse terms CAPTURE"
    reason = f"the declared training is not the real one ({check.suspect}); next, {remedy}"
    failed = replace(control, passed=False, reason=reason, remedy=remedy)
    return replace(task, controls={**task.controls, key: failed})


def _kind(metric: Metric, kinds: Sequence[type[Claim]]) -> str:
    """The kind of claim that the metric scored: the one that it names, or the first that it can score."""
    scored = [kind.kind for kind in kinds if can_score(kind, metric)]
    return metric.claim if metric.claim in scored else scored[0]


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

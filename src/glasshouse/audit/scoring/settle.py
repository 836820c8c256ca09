"""One cell's claims turned into findings, refusals, utility and exhibits."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from glasshouse.audit.attacking.claims import Outcome, read_outcome
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.scoring.contrast import contrasts
from glasshouse.audit.scoring.evidence import attack_evidence, cell_evidence, federation_of
from glasshouse.audit.scoring.finding import gain_of, middle, null_of, value_of, verdict_of, within
from glasshouse.audit.scoring.judge import judge_of
from glasshouse.audit.scoring.score import Judge, Scored, score_outcomes
from glasshouse.audit.scoring.wording import chosen_words, defense_labels, given_words
from glasshouse.audit.simulation.group import Group
from glasshouse.audit.simulation.record import Facts, GroupRecord, read_record
from glasshouse.errors import Undefined
from glasshouse.figures.base import AttackEvidence
from glasshouse.figures.drawing import Drawings, draw_cell
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.registry import load
from glasshouse.results.records import Contrast, Control, Finding, Refused, Utility
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Refusal


@final
@dataclass(frozen=True, kw_only=True)
class CellTask:
    """One cell to settle, as plain data. ``controls``: by attack and its settings as JSON."""

    cell: Cell
    groups: tuple[Group, ...]
    run: str
    controls: Mapping[str, Control | None]


@final
@dataclass(frozen=True, kw_only=True)
class Settled:
    """What came out of one cell. ``drawings``: what the figures made of it."""

    findings: tuple[Finding, ...] = ()
    refusals: tuple[Refused, ...] = ()
    utility: tuple[Utility, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    drawings: Drawings = field(default_factory=Drawings)
    facts: Facts | None
    seconds: float


def attack_key(position: int, attack: Plugin) -> str:
    """Names an attack's folder below ``claims/``."""
    return f"{position:02d}-{attack.name}"


def control_key(attack: Plugin) -> str:
    """Names an attack with its settings."""
    return f"{attack.name} {json.dumps(attack.arguments, sort_keys=True)}"


def settle(task: CellTask) -> tuple[str, Settled]:
    """Score all attacks of a cell over all its groups (seeds); returns the cell's hash with it."""
    started = time.process_time()
    cell, scenario = task.cell, task.cell.scenario
    records = [read_record(Path(g.folder)) for g in task.groups]
    judges: dict[str, Judge] = {}
    findings: list[Finding] = []
    refusals: list[Refused] = []
    attacks: list[AttackEvidence] = []
    federations = {
        g.folder: federation_of(scenario, Path(g.folder), record)
        for g, record in zip(task.groups, records, strict=True)
    }
    attack_seconds = 0.0
    numbers: dict[str, dict[str, Scored]] = {}
    for position, attack in enumerate(scenario.attacks):
        needs_own = bool(attack_of(attack.name, attack.arguments).needs.changes)
        mine = [
            (g, f)
            for g, f in zip(task.groups, records, strict=True)
            if (g.active == position if needs_own else g.active is None)
        ]
        ready = [g for g, f in mine if f.refusal is None]
        outcomes = {g.folder: _outcomes(g, position, attack) for g in ready}
        said = [f.refusal for _, f in mine if f.refusal]
        said += [o.refusal for every in outcomes.values() for o in every if o.refusal]
        refusals += [_refused(cell, r) for r in dict.fromkeys(said)]
        attack_seconds += sum(o.seconds for every in outcomes.values() for o in every)
        for g in ready:
            judges.setdefault(g.folder, judge_of(Path(g.folder), scenario))
        mine_judged = {folder: judges[folder].of(every) for folder, every in outcomes.items()}
        made, failed, numbers[attack.label or attack.name] = _findings(task, attack, outcomes, mine_judged)
        findings += made
        refusals += [_refused(cell, r) for r in failed]
        attacks.append(
            attack_evidence(
                scenario,
                position,
                outcomes=outcomes,
                judges=mine_judged,
                federations=federations,
                findings=made,
            )
        )
    drawings = draw_cell(cell_evidence(cell, task.run, attacks, list(federations.values())))
    seconds = sum(f.seconds for f in records) + attack_seconds + time.process_time() - started
    return cell.hash, Settled(
        findings=tuple(findings),
        refusals=tuple(refusals),
        utility=tuple(_utility(cell, records)),
        contrasts=tuple(contrasts(cell, numbers)) if scenario.audit.contrast else (),
        drawings=drawings,
        facts=records[0].facts if records else None,
        seconds=seconds,
    )


def _outcomes(group: Group, position: int, attack: Plugin) -> list[Outcome]:
    folder = Path(group.folder) / "claims" / attack_key(position, attack)
    return [read_outcome(p.parent) for p in sorted(folder.glob("*/claims.json"), key=_unit_order)]


def _unit_order(path: Path) -> tuple[int, ...]:
    return tuple(int("".join(ch for ch in part if ch.isdigit()) or 0) for part in path.parent.name.split("-"))


def _findings(
    task: CellTask, attack: Plugin, outcomes: Mapping[str, Sequence[Outcome]], judges: Mapping[str, Judge]
) -> tuple[list[Finding], list[Refusal], dict[str, Scored]]:
    findings, failed, numbers = [], [], {}
    for plugin in task.cell.scenario.audit.metrics:
        metric: Metric = load("metrics", plugin.name)(**plugin.arguments)
        try:
            parts = [score_outcomes(plugin.name, metric, every, judges[f]) for f, every in outcomes.items()]
            present = [p for p in parts if p is not None]
            if present:
                scored = numbers[plugin.name] = sum(present[1:], start=present[0])
                findings.append(
                    _finding(
                        task,
                        attack,
                        metric,
                        scored,
                        metric_name=plugin.name,
                        every=[o for outs in outcomes.values() for o in outs],
                        context=next(iter(judges.values())).context,
                    )
                )
        except Undefined as error:
            subject = f"metric '{plugin.name}' of attack '{attack.label or attack.name}'"
            failed.append(Refusal(subject=subject, needs=error.needs, got=error.got, fix=error.fix))
    return findings, failed, numbers


def _finding(
    task: CellTask,
    attack: Plugin,
    metric: Metric,
    scored: Scored,
    *,
    metric_name: str,
    every: Sequence[Outcome],
    context: ScoreContext,
) -> Finding:
    scenario = task.cell.scenario
    stream = Rng.root(scenario.seed, salt="intervals").child(f"{attack.name}/{metric_name}")
    value = within(value_of(scored, metric, rng=stream), metric_name)
    gain = gain_of(scored, metric, rng=stream)
    control = task.controls.get(control_key(attack))
    return Finding(
        scenario=scenario.name,
        cell=task.cell.hash,
        axes=dict(task.cell.axes),
        attack=attack.label or attack.name,
        protocol=scenario.federation.protocol,
        defenses=defense_labels(scenario),
        metric=metric_name,
        unit_of_value=metric.unit,
        higher_leaks=metric.higher_leaks,
        value=value.value,
        low=value.low,
        high=value.high,
        n=value.n,
        unit="clients" if scored.clients else "victims",
        baseline=scored.baseline,
        baseline_value=null_of(scored, metric),
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        control=control,
        verdict=verdict_of(gain, metric.unit, control),
        chosen=chosen_words(attack),
        given=given_words(scenario, attack),
        seconds=sum(o.seconds for o in every),
        about=_about(scored, every),
        median=None if scored.clients or metric.counts else middle(scored),
        chance=None if scored.clients else metric.chance(context),
    )


def _about(scored: Scored, outcomes: Sequence[Outcome]) -> str:
    rounds = sorted({r for o in outcomes for c in o.claims for r in c.about.rounds})
    images = sum(len(v) for v in scored.values)
    what = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds"
    return f"{what}, {images} images" if images > len(scored.values) else what


def _refused(cell: Cell, refusal: Refusal) -> Refused:
    return Refused(
        scenario=cell.scenario.name,
        cell=cell.hash,
        axes=dict(cell.axes),
        defenses=defense_labels(cell.scenario),
        subject=refusal.subject,
        needs=refusal.needs,
        got=refusal.got,
        fix=refusal.fix,
    )


def _utility(cell: Cell, records: Sequence[GroupRecord]) -> Iterator[Utility]:
    for record in records:
        if record.utility is None:
            continue
        active = record.active
        tampered = f", under {cell.scenario.attacks[active].name}" if active is not None else ""
        guarantee = record.facts.guarantee or (None, None)
        yield Utility(
            scenario=cell.scenario.name,
            cell=cell.hash,
            axes=dict(cell.axes),
            defenses=defense_labels(cell.scenario),
            metric="accuracy" + tampered,
            rounds=record.rounds,
            epsilon=guarantee[0],
            delta=guarantee[1],
            value=record.utility["value"],
            low=record.utility["low"],
            high=record.utility["high"],
            n=int(record.utility["n"]),
        )

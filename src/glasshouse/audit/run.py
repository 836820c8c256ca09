"""A whole audit: cells, federations, attacks, controls, scores, findings; in pieces that are kept."""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

from glasshouse.audit.attacking.call import AttackTask, run_attack, units_of
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.attacking.needs import attack_of, federation_of
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.captured.group import record
from glasshouse.audit.code import lives_in_memory, record_code
from glasshouse.audit.hashes import part_hashes, verify_hashes
from glasshouse.audit.log import RunLog
from glasshouse.audit.manifest import manifest
from glasshouse.audit.preflight.inspect import check_suite
from glasshouse.audit.scoring.cell import score_cell
from glasshouse.audit.scoring.controls.control import ControlTask, judge_control, run_control
from glasshouse.audit.scoring.tasks import CellResult, CellTask, attack_key, control_key
from glasshouse.audit.scoring.verdicts.family import with_family
from glasshouse.audit.scoring.verdicts.policy import policy_limits
from glasshouse.audit.scoring.wording.cards import attack_cards, metric_cards
from glasshouse.audit.scoring.wording.threat_card import threat_card
from glasshouse.audit.simulation.group import Group
from glasshouse.audit.simulation.record import read_record
from glasshouse.data.fetch import ensure
from glasshouse.disk import write_text
from glasshouse.errors import BadFile, BadValue
from glasshouse.figures.drawing import draw_run
from glasshouse.process import Workers
from glasshouse.progress import track
from glasshouse.results.cards import MetricCard
from glasshouse.results.files import write_result
from glasshouse.results.records import Exhibit, Result
from glasshouse.scenario.axes import Cell, cells
from glasshouse.scenario.load import write_resolved
from glasshouse.scenario.suite import Suite
from glasshouse.store import read_json, write_json
from glasshouse.truth.record import read_truth

T = TypeVar("T")
_PRELOAD = "glasshouse.audit.attacking.call"  # imported once for all workers


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """One cell with its groups: what ``audit`` will do, before it does it."""

    cell: Cell
    system: str
    groups: tuple[Group, ...]

    @property
    def scenario(self) -> str:
        """Name of the cell's scenario."""
        return self.cell.scenario.name


def plan(suite: Suite, out: Path) -> tuple[Plan, ...]:
    """All cells of all scenarios, with the groups each one needs."""
    return tuple(
        Plan(cell=cell, system=member.system, groups=tuple(_groups(cell, out)))
        for member in suite.members
        for cell in cells(member.scenario)
    )


def _groups(cell: Cell, out: Path) -> Iterator[Group]:
    scenario = cell.scenario
    for seed in scenario.audit.seeds or (scenario.seed,):
        repeat = f"-s{seed}" if scenario.audit.seeds else ""
        active = [i for i in range(len(scenario.attacks)) if federation_of(scenario, i) is not None]
        if len(active) < len(scenario.attacks) or not scenario.attacks:
            yield Group(folder=str(out / "cells" / f"{cell.hash}{repeat}"), seed=seed)
        for position in active:
            name = f"{cell.hash}{repeat}-{position}-{scenario.attacks[position].name}"
            yield Group(folder=str(out / "cells" / name), seed=seed, active=position)


def fetch_data(suite: Suite) -> None:
    """Have every data set with a name here before worker processes ask for it.

    Raises:
        BadFile: one is not here and cannot be fetched; says what to put where.
    """
    data = [cell.scenario.data for scenario in suite.scenarios for cell in cells(scenario)]
    for source in sorted(
        {name for d in data for name in (d.source, d.private_source, d.domains.other) if name}
    ):
        ensure(source)


def audit(suite: Suite, *, out: Path, jobs: int, resume: bool = False, device: str = "cpu") -> Result:
    """Run everything that ``suite`` asks for below ``out``; pieces that are there already are kept.

    Raises:
        BadScenario: some cell cannot be audited; what ``check`` would have said.
        BadFile: ``out`` holds a run and ``resume`` is not set, or another suite's run, or the user's own code
            was changed since the run began.
        Interrupted: Ctrl-C; what is finished is kept.
    """
    started = time.perf_counter()
    check_suite(suite)
    if in_memory := lives_in_memory(suite):
        jobs = 1  # no worker process has the network
    fetch_data(suite)
    plans = plan(suite, out.resolve())
    cards = metric_cards(p.cell.scenario for p in plans)  # before anything long starts
    _prepare(suite, plans, out, resume=resume)
    log = RunLog(out)
    facts = manifest(
        suite=suite.name,
        auditor=", ".join(sorted({s.audit.auditor for s in suite.scenarios if s.audit.auditor})),
        seeds={s.name: (s.seed, s.attack_seed) for s in suite.scenarios},
        device=device,
        jobs=jobs,
    )
    log.write("start", suite=suite.name, resume=resume)
    if in_memory:
        log.write("note", note="the network is in memory: attacks ran in the process that scored them")
    with tempfile.TemporaryDirectory() as place:
        control_tasks = _control_tasks(plans, Path(place), device)
        with Workers(jobs, apart=not in_memory, preload=_PRELOAD) as plugin_workers:
            _run_plugins(plans, control_tasks, plugin_workers, device, log)
        # new processes: no attack ran where claims are scored
        with Workers(jobs, preload=_PRELOAD) as workers:
            judged = _collect(
                workers.each(judge_control, control_tasks), len(control_tasks), "controls judged", log
            )
            pieces = [
                CellTask(cell=p.cell, groups=p.groups, run=str(out.resolve()), controls=dict(judged))
                for p in plans
            ]
            scored = dict(_collect(workers.each(score_cell, pieces), len(pieces), "scores", log))
    parts = [(p, scored[p.cell.hash]) for p in plans]
    drawings = draw_run([one.drawings for _, one in parts])
    manifest_facts = {**facts, "cells": _hashes(plans), "seconds": _seconds(parts, started)}
    result = _gather(suite, parts, drawings.exhibits, cards, manifest_facts)
    _write_notes(plans, log)
    for planned, one in parts:
        for note in one.notes:
            log.write("note", cell=planned.cell.hash, note=note)
    for note in (*(n for _, one in parts for n in one.drawings.notes), *drawings.notes):
        log.write("note", note=note)
    log.write("end")
    write_result(result, out / "result.json")
    write_json(out / "manifest.json", dict(result.manifest))
    return result


def _gather(
    suite: Suite,
    parts: list[tuple[Plan, CellResult]],
    exhibits: tuple[Exhibit, ...],
    cards: tuple[MetricCard, ...],
    facts: dict[str, Any],
) -> Result:
    """The results of all cells as one, with what only the whole run can say: its family and its limits."""
    result = Result(
        suite=suite.name,
        threats=tuple(
            threat_card(s, [one for p, one in parts if p.scenario == s.name]) for s in suite.scenarios
        ),
        findings=with_family([f for _, one in parts for f in one.findings]),
        refusals=tuple(r for _, one in parts for r in one.refusals),
        utility=tuple(u for _, one in parts for u in one.utility),
        exhibits=exhibits,
        contrasts=tuple(c for _, one in parts for c in one.contrasts),
        attacks=attack_cards(p.cell.scenario for p, _ in parts),
        metrics=cards,
        manifest=facts,
    )
    return replace(result, limits=policy_limits([p.cell for p, _ in parts], result))


def attack_tasks(planned: Plan, device: str) -> Iterator[AttackTask]:
    """Every call of every attack in one cell; only of groups whose federation ran."""
    scenario = planned.cell.scenario
    attacked = frozenset(r % scenario.federation.rounds for r in scenario.audit.rounds)
    trust_factory = any(":" in m.name for m in (scenario.model, *scenario.federation.client_models))
    for group in planned.groups:
        folder = Path(group.folder)
        if read_record(folder).refusal is not None:
            continue
        known = read_truth(folder / "truth").used if scenario.captured else ()
        for position, spec in enumerate(scenario.attacks):
            attack = attack_of(spec.name, spec.arguments)
            if group.active != federation_of(scenario, position):
                continue
            for unit in units_of(
                attack, folder, victims=scenario.audit.victims, attacked=attacked, known=known
            ):
                yield AttackTask(
                    folder=group.folder,
                    out=str(folder / "claims" / attack_key(position, spec) / unit.name),
                    attack=spec.name,
                    arguments=json.dumps(spec.arguments),
                    threat=threat_of(scenario),
                    attack_seed=scenario.attack_seed,
                    unit=unit,
                    device=device,
                    trust_factory=trust_factory,
                )


def _run_plugins(
    plans: tuple[Plan, ...], controls: list[ControlTask], workers: Workers, device: str, log: RunLog
) -> None:
    """Run everything that executes plug-in code: federations, attacks, and the attacks' controls."""
    groups = [g for p in plans for g in p.groups]
    _collect(workers.each(record, groups), len(groups), "federations", log)
    _check_some_ran(groups)
    tasks = [t for p in plans for t in attack_tasks(p, device)]
    _collect(workers.each(run_attack, tasks), len(tasks), "attacks", log)
    _collect(workers.each(run_control, controls), len(controls), "controls", log)


def _control_tasks(plans: tuple[Plan, ...], place: Path, device: str) -> list[ControlTask]:
    """One control for each attack with its settings, in folders below ``place``."""
    specs = [s for p in plans if p.cell.scenario.audit.controls for s in p.cell.scenario.attacks]
    return [
        ControlTask(
            key=key,
            attack=spec.name,
            arguments=json.dumps(spec.arguments, sort_keys=True),
            folder=str(place / str(position)),
            device=device,
        )
        for position, (key, spec) in enumerate({control_key(s): s for s in specs}.items())
    ]


def _prepare(suite: Suite, plans: tuple[Plan, ...], out: Path, *, resume: bool) -> None:
    if (out / "scenario.given.toml").exists():
        same = (out / "scenario.given.toml").read_text(encoding="utf-8") == suite.given
        if not (resume and same):
            raise BadFile(
                f"run directory '{out}'",
                needs="an empty or new folder" if not resume else "the run of this very scenario",
                got="a run" if not resume else "a run of another scenario",
                fix="choose another --out, or --resume the scenario that was started there",
            )
        verify_hashes(out)
    record_code(suite, out)
    write_text(out / "scenario.given.toml", suite.given)
    for member in suite.members:
        name = "scenario.toml" if len(suite.members) == 1 else f"scenarios/{member.scenario.name}.toml"
        write_resolved(member.scenario, out / name)
    for planned in plans:
        for group in planned.groups:
            if not (Path(group.folder) / "scenario.toml").exists():
                write_resolved(planned.cell.scenario, Path(group.folder) / "scenario.toml")


def _check_some_ran(groups: list[Group]) -> None:
    """A federation that could not be simulated is a refusal; if none could, that is an error.

    Raises:
        BadValue: with the parts of the first refusal.
    """
    refusals = [read_record(Path(g.folder)).refusal for g in groups]
    passive = [r for g, r in zip(groups, refusals, strict=True) if g.active is None]
    if passive and passive[0] and all(passive):
        raise BadValue(**asdict(passive[0]))


def _collect(results: Iterator[T], total: int, label: str, log: RunLog) -> list[T]:
    """All results, with progress; one line of the log for the whole stage."""
    done = list(track(results, label, total=total))
    log.write(label, pieces=total)
    return done


def _write_notes(plans: tuple[Plan, ...], log: RunLog) -> None:
    """Log the notes of attacks (a fallback, for example), each once per attack and cell."""
    for planned in plans:
        for group in planned.groups:
            if (crafting := Path(group.folder) / "notes.json").is_file():
                for note in read_json(crafting):
                    log.write("note", cell=Path(group.folder).name, attack="crafted messages", note=note)
            unit_counts: dict[tuple[str, str], int] = {}
            for path in sorted((Path(group.folder) / "claims").glob("*/*/claims.json")):
                for note in read_outcome(path.parent).notes:
                    unit_counts[path.parts[-3], note] = unit_counts.get((path.parts[-3], note), 0) + 1
            for (attack, note), units in unit_counts.items():
                log.write("note", cell=Path(group.folder).name, attack=attack, note=note, units=units)


def _hashes(plans: tuple[Plan, ...]) -> dict[str, dict[str, str]]:
    """Hashes of what every group recorded, by its folder's name."""
    folders = [Path(g.folder) for p in plans for g in p.groups]
    return {f.name: part_hashes(f) for f in folders}


def _seconds(parts: list[tuple[Plan, CellResult]], started: float) -> dict[str, float]:
    """CPU seconds per system (or scenario, where it has none), and the wall clock."""
    total: dict[str, float] = {}
    for planned, one in parts:
        name = planned.system or planned.scenario
        total[name] = total.get(name, 0.0) + one.seconds
    return {
        **{k: round(v, 2) for k, v in total.items()},
        "wall clock": round(time.perf_counter() - started, 2),
    }

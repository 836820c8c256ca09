"""A whole audit: cells, federations, attacks, controls, scores, findings; in pieces that are kept."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.attacking.device import processes_on
from glasshouse.audit.attacking.pieces import pieces, run_piece
from glasshouse.audit.captured.group import record
from glasshouse.audit.code import lives_in_memory, record_code
from glasshouse.audit.hashes import part_hashes, verify_hashes
from glasshouse.audit.log import RunLog
from glasshouse.audit.manifest import manifest
from glasshouse.audit.plan import Plan, attack_tasks, control_tasks, plan
from glasshouse.audit.preflight.inspect import check_suite
from glasshouse.audit.scoring.cell import refusal_record, score_cell
from glasshouse.audit.scoring.certificate import certificates
from glasshouse.audit.scoring.controls.control import ControlTask, judge_control, run_control
from glasshouse.audit.scoring.tasks import CellResult, CellTask
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
from glasshouse.results.records import Control, Exhibit, Refused, Result
from glasshouse.results.strength import EmpiricalEpsilon, Search
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import write_resolved
from glasshouse.scenario.suite import Suite
from glasshouse.store import read_json, write_json
from glasshouse.wire import Refusal

T = TypeVar("T")
_PRELOAD = "glasshouse.audit.attacking.call"  # imported once for all workers


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
    plans = plan(suite, out.resolve(), device=device)
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
        tests = control_tasks(plans, Path(place), device)
        sharing = processes_on(device, jobs)
        with Workers(sharing, apart=not in_memory, preload=_PRELOAD) as plugin_workers:
            _run_plugins(plans, tests, plugin_workers, device, log)
            epsilons = _measure_epsilons(plans, plugin_workers, log)
        # all claims are filed: the truth meets the attacks' own losses, where no attack runs any more
        with Workers(sharing, apart=True, preload=_PRELOAD) as workers:
            filed = [t for p in plans for t in attack_tasks(p, device)]
            searches = certificates(filed, workers, log)
        # new processes: no attack ran where claims are scored
        with Workers(jobs, preload=_PRELOAD) as workers:
            judged = _collect(workers.each(judge_control, tests), len(tests), "controls judged", log)
            pieces = [_cell_task(p, out, dict(judged), searches, device) for p in plans]
            scored = dict(_collect(workers.each(score_cell, pieces), len(pieces), "scores", log))
    parts = [(p, scored[p.cell.hash]) for p in plans]
    drawings = draw_run([one.drawings for _, one in parts])
    manifest_facts = {**facts, "cells": _hashes(plans), "seconds": _seconds(parts, started)}
    result = _with_epsilons(_gather(suite, parts, drawings.exhibits, cards, manifest_facts), epsilons)
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


def _run_plugins(
    plans: tuple[Plan, ...], controls: list[ControlTask], workers: Workers, device: str, log: RunLog
) -> None:
    """Run everything that executes plug-in code: federations, attacks, and the attacks' controls."""
    groups = [g for p in plans for g in p.groups]
    _collect(workers.each(record, groups), len(groups), "federations", log)
    _check_some_ran(groups)
    tasks = [t for p in plans for t in attack_tasks(p, device)]
    parts = pieces(tasks)
    _collect(workers.each(run_piece, parts), len(parts), "attacks", log)
    _collect(workers.each(run_control, controls), len(controls), "controls", log)


def _measure_epsilons(
    plans: tuple[Plan, ...], workers: Workers, log: RunLog
) -> list[EmpiricalEpsilon | Refused]:
    """What a federation with canaries shows, for every cell that claims an ε, or why that could not be."""
    claiming = {p.cell.hash: p.cell for p in plans if p.cell.scenario.audit.epsilon.claimed}
    if not claiming:
        return []
    from glasshouse.audit.simulation.epsilon import measure_epsilon  # noqa: PLC0415  (needs the extra dp)

    cells_ = list(claiming.values())
    measured = dict(_collect(workers.each(measure_epsilon, cells_), len(cells_), "canaries", log))
    return [
        refusal_record(cell, one) if isinstance(one := measured[name], Refusal) else one
        for name, cell in claiming.items()
    ]


def _cell_task(
    planned: Plan,
    out: Path,
    controls: Mapping[str, Control | None],
    searches: Mapping[str, tuple[Search, ...]],
    device: str,
) -> CellTask:
    return CellTask(
        cell=planned.cell,
        groups=planned.groups,
        run=str(out.resolve()),
        controls=controls,
        searches={t.out: searches[t.out] for t in attack_tasks(planned, device)},
    )


def _with_epsilons(result: Result, measured: Sequence[EmpiricalEpsilon | Refused]) -> Result:
    return replace(
        result,
        epsilons=tuple(one for one in measured if isinstance(one, EmpiricalEpsilon)),
        refusals=(*result.refusals, *(one for one in measured if isinstance(one, Refused))),
    )


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

"""Run a whole audit (federations, attacks, controls, scores, findings) in pieces that are kept on disk."""

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from glasshouse.audit import guarded
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.log import RunLog
from glasshouse.audit.plan import PLANTED, Plan, control_tasks, plan, planted_plans
from glasshouse.audit.preflight.inspect import check_suite
from glasshouse.audit.preflight.outlook import look_at
from glasshouse.audit.provenance.hashes import NOTES, part_hashes
from glasshouse.audit.provenance.manifest import manifest
from glasshouse.audit.provenance.stamp import stamp
from glasshouse.audit.resume import lives_in_memory, prepare_folder, write_scenarios
from glasshouse.audit.room import require_room
from glasshouse.audit.scoring.cell import refusal_record
from glasshouse.audit.scoring.judging.family import with_family
from glasshouse.audit.scoring.judging.policy import policy_limits
from glasshouse.audit.scoring.judging.verdict import settle
from glasshouse.audit.scoring.tasks import CellResult
from glasshouse.audit.scoring.words import attack_cards, metric_cards, threat_card
from glasshouse.audit.stages import Stages
from glasshouse.cache import LOCKS
from glasshouse.data.fetch import ensure
from glasshouse.executors.base import choose_device, peak_memory
from glasshouse.executors.local import HERE, choose_executor
from glasshouse.figures.drawing import draw_run
from glasshouse.models.nearest import FOLDER as NEAREST
from glasshouse.process import first_second, tree_time
from glasshouse.results.files import write_result
from glasshouse.results.records import Refused, Result
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.scenario.axes import cells
from glasshouse.scenario.suite import Suite
from glasshouse.store import read_json, write_json
from glasshouse.wire import Refusal

_CONTROLS: Final = "controls"
"""Folder of a run with the controls' federations; deleted when the run is finished."""
_REST: Final = "starting, checking and drawing"
"""CPU seconds of no piece: imports, the main process, the start of workers."""
_EARLIER: Final = "earlier, before --resume"


def fetch_data(suite: Suite) -> None:
    """Download every named dataset before worker processes need it.

    Raises:
        BadFile: a dataset is missing and cannot be downloaded; says which file to put where.
    """
    data = [cell.scenario.data for scenario in suite.scenarios for cell in cells(scenario)]
    named = {name for d in data for name in (d.source, d.private_source, d.domains.other) if name}
    for source in sorted(named):
        ensure(source)


def audit(  # noqa: PLR0913 - the options of an audit
    suite: Suite,
    *,
    out: Path,
    jobs: int,
    resume: bool = False,
    device: str = "cpu",
    executor: str = HERE,
    address: str = "",
    register: Path | None = None,
) -> Result:
    """Run the audit of ``suite`` in the folder ``out``; pieces that exist already are kept.

    Args:
        suite: the scenarios to audit.
        out: the run directory.
        jobs: pieces at a time; 0: as many as the executor can run.
        resume: continue the run in ``out``, whichever executor started it.
        device: of attacks.
        executor: registered name of the executor that runs the pieces.
        address: of the executor's cluster.
        register: file that gets a line for every audit begun; None: none is kept, which the report says.

    Raises:
        BadScenario: some cell cannot be audited; the problems that ``check`` reports.
        BadFile: ``out`` contains a run and ``resume`` is not set, or a run of another suite or of other
            settings, or the user's own code has changed since the run started.
        BadValue: the executor or the device is not available.
        Interrupted: Ctrl-C; finished work is kept.
    """
    started, begun = time.perf_counter(), first_second()
    looks = check_suite(suite)
    fetch_data(suite)
    cards = metric_cards(cell.scenario for s in suite.scenarios for cell in cells(s))  # before the long part
    backend = choose_executor(executor, jobs=jobs, address=address, here=lives_in_memory(suite))
    with backend.start() as workers:
        device = choose_device(device, workers.devices)
        plans = plan(suite, out.resolve(), device=device)
        if not resume:
            canaries = planted_plans(plans, out.resolve()).values()
            recorded = {one.cell.hash: one for one in (*plans, *canaries)}.values()
            require_room(recorded, look_at((one.cell for one in recorded), looks), out)
        prepare_folder(suite, plans, out, resume=resume)
        stamped = stamp(suite, out, register)  # before the simulation makes any truth
        log = RunLog(out)
        log.write("start", suite=suite.name, resume=resume)
        facts = manifest(suite, device=device, jobs=workers.jobs, executor=executor)
        stages = Stages(workers=workers, run=out.resolve(), device=device, log=log)
        before = log.total("cpu_seconds")
        try:
            parts, epsilons = _run(plans, stages)
        except BaseException:
            log.write("stop", cpu_seconds=_whole(stages, begun))
            raise
    drawings = draw_run([one.drawings for _, one in parts], guarded.call)
    facts |= _measured(plans, stages, out) | {"register": stamped.facts()}
    result = Result(suite=suite.name, exhibits=drawings.exhibits, metrics=cards, manifest=facts)
    result = _gather(result, suite, parts, epsilons)
    undrawn = [refusal_record(parts[0][0].cell, refusal) for refusal in drawings.refusals]
    result = replace(result, refusals=(*result.refusals, *undrawn))
    _write_notes(suite, parts, log)
    spent = _whole(stages, begun)
    result = replace(
        result, manifest={**facts, **_spent(stages, spent, before, time.perf_counter() - started)}
    )
    log.write("end", cpu_seconds=spent)
    write_result(result, out / "result.json")
    write_json(out / "manifest.json", dict(result.manifest))
    stamped.close(out)
    return result


def _whole(stages: Stages, begun: float) -> float:
    """CPU seconds of all processes of this run since ``begun``, at least those of its pieces."""
    return round(max(tree_time() - begun + stages.unseen, sum(stages.spent.values())), 2)


def _spent(stages: Stages, whole: float, before: float, clock: float) -> dict[str, Any]:
    """CPU seconds of the whole run; by kind of piece, and by part of the audit.

    Args:
        stages: of this run.
        whole: seconds of this run.
        before: seconds of runs in the same folder that this one continues.
        clock: seconds on the clock.
    """
    rest = {_REST: max(0.0, whole - sum(stages.spent.values()))} | ({_EARLIER: before} if before else {})
    return {
        "cpu_seconds_of_the_whole_run": round(whole + before, 2),
        "cpu_seconds": _rounded({**stages.spent, **rest}),
        "seconds": {**_rounded({**stages.shares, **rest}), "wall clock": round(clock, 2)},
    }


def _measured(plans: tuple[Plan, ...], stages: Stages, out: Path) -> dict[str, Any]:
    """What is known at the end: hashes of what was recorded, memory and disk."""
    return {
        "cells": {Path(g.folder).name: part_hashes(Path(g.folder)) for p in plans for g in p.groups},
        "peak_mb": round(max(stages.peak_mb, peak_memory())),
        "disk_mb": round(_bytes_on_disk(out) / 1e6, 1),
    }


def _bytes_on_disk(folder: Path) -> int:
    """Total size of all files below ``folder``; a file with several hard links counts once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({(one.st_dev, one.st_ino): one.st_size for one in files}.values())


def _run(
    plans: tuple[Plan, ...], stages: Stages
) -> tuple[list[tuple[Plan, CellResult]], list[EmpiricalEpsilon | Refused]]:
    """Run all pieces, room by room; return every cell's results, and the empirical ε from canaries."""
    controls = control_tasks(plans, stages.run / _CONTROLS, stages.device)
    shown = planted_plans(plans, stages.run, device=stages.device)
    own = {one.cell.hash for one in plans}
    canaries = {one.cell.hash: one for one in shown.values() if one.cell.hash not in own}
    write_scenarios(canaries.values())
    every = (*plans, *canaries.values())
    stages.run_plugins(every, controls)
    searches = stages.certify(every)
    scored = stages.score(plans, controls, searches, shown)
    for part in (_CONTROLS, PLANTED, LOCKS, NEAREST):
        shutil.rmtree(stages.run / part, ignore_errors=True)
    measured = stages.epsilons(plans)
    epsilons = [refusal_record(cell, one) if isinstance(one, Refusal) else one for cell, one in measured]
    return [(p, scored[p.cell.hash]) for p in plans], epsilons


def _gather(
    result: Result,
    suite: Suite,
    parts: list[tuple[Plan, CellResult]],
    epsilons: Sequence[EmpiricalEpsilon | Refused],
) -> Result:
    """Add the results of all cells, and what needs the whole run: corrected p-values and limits."""
    result = replace(
        result,
        threats=tuple(
            threat_card(s, [one for p, one in parts if p.cell.scenario.name == s.name])
            for s in suite.scenarios
        ),
        findings=settle(
            with_family([f for _, one in parts for f in one.findings]), {m.name: m for m in result.metrics}
        ),
        refusals=tuple(r for _, one in parts for r in one.refusals),
        utility=tuple(u for _, one in parts for u in one.utility),
        contrasts=tuple(c for _, one in parts for c in one.contrasts),
        proofs=tuple(p for _, one in parts for p in one.proofs),
        attacks=attack_cards(p.cell.scenario for p, _ in parts),
    )
    return replace(
        result,
        limits=policy_limits([p.cell for p, _ in parts], result),
        epsilons=tuple(one for one in epsilons if isinstance(one, EmpiricalEpsilon)),
        refusals=(*result.refusals, *(one for one in epsilons if isinstance(one, Refused))),
    )


def _write_notes(suite: Suite, parts: list[tuple[Plan, CellResult]], log: RunLog) -> None:
    """Log the notes of attacks (e.g. on a fallback), each once per attack and cell; then other notes."""
    if lives_in_memory(suite):
        log.write("note", note="the network is in memory: attacks ran in the process that scored them")
    for group in (g for planned, _ in parts for g in planned.groups):
        if (crafting := Path(group.folder) / NOTES).is_file():
            for note in read_json(crafting):
                log.write("note", cell=Path(group.folder).name, attack="crafted messages", note=note)
        paths = sorted((Path(group.folder) / "claims").glob("*/*/claims.json"))
        notes = ((path.parts[-3], note) for path in paths for note in read_outcome(path.parent).notes)
        for (attack, note), units in Counter(notes).items():
            log.write("note", cell=Path(group.folder).name, attack=attack, note=note, units=units)
    for planned, one in parts:
        for note in one.notes:
            log.write("note", cell=planned.cell.hash, note=note)


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(one, 2) for name, one in seconds.items()}

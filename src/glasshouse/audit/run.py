"""A whole audit: cells, federations, attacks, controls, scores, findings; in pieces that are kept."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.code import lives_in_memory
from glasshouse.audit.hashes import NOTES, part_hashes
from glasshouse.audit.log import RunLog
from glasshouse.audit.manifest import manifest
from glasshouse.audit.plan import Plan, control_tasks, plan
from glasshouse.audit.preflight.inspect import check_suite
from glasshouse.audit.resume import prepare_folder
from glasshouse.audit.scoring.cell import refusal_record
from glasshouse.audit.scoring.tasks import CellResult
from glasshouse.audit.scoring.verdicts.family import with_family
from glasshouse.audit.scoring.verdicts.policy import policy_limits
from glasshouse.audit.scoring.wording.cards import attack_cards, metric_cards
from glasshouse.audit.scoring.wording.threat_card import threat_card
from glasshouse.audit.stages import Stages
from glasshouse.cache import LOCKS
from glasshouse.data.fetch import ensure
from glasshouse.executors.base import choose_device, peak_memory
from glasshouse.executors.choose import HERE, choose_executor
from glasshouse.figures.drawing import Drawings, draw_run
from glasshouse.models.nearest import FOLDER as NEAREST
from glasshouse.results.cards import MetricCard
from glasshouse.results.files import write_result
from glasshouse.results.records import Exhibit, Refused, Result
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.scenario.axes import cells
from glasshouse.scenario.suite import Suite
from glasshouse.store import read_json, write_json
from glasshouse.wire import Refusal

_CONTROLS: Final = "controls"
"""Folder of a run with the controls' federations; gone when the run is finished."""


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


def audit(
    suite: Suite,
    *,
    out: Path,
    jobs: int,
    resume: bool = False,
    device: str = "cpu",
    executor: str = HERE,
    address: str = "",
) -> Result:
    """Run everything that ``suite`` asks for below ``out``; pieces that are there already are kept.

    Args:
        suite: what is asked for.
        out: the run directory.
        jobs: pieces at a time; 0: as many as the executor has room for.
        resume: go on with the run in ``out``, whatever executor it was begun with.
        device: of attacks.
        executor: registered name of what runs the pieces.
        address: of the executor's cluster.

    Raises:
        BadScenario: some cell cannot be audited; what ``check`` would have said.
        BadFile: ``out`` holds a run and ``resume`` is not set, or a run of another suite or of other
            settings, or the user's own code was changed since the run began.
        BadValue: the executor or the device is not there.
        Interrupted: Ctrl-C; what is finished is kept.
    """
    started = time.perf_counter()
    check_suite(suite)
    fetch_data(suite)
    cards = metric_cards(cell.scenario for s in suite.scenarios for cell in cells(s))  # before it gets long
    chosen = choose_executor(executor, jobs=jobs, address=address, here=lives_in_memory(suite))
    with chosen.start() as workers:
        device = choose_device(device, workers.devices)
        plans = plan(suite, out.resolve(), device=device)
        prepare_folder(suite, plans, out, resume=resume)
        log = RunLog(out)
        log.write("start", suite=suite.name, resume=resume)
        facts = _facts(suite, device=device, jobs=workers.jobs, executor=executor)
        stages = Stages(workers=workers, run=out.resolve(), device=device, log=log)
        parts, epsilons = _run(plans, stages)
    drawings = draw_run([one.drawings for _, one in parts])
    manifest_facts = {
        **facts,
        "cells": _hashes(plans),
        "seconds": {**_rounded(stages.shares), "wall clock": round(time.perf_counter() - started, 2)},
        "cpu_seconds": _rounded(stages.spent),
        "peak_mb": round(max(stages.peak_mb, peak_memory())),
        "disk_mb": round(_bytes_on_disk(out) / 1e6, 1),
    }
    result = _with_epsilons(_gather(suite, parts, drawings.exhibits, cards, manifest_facts), epsilons)
    _write_notes(suite, parts, drawings, log)
    log.write("end")
    write_result(result, out / "result.json")
    write_json(out / "manifest.json", dict(result.manifest))
    return result


def _bytes_on_disk(folder: Path) -> int:
    """All files; one with several links counts once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({(one.st_dev, one.st_ino): one.st_size for one in files}.values())


def _run(
    plans: tuple[Plan, ...], stages: Stages
) -> tuple[list[tuple[Plan, CellResult]], list[EmpiricalEpsilon | Refused]]:
    """All pieces, room by room: every cell's results, and what canaries showed."""
    controls = control_tasks(plans, stages.run / _CONTROLS, stages.device)
    stages.run_plugins(plans, controls)
    scored = stages.score(plans, controls, stages.certify(plans))
    for part in (_CONTROLS, LOCKS, NEAREST):
        shutil.rmtree(stages.run / part, ignore_errors=True)
    measured = stages.epsilons(plans)
    epsilons = [refusal_record(cell, one) if isinstance(one, Refusal) else one for cell, one in measured]
    return [(p, scored[p.cell.hash]) for p in plans], epsilons


def _facts(suite: Suite, *, device: str, jobs: int, executor: str) -> dict[str, Any]:
    return manifest(
        suite=suite.name,
        auditor=", ".join(sorted({s.audit.auditor for s in suite.scenarios if s.audit.auditor})),
        seeds={s.name: (s.seed, s.attack_seed) for s in suite.scenarios},
        device=device,
        jobs=jobs,
        executor=executor,
    )


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


def _with_epsilons(result: Result, epsilons: Sequence[EmpiricalEpsilon | Refused]) -> Result:
    return replace(
        result,
        epsilons=tuple(one for one in epsilons if isinstance(one, EmpiricalEpsilon)),
        refusals=(*result.refusals, *(one for one in epsilons if isinstance(one, Refused))),
    )


def _write_notes(suite: Suite, parts: list[tuple[Plan, CellResult]], drawings: Drawings, log: RunLog) -> None:
    """Log the notes of attacks (a fallback, for example), each once per attack and cell; then the others."""
    if lives_in_memory(suite):
        log.write("note", note="the network is in memory: attacks ran in the process that scored them")
    for group in (g for planned, _ in parts for g in planned.groups):
        if (crafting := Path(group.folder) / NOTES).is_file():
            for note in read_json(crafting):
                log.write("note", cell=Path(group.folder).name, attack="crafted messages", note=note)
        unit_counts: dict[tuple[str, str], int] = {}
        for path in sorted((Path(group.folder) / "claims").glob("*/*/claims.json")):
            for note in read_outcome(path.parent).notes:
                unit_counts[path.parts[-3], note] = unit_counts.get((path.parts[-3], note), 0) + 1
        for (attack, note), units in unit_counts.items():
            log.write("note", cell=Path(group.folder).name, attack=attack, note=note, units=units)
    for planned, one in parts:
        for note in one.notes:
            log.write("note", cell=planned.cell.hash, note=note)
    for note in (*(n for _, one in parts for n in one.drawings.notes), *drawings.notes):
        log.write("note", note=note)


def _hashes(plans: tuple[Plan, ...]) -> dict[str, dict[str, str]]:
    """Hashes of what every group recorded, by its folder's name."""
    folders = [Path(g.folder) for p in plans for g in p.groups]
    return {f.name: part_hashes(f) for f in folders}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(one, 2) for name, one in seconds.items()}

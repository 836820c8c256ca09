"""Run an attack again on the adversary's side alone, and compare what it claims."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from glasshouse.audit.attacking.call import AttackTask, run_attack
from glasshouse.audit.attacking.claims import Unit, read_outcome, same_claims
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.jobs import Workers
from glasshouse.audit.scoring.tasks import attack_key
from glasshouse.errors import BadFile
from glasshouse.scenario.load import read_resolved

SIDE = ("transcript", "own", "grants", "adversary")


def replay(run: Path, attack: str) -> list[dict[str, Any]]:
    """Every finished unit of ``attack`` in ``run``, run again in another process that has only ``SIDE``.

    Returns:
        One row per unit: cell, unit, and whether the claims are exactly the same.

    Raises:
        BadFile: ``run`` holds no finished unit of that attack.
    """
    rows = []
    with tempfile.TemporaryDirectory() as place:
        tasks = []
        for group in sorted((run / "cells").glob("*")):
            if (group / "transcript").is_dir():
                tasks += _tasks(group, attack, Path(place) / group.name)
        if not tasks:
            raise BadFile(
                f"replay of '{attack}' in '{run}'",
                needs="a run that finished at least one unit of it",
                got="none",
                fix="name an attack of that run: see its scenario.toml",
            )
        with Workers(2) as workers:
            done = {task.out: task for task in tasks}
            spare = [*tasks, tasks[0]] if len(tasks) == 1 else tasks  # two tasks: never in this process
            for out in set(workers.each(run_attack, spare)):
                before = read_outcome(_original(run, done[out]))
                again = read_outcome(Path(out))
                same = same_claims(before.claims, again.claims) and before.refusal == again.refusal
                rows.append({"cell": Path(done[out].folder).name, "unit": done[out].unit.name, "same": same})
    return sorted(rows, key=lambda row: (row["cell"], row["unit"]))


def _tasks(group: Path, attack: str, copy: Path) -> list[AttackTask]:
    scenario = read_resolved(group / "scenario.toml")
    tasks = []
    for position, spec in enumerate(scenario.attacks):
        units = (
            sorted((group / "claims" / attack_key(position, spec)).glob("*/claims.json"))
            if spec.name == attack
            else []
        )
        for path in units:
            for part in SIDE:
                if (group / part).is_dir() and not (copy / part).exists():
                    shutil.copytree(group / part, copy / part)
            tasks.append(
                AttackTask(
                    folder=str(copy),
                    out=str(copy / "claims" / attack_key(position, spec) / path.parent.name),
                    attack=spec.name,
                    arguments=json.dumps(spec.arguments),
                    threat=threat_of(scenario),
                    attack_seed=scenario.attack_seed,
                    unit=_unit(path.parent.name),
                )
            )
    return tasks


def _unit(name: str) -> Unit:
    head, _, client = name.partition("-client")
    rounds = head.removeprefix("round")
    numbers = () if rounds == "run" else tuple(int(r) for r in rounds.split("-"))
    return Unit(rounds=numbers, client=int(client) if client else None)


def _original(run: Path, task: AttackTask) -> Path:
    return run / "cells" / Path(task.folder).name / Path(task.out).relative_to(task.folder)

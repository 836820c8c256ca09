"""Run an attack again on the adversary's side alone, and compare what it claims."""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from glasshouse.audit.attacking.call import AttackTask, run_attack
from glasshouse.audit.attacking.claims import Unit, read_outcome, same_claims
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.examine import examine
from glasshouse.audit.jobs import Workers
from glasshouse.audit.scoring.tasks import attack_key
from glasshouse.errors import BadFile
from glasshouse.outside.files import printable
from glasshouse.scenario.load import read_resolved

SIDE = ("transcript", "own", "grants", "adversary")


def replay(run: Path, attack: str, *, trust_factory: bool = False) -> list[dict[str, Any]]:
    """Every finished unit of ``attack`` in ``run``, run again in another process that has only ``SIDE``.

    Args:
        run: a run directory, of anybody.
        attack: registered name.
        trust_factory: import the module of an architecture ``module:factory``.

    Returns:
        One row per unit: cell, unit, and whether the claims are exactly the same.

    Raises:
        BadFile: ``run`` holds no finished unit of that attack, or what :func:`examine` refuses.
    """
    examine(run, trust_factory=trust_factory)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        tasks = []
        for group in sorted((run / "cells").glob("*")):
            if (group / "transcript").is_dir():
                tasks += _tasks(group, attack, Path(place) / group.name, trust_factory)
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


def _tasks(group: Path, attack: str, copy: Path, trust_factory: bool) -> list[AttackTask]:
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
                    trust_factory=trust_factory,
                )
            )
    return tasks


def _unit(name: str) -> Unit:
    parts = re.fullmatch(r"round(run|[0-9]{1,9}(?:-[0-9]{1,9})*)(?:-client([0-9]{1,9}))?", name)
    if parts is None:
        raise BadFile(
            f"unit '{printable(name)}' of a run",
            needs="a folder named by its rounds, as round3-client1",
            got="another name",
            fix="get the run again",
        )
    numbers = () if parts[1] == "run" else tuple(int(r) for r in parts[1].split("-"))
    return Unit(rounds=numbers, client=None if parts[2] is None else int(parts[2]))


def _original(run: Path, task: AttackTask) -> Path:
    return run / "cells" / Path(task.folder).name / Path(task.out).relative_to(task.folder)

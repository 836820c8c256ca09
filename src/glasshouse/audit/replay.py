"""Run an attack again with only the adversary's part of a run, and compare its claims.

The attack runs in its own process in an empty working folder and cannot access the run: a mount namespace
replaces the run by an empty folder, or the ground truth is moved aside (decision 0087). The units are run in
reverse order, so that the claims change if a plug-in keeps state between calls. With ``--swap`` the attack
can access a copy of the run with exchanged victims instead.
"""

import json
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from glasshouse.audit.attacking.call import AttackTask, pieces
from glasshouse.audit.attacking.claims import Unit, read_outcome, same_claims
from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.examine import examine
from glasshouse.audit.replay_process import NO_NAMESPACE
from glasshouse.audit.scoring.gains import value_of
from glasshouse.audit.scoring.read import read_ground
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.tasks import attack_key
from glasshouse.audit.scoring.truth import rotate_victims
from glasshouse.errors import BadFile, Undefined
from glasshouse.metrics.base import Metric
from glasshouse.models.memory import PREFIX
from glasshouse.process import worker_killed
from glasshouse.registry import create, load, nearest_names
from glasshouse.rng import Rng
from glasshouse.scenario.load import read_resolved
from glasshouse.store import read_json, write_json
from glasshouse.truth.record import Truth, read_truth, write_truth

SIDE = ("transcript", "own", "grants", "adversary")
PROCESSES: Final = 2
_NOTE: Final = "truth-moved-aside.json"


def replay(
    run: Path, attack: str, *, trust_factory: bool = False, swap: bool = False
) -> list[dict[str, Any]]:
    """Run every finished unit of ``attack`` in ``run`` again, without access to the run's ground truth.

    Args:
        run: a run directory; may be untrusted.
        attack: registered name.
        trust_factory: import the module of an architecture ``module:factory``.
        swap: instead of hiding the ground truth, exchange the victims' examples in it. The claims of an
            attack that reads it change; the scores change, because the victims do.

    Returns:
        One row per unit: cell, unit, whether the claims are the same, and how the ground truth was hidden
        (``isolation``); with ``swap`` also a metric, and its value on the true and on exchanged victims.

    Raises:
        BadFile: ``run`` has no finished unit of that attack, or no ground truth to exchange, or
            :func:`examine` rejects it.
        WorkerKilled: the process that ran the attack was killed.
    """
    run = run.resolve()
    bring_back(run)
    examine(run, trust_factory=trust_factory)
    groups = [g for g in sorted((run / "cells").glob("*")) if (g / "transcript").is_dir()]
    _refuse_networks_in_memory(groups, attack, run)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        by_group = {g: _tasks(g, attack, place / "side" / g.name, trust_factory) for g in groups}
        tasks = [task for every in by_group.values() for task in every]
        if not tasks:
            specs = [s.name for g in groups for s in read_resolved(g / "scenario.toml").attacks]
            raise BadFile(
                f"replay of '{attack}' in '{run}'",
                needs="a run that finished at least one unit of it",
                got="none",
                fix=f"name an attack of that run: {nearest_names(attack, tuple(specs))}",
            )
        views = write_swapped(run, place / "swapped") if swap else None
        isolation = _run_apart(tasks, run, place, views)
        rows = []
        for group, every in by_group.items():
            scores = score_swapped(group, attack) if swap and every else {}
            rows += [{**_compare(run, task), "isolation": isolation, **scores} for task in every]
    return sorted(rows, key=lambda row: (row["cell"], row["unit"]))


def _refuse_networks_in_memory(groups: Sequence[Path], attack: str, run: Path) -> None:
    for name in {read_resolved(group / "scenario.toml").model.name for group in groups}:
        if name.startswith(PREFIX):
            raise BadFile(
                f"replay of '{attack}' in '{run}'",
                needs="a network that another process can build",
                got=f"{name.removeprefix(PREFIX)}, which was in the memory of the process that ran the audit",
                fix="write a function that builds it into a file, and audit it as name = 'file:function'",
            )


def _compare(run: Path, task: AttackTask) -> dict[str, Any]:
    copy, out = Path(task.folder), Path(task.out)
    before, again = read_outcome(run / "cells" / copy.name / out.relative_to(copy)), read_outcome(out)
    same = same_claims(before.claims, again.claims) and before.refusal == again.refusal
    return {"cell": copy.name, "unit": task.unit.name, "same": same}


def _run_apart(tasks: Sequence[AttackTask], run: Path, place: Path, views: Path | None) -> str:
    """Run ``tasks`` with ``run`` hidden, or replaced by ``views``; return the means, in words.

    Raises:
        BadFile: the attack's input is invalid.
        WorkerKilled: the process that ran the attack was killed.
    """
    (place / "empty").mkdir()
    folder = str(Path.cwd() if views else place / "empty")
    replaced = [(str(run), str(views))] if views else []
    orders = {"hide": [] if views else [str(run)], "replace": replaced, "working_folder": folder}
    if _start(tasks, orders, place):
        return "a mount namespace"
    orders = {"hide": [], "replace": [], "working_folder": str(views or place / "empty")}
    truths = sorted(path for path in run.glob("cells/*/truth") if path.is_dir())
    with moved_aside(run, truths):
        _start(tasks, orders, place)
    return "the truth moved aside"


def _start(tasks: Sequence[AttackTask], orders: dict[str, Any], place: Path) -> bool:
    """Run all tasks in processes confined as in ``orders``; return whether confining them succeeded."""
    lanes = [lane for i in range(PROCESSES) if (lane := pieces(tasks)[::-1][i::PROCESSES])]
    running = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for number, lane in enumerate(lanes):
        file = place / f"orders-{number}"
        file.write_bytes(pickle.dumps({**orders, "pieces": pickle.dumps(lane)}))
        command = [sys.executable, "-m", "glasshouse.audit.replay_process", str(file)]
        running.append(subprocess.Popen(command, env=environment, cwd=place / "empty"))
    try:
        statuses = [process.wait() for process in running]
    except BaseException:  # Ctrl-C: none of them may stay behind
        for process in running:
            process.kill()
        raise
    for error in sorted(place.glob("orders-*.error")):
        raise pickle.loads(error.read_bytes())  # noqa: S301 - our own process's
    if set(statuses) - {0, NO_NAMESPACE}:
        raise worker_killed("replay")
    return NO_NAMESPACE not in statuses


def _tasks(group: Path, attack: str, copy: Path, trust_factory: bool) -> list[AttackTask]:
    scenario = read_resolved(group / "scenario.toml")
    tasks = []
    for position, spec in enumerate(scenario.attacks):
        if spec.name != attack:
            continue
        key = attack_key(position, spec)
        for path in sorted((group / "claims" / key).glob("*/claims.json")):
            for part in SIDE:
                if (group / part).is_dir() and not (copy / part).exists():
                    shutil.copytree(group / part, copy / part)
            tasks.append(
                AttackTask(
                    folder=str(copy),
                    out=str(copy / "claims" / key / path.parent.name),
                    attack=spec.name,
                    arguments=json.dumps(spec.arguments),
                    threat=threat_of(scenario),
                    attack_seed=scenario.attack_seed,
                    unit=Unit.named(path.parent.name),
                    trust_factory=trust_factory,
                )
            )
    return tasks


@contextmanager
def moved_aside(run: Path, folders: Sequence[Path]) -> Iterator[None]:
    """Move ``folders`` of ``run`` to an unguessable name for the duration of the block.

    Their new places are written to ``run`` first, so that :func:`bring_back` restores them after a crash.
    """
    aside = run.parent / f".{secrets.token_hex(16)}"
    write_json(run / _NOTE, {str(f.relative_to(run)): str(aside / str(i)) for i, f in enumerate(folders)})
    aside.mkdir()
    try:
        for position, folder in enumerate(folders):
            folder.rename(aside / str(position))
        yield
    finally:
        bring_back(run)


def bring_back(run: Path) -> None:
    """Restore the folders that :func:`moved_aside` moved, even after its process was killed.

    Raises:
        BadFile: the note names a place that is not beside ``run``, or a folder outside ``run``.
    """
    note = run / _NOTE
    if not note.is_file():
        return
    places = {run / name: Path(place) for name, place in read_json(note).items()}
    for folder, place in places.items():
        if place.parent.parent != run.parent or run not in folder.parents or ".." in folder.parts:
            raise BadFile(
                f"file '{note}'",
                needs="folders of this run that were moved beside it",
                got=f"{folder} at {place}",
                fix="move the truth back by hand, and delete the file",
            )
        if place.is_dir():
            place.rename(folder)
    for aside in {place.parent for place in places.values()}:
        if aside.is_dir():
            aside.rmdir()
    note.unlink()


def write_swapped(run: Path, copy: Path) -> Path:
    """Copy ``run`` to ``copy``, exchange the ground truth of every group between victims, return ``copy``.

    Raises:
        BadFile: a group has no ground truth, or only one victim.
    """
    shutil.copytree(run, copy)
    for group in sorted((copy / "cells").glob("*/transcript")):
        folder = group.parent / "truth"
        if not folder.is_dir():
            raise BadFile(
                f"truth of '{group.parent.name}'",
                needs="the truth folder of the run, to exchange it between victims",
                got="no such folder",
                fix="replay without --swap, or get the run with its truth",
            )
        write_truth(swap_victims(read_truth(folder)), folder)
    return copy


def swap_victims(truth: Truth) -> Truth:
    """The ground truth with every victim's examples replaced by the next one's.

    Raises:
        BadFile: there is only one victim.
    """
    if len(truth.used) < 2:
        raise BadFile(
            "exchange of truths",
            needs="at least 2 victims",
            got=str(len(truth.used)),
            fix="replay without --swap, or audit more clients",
        )
    return rotate_victims(truth)


def score_swapped(group: Path, attack: str) -> Mapping[str, Any]:
    """The first defined audited metric, on the true and on exchanged victims; empty: none is defined."""
    scenario = read_resolved(group / "scenario.toml")
    keys = (attack_key(i, spec) for i, spec in enumerate(scenario.attacks) if spec.name == attack)
    finished = (sorted((group / "claims" / key).glob("*/claims.json")) for key in keys)
    outcomes = [read_outcome(path.parent) for path in next(filter(None, finished), [])]
    ground, book = read_ground(group, scenario)
    other = ground.against(swap_victims(ground.truth))
    for plugin in scenario.audit.metrics:
        metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
        try:
            pair = [score_outcomes(plugin.name, metric, outcomes, one, book) for one in (ground, other)]
            values = [value_of(one, metric, rng=Rng.root(0)).value for one in pair if one is not None]
        except Undefined:
            continue
        if len(values) == 2:
            return {"metric": plugin.name, "true_victims": values[0], "exchanged_victims": values[1]}
    return {}

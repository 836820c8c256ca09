"""Run an attack again with only the adversary's part of a run, and compare its claims.

The attack runs in a sealed process (:mod:`glasshouse.audit.namespace`): it sees neither the run nor what it
left anywhere before, and has no network; where the system does not allow that, the ground truth is moved
aside (decision 0087). The units are run in reverse order, so that the claims change if a plug-in keeps state
between calls. With ``--swap`` the federations are simulated anew with other private data: claims must follow
them.
"""

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
from glasshouse.audit.attacking.claims import Outcome, Unit, read_outcome, same_claims
from glasshouse.audit.attacking.needs import attack_of, threat_of
from glasshouse.audit.examine import examine
from glasshouse.audit.provenance.beside_code import Beside, begun, beside_code
from glasshouse.audit.replay_process import NO_NAMESPACE
from glasshouse.audit.scoring.gains import value_of
from glasshouse.audit.scoring.read import read_ground
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.tasks import attack_key
from glasshouse.audit.sealed import is_foreign
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.audit.simulation.planted import OTHER_DATA
from glasshouse.audit.simulation.record import read_record
from glasshouse.cache import folder as cache_folder
from glasshouse.errors import BadFile, Inapplicable, Undefined
from glasshouse.metrics.base import Metric
from glasshouse.models.memory import PREFIX
from glasshouse.process import worker_killed
from glasshouse.registry import create, load, nearest_names
from glasshouse.rng import Rng
from glasshouse.scenario.load import read_resolved
from glasshouse.store import read_json, write_json

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
        swap: run the attack on federations that are simulated anew with other private data. The claims of an
            attack that remembers stay as they were; those of one that reads updates change, and are about as
            good for the new victims.

    Returns:
        One row per unit: cell, unit, whether the claims are the same as in the run, and how the ground truth
        was hidden (``isolation``); with ``swap`` also a metric, its value in the run, and that of the new
        claims on the new victims and on the run's.

    Raises:
        BadFile: ``run`` has no finished unit of that attack, or nothing that could be simulated anew, or
            :func:`examine` rejects it.
        WorkerKilled: the process that ran the attack was killed.
    """
    run = run.resolve()
    bring_back(run)
    examine(run, trust_factory=trust_factory)
    # A federation without a transcript has nothing that an attack could be shown again.
    groups = [g for g in sorted((run / "cells").glob("*")) if (g / "transcript").is_dir()]
    _refuse_networks_in_memory(groups, attack, run)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        place = Path(name)
        sources = {g: simulate_anew(g, Path(other) / g.name) if swap else g for g in groups}
        by_group = {
            g: _tasks(g, source, attack, place / "side" / g.name, trust_factory)
            for g, source in sources.items()
        }
        tasks = [task for every in by_group.values() for task in every]
        if not tasks:
            specs = [s.name for g in groups for s in read_resolved(g / "scenario.toml").attacks]
            raise BadFile(
                f"replay of '{attack}' in '{run}'",
                needs="a run that finished at least one unit of it",
                got="none",
                fix=f"name an attack of that run: {nearest_names(attack, tuple(specs))}",
            )
        # Attacks run first and all together; the truth is opened when none runs any more.
        isolation = _run_apart(tasks, [run, Path(other)] if swap else [run], place, beside=runs_beside(run))
        rows = []
        for group, every in by_group.items():
            outcomes = [read_outcome(Path(task.out)) for task in every]
            scores = score_swapped(group, sources[group], attack, outcomes) if swap and every else {}
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
    same = same and same_claims(before.uninformed, again.uninformed)
    return {"cell": copy.name, "unit": task.unit.name, "same": same}


def runs_beside(run: Path) -> list[Path]:
    """Other runs in the same folder: of the same private data they tell as much."""
    return [place for place in sorted(run.parent.iterdir()) if place != run and (place / "cells").is_dir()]


def _run_apart(
    tasks: Sequence[AttackTask], hide: Sequence[Path], place: Path, *, beside: Sequence[Path] = ()
) -> str:
    """Run ``tasks`` in sealed processes that see nothing of ``hide``; return the means, in words.

    What lies ``beside`` is hidden, too, where a process can be sealed.

    Raises:
        BadFile: the attack's input is invalid.
        Inapplicable: there are other private data, and no process can be sealed.
        WorkerKilled: the process that ran the attack was killed.
    """
    (place / "empty").mkdir()
    (place / "stage").mkdir()
    first = tasks[0]
    cache = [str(cache_folder())]
    attack = attack_of(first.plugin)
    foreign = is_foreign(attack)
    # Beside its own code, too, a plug-in may have kept what it found in this run or in those before it.
    left = beside_code(type(attack), since=begun([hide[0], *beside])) if foreign else Beside()
    orders = {
        "seal": True,
        "stage": str(place / "stage"),
        "hide": [*map(str, [*hide, *beside, *left.hide]), *(cache if foreign else [])],
        "show": [*map(str, left.show), *([] if foreign else cache)],
        "write": [str(place)],
        "working_folder": str(place / "empty"),
    }
    if _start(tasks, orders, place):
        return f"a process without network, files to write and the run{left.words}"
    if len(hide) > 1:
        raise Inapplicable(
            f"replay of '{first.attack}' on other private data",
            needs="a process that cannot see them: Linux with user namespaces",
            got="a system that does not allow it",
            fix="replay without --swap, or outside a container that forbids user namespaces (unshare --user)",
        )
    truths = sorted(path for path in hide[0].glob("cells/*/truth") if path.is_dir())
    with moved_aside(hide[0], truths):
        _start(tasks, {**orders, "seal": False}, place)
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


def _tasks(group: Path, source: Path, attack: str, copy: Path, trust_factory: bool) -> list[AttackTask]:
    """The finished units of an attack in ``group``, on a copy of the adversary's part of ``source``."""
    scenario = read_resolved(group / "scenario.toml")
    tasks = []
    for position, spec in enumerate(scenario.attacks):
        if spec.name != attack:
            continue
        key = attack_key(position, spec)
        for path in sorted((group / "claims" / key).glob("*/claims.json")):
            for part in SIDE:
                if (source / part).is_dir() and not (copy / part).exists():
                    shutil.copytree(source / part, copy / part)
            tasks.append(
                AttackTask(
                    folder=str(copy),
                    out=str(copy / "claims" / key / path.parent.name),
                    plugin=spec,
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


def simulate_anew(group: Path, folder: Path) -> Path:
    """Simulate the federation of ``group`` in ``folder``, with other private data and all else the same.

    Raises:
        BadFile: it was captured, so that there is nothing to simulate, or the simulation refused.
    """
    scenario, record = read_resolved(group / "scenario.toml"), read_record(group)
    if scenario.captured:
        raise BadFile(
            f"federation of '{group.name}'",
            needs="one that was simulated, to simulate it anew with other private data",
            got="one that was captured",
            fix="replay without --swap",
        )
    folder.mkdir(parents=True)
    shutil.copy(group / "scenario.toml", folder / "scenario.toml")
    simulate(Group(folder=str(folder), seed=record.seed + OTHER_DATA, active=record.active))
    if (refusal := read_record(folder).refusal) is not None:
        raise BadFile(f"federation of '{group.name}'", needs=refusal.needs, got=refusal.got, fix=refusal.fix)
    return folder


def score_swapped(group: Path, other: Path, attack: str, claims: Sequence[Outcome]) -> Mapping[str, Any]:
    """The first defined audited metric: in the run, and of new claims on new victims and on the run's.

    Args:
        group: of the run.
        other: simulated anew.
        attack: registered name.
        claims: of the attack about ``other``.

    Returns:
        ``metric``, ``in_the_run``, ``new_victims``, ``old_victims``; empty: no metric is defined for all
        three.
    """
    scenario = read_resolved(group / "scenario.toml")
    keys = (attack_key(i, spec) for i, spec in enumerate(scenario.attacks) if spec.name == attack)
    finished = (sorted((group / "claims" / key).glob("*/claims.json")) for key in keys)
    before = [read_outcome(path.parent) for path in next(filter(None, finished), [])]
    (old, _), (new, book) = read_ground(group, scenario), read_ground(other, scenario)
    # Of an attack that remembers the new claims fit the run's victims; of one that reads, the new ones.
    for plugin in scenario.audit.metrics:
        metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
        pairs = ((before, old), (claims, new), (claims, new.against(old.truth)))
        try:
            scores = [
                score_outcomes(plugin.name, metric, outcomes, ground, book) for outcomes, ground in pairs
            ]
            values = [value_of(one, metric, rng=Rng.root(0)).value for one in scores if one is not None]
        except Undefined:
            continue
        if len(values) == len(pairs):
            return dict(
                zip(
                    ("metric", "in_the_run", "new_victims", "old_victims"),
                    (plugin.name, *values),
                    strict=True,
                )
            )
    return {}

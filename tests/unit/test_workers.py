"""Worker processes: they do not outlive the process that started them."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from glasshouse import registry
from glasshouse.audit.plan import Plan
from glasshouse.audit.scoring.tasks import CellResult
from glasshouse.audit.stages import Stages
from glasshouse.executors.base import Answer
from glasshouse.executors.local import PRELOAD
from glasshouse.process import Workers

SCRIPT = """
import os, sys, time
from glasshouse.process import Workers

def pid(seconds):
    sys.stdout.write(f"{os.getpid()}\\n")
    sys.stdout.flush()
    time.sleep(seconds)

if __name__ == "__main__":
    with Workers(2) as workers:
        list(workers.each(pid, [60, 60]))
"""


def alive(process: int) -> bool:
    """Does it run? One that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the state of processes from /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "audit.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(alive(w) for w in workers)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while any(alive(w) for w in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(alive(w) for w in workers)


def who(_: int) -> tuple[int, str]:
    return os.getpid(), os.environ.get("GLASSHOUSE_TEST_MARK", "")


def test_one_job_apart_runs_in_another_process_that_the_next_block_does_not_reuse(monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_TEST_MARK", "set after the server of workers may have started")
    workers = []
    for _ in range(2):
        with Workers(1, apart=True) as pool:
            answers = set(pool.each(who, [1]))
        assert {mark for _, mark in answers} == {os.environ["GLASSHOUSE_TEST_MARK"]}
        workers += [pid for pid, _ in answers]
    assert len({*workers, os.getpid()}) == 3


def test_one_job_that_is_not_apart_stays_in_this_process():
    with Workers(1) as pool:
        assert list(pool.each(who, [1])) == [who(1)]


def test_plugins_of_other_packages_are_not_imported_for_all_workers(monkeypatch):
    """One that was imported before the fork could change the processes that score."""
    values = "glasshouse.attacks.inversion.dlg:DLG", "theirs.attack:Theirs", "glasshouse_more.attack:More"
    points = (EntryPoint(name=value, value=value, group="glasshouse.attacks") for value in values)
    entries = {point.name: (point,) for point in points}
    monkeypatch.setattr(registry, "_entries", lambda group: entries if group == "attacks" else {})
    assert registry.own_modules("attacks", "figures") == ("glasshouse.attacks.inversion.dlg",)
    assert "glasshouse.attacks.inversion.dlg" in PRELOAD


@pytest.mark.parametrize(("jobs", "pieces"), [(1, [["a", "aa"], ["b"]]), (2, [["a"], ["aa"], ["b"]])])
def test_tasks_of_a_part_are_one_piece_where_parts_are_many(tmp_path, jobs, pieces):
    """From two parts per process on: they share what one process keeps."""
    submitted = []
    workers = SimpleNamespace(jobs=jobs, submit=submitted.append)
    stages = Stages(workers=workers, run=tmp_path, device="cpu", log=None)
    tasks = [("first", "a"), ("first", "aa"), ("second", "b")]
    stages._submit_by_part(str.upper, tasks, "scores")
    assert [piece.work(piece.task) for piece in submitted] == [[t.upper() for t in one] for one in pieces]
    assert [piece.part for piece in submitted] == ["first", *["first"] * (jobs - 1), "second"]


def test_the_server_of_workers_imports_everything_once_and_never_collects_it():
    check = (
        "import gc, sys; import glasshouse.executors.server; from glasshouse.executors.local import PRELOAD;"
        "assert gc.isenabled(); assert set(PRELOAD) <= set(sys.modules); print(gc.get_freeze_count())"
    )
    frozen = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert int(frozen.stdout) > 100_000


@pytest.mark.parametrize(("jobs", "pieces"), [(1, [["shown", "clip", "noise"], ["else"]]), (2, 4)])
def test_cells_of_equal_victims_are_scored_in_one_process_where_cells_are_many(
    tmp_path, monkeypatch, jobs, pieces
):
    """They meet the same null adversaries; where processes would wait, each cell is a piece of its own."""
    plans = {
        name: Plan(cell=SimpleNamespace(hash=name), system=f"of {name}", groups=())
        for name in ("clip", "shown", "noise", "else")
    }
    shown = dict.fromkeys(("clip", "shown", "noise"), plans["shown"])
    monkeypatch.setattr("glasshouse.audit.stages.attack_tasks", lambda *_: ())
    monkeypatch.setattr("glasshouse.audit.stages.with_powers", lambda family, _: family.rest)
    scored = []

    class Queue:
        def __init__(self):
            self.jobs, self.waiting = jobs, []

        def submit(self, piece):
            self.waiting.append(piece)

        def finished(self):
            while self.waiting:
                piece = self.waiting.pop(0)
                families = piece.task[1]
                cells = [one.cell.hash for f in families for one in (f.shown, *f.rest)]
                scored.append(cells)
                results = [[(name, CellResult(facts=None, drawing=0.25)) for name in cells]]
                yield piece, Answer(value=results, seconds=1.0, cpu_seconds=1.0, peak_mb=0.0)

    log = SimpleNamespace(write=lambda *_, **__: None)
    stages = Stages(workers=Queue(), run=tmp_path, device="cpu", log=log)
    assert stages.score(list(plans.values()), [], {}, shown).keys() == plans.keys()
    assert scored == pieces if jobs == 1 else [len(cells) for cells in scored] == [1] * pieces
    # What figures take is told apart from what scores take.
    assert stages.spent == {"scores": len(scored) - 1.0, "figures": 1.0}

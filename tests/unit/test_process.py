"""How a process computes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glasshouse.errors import WorkerKilled
from glasshouse.federation.crew import ProcessCrew
from glasshouse.process import (
    Workers,
    charge_from_start,
    crewed,
    each,
    first_second,
    flushed_subnormals,
    prepare_process,
    running_time,
    tree_time,
)
from glasshouse.progress import listen


def test_a_settled_process_has_one_thread_and_may_be_settled_again() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        prepare_process()
        prepare_process()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_freed_memory_is_kept_on_linux_and_elsewhere_nothing_is_asked_for(monkeypatch) -> None:
    results: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: results.append(given))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "win32")
    prepare_process()
    assert results == []
    monkeypatch.setattr(sys, "platform", "linux")
    prepare_process()
    assert results == [(-3, 2**28), (-1, 2**29)]  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h


def _where(task: torch.Tensor) -> tuple[float, int]:
    return float(task.sum()), os.getpid()


def test_pieces_go_to_processes_of_their_own_and_come_back_in_order_with_progress() -> None:
    advanced: list[str] = []
    bar = SimpleNamespace(advance=lambda: advanced.append("one"), close=lambda: advanced.append("end"))
    listener = SimpleNamespace(begin=lambda label, total: advanced.append(f"{label}/{total}") or bar)
    tasks = [torch.full((3,), float(i)) for i in range(4)]
    with listen(listener):
        results = each(_where, tasks, processes=2, label="pieces")
    assert [value for value, _ in results] == [0.0, 3.0, 6.0, 9.0]
    assert os.getpid() not in {process for _, process in results}
    assert advanced == ["pieces/4", "one", "one", "one", "one", "end"]
    assert {process for _, process in each(_where, tasks, processes=1, label="pieces")} == {os.getpid()}
    assert not any(t.is_shared() for t in tasks)


def test_subnormals_count_as_zero_where_networks_compute_and_nowhere_else() -> None:
    tiny = torch.tensor(1e-40)
    with flushed_subnormals():
        assert float(tiny * 1) == 0
    assert float(tiny * 1) > 0


@pytest.mark.parametrize("deviation", [1e-20, 1e-6, 1.0])
def test_noise_is_the_same_where_subnormals_are_flushed(deviation: float) -> None:
    def draw() -> torch.Tensor:
        return deviation * torch.randn(10_000, generator=torch.Generator().manual_seed(7))

    kept = draw()
    with flushed_subnormals():
        assert torch.equal(draw(), kept)
    assert kept.std() == pytest.approx(deviation, rel=0.03)


BUSY = """
import os, time
if os.fork() == 0:
    while time.process_time() < 0.5:
        pass
    os._exit(0)
os.wait()
print("ready", flush=True)
while True:
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads running processes from /proc")
def test_the_tree_counts_what_runs_what_ended_and_what_was_killed_once() -> None:
    before = tree_time()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = tree_time() - before
        assert running > 0.4  # the grandchild's half second, though the child still runs
        assert running_time() > 0.4
        child.send_signal(signal.SIGKILL)
    assert tree_time() - before >= running - 0.05


def _work(seconds: float) -> float:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return seconds


def _killed(_: int) -> None:
    _work(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no server of workers")
def test_the_tree_holds_workers_and_those_that_were_killed() -> None:
    before = tree_time()
    with Workers(1, apart=True) as workers:
        list(workers.each(_work, [0.5, 0.5]))
    assert tree_time() - before > 0.9
    before = tree_time()
    with pytest.raises(WorkerKilled), Workers(1, apart=True) as workers:
        list(workers.each(_killed, [1]))
    assert tree_time() - before > 0.4


def _setting(_: int) -> None:
    raise AssertionError("asked for no client")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a crew's processes are waited for")
def test_a_crew_is_charged_to_the_process_that_called_it() -> None:
    before = crewed[0]
    with ProcessCrew(2, make=_setting, task=1) as crew:
        list(crew._workers.each(_work, [0.4, 0.4]))
    assert crewed[0] - before > 0.7


def test_only_a_process_that_was_started_for_it_is_charged_from_its_start() -> None:
    assert first_second() == pytest.approx(tree_time(), abs=0.1)
    charge_from_start()
    assert first_second() == 0.0
    assert first_second() > 0.0


def _ends(task: tuple[str, str]) -> str:
    """End the process as often as the task says, then answer."""
    name, folder = task
    before = len(list(Path(folder).glob(f"{name}-*")))
    if before < int(name[-1]):
        (Path(folder) / f"{name}-{before}").touch()
        os._exit(0)
    return name


@pytest.mark.skipif(sys.platform == "win32", reason="processes start slowly")
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_ends_its_process_runs_again_and_if_it_does_so_alone_is_answered_for(jobs, tmp_path) -> None:
    names = ["a0", "once1", "b0", "ever9", "c0", "d0"]
    with Workers(jobs, apart=True, if_lost=lambda task: f"lost {task[0]}") as workers:
        for name in names:
            workers.submit(_ends, (name, str(tmp_path)))
        answers = {task[0]: answer for task, answer in workers.finished()}
    assert answers == {name: "lost ever9" if name == "ever9" else name for name in names}
    assert len(list(tmp_path.glob("ever9-*"))) <= 3

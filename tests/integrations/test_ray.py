"""Audits on a Ray cluster: the same results, also where a worker or the driver is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import local_cluster

from glasshouse.integrations.ray import Ray
from glasshouse.testing.executor_contract import ExecutorContract

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds Ray's workers in /proc"),
]

SCENARIO = """
name = "rays"
[data]
examples = 2
auxiliary = 60
heldout = 60
[model]
name = "mlp"
[federation]
clients = 4
rounds = 2
[[attacks]]
name = "inverting_gradients"
search.iterations = 400
[axes]
"federation.batch_size" = [1, 2]
[audit]
metrics = ["psnr"]
"""
DRIVER = """
import sys
from glasshouse.executors.base import Piece
from glasshouse.integrations.ray import Ray
from glasshouse.testing.executor_contract import once

folder, address = sys.argv[1:]
with Ray(jobs=2, address=address).start() as workers:
    for name in "abcdef":
        workers.submit(Piece(work=once, task=(folder + "/notes", name, 3.0), label="notes", room="plug-ins",
                             lock=folder + "/lock-" + name))
    for _, answer in workers.finished():
        print(answer.value, flush=True)
"""


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    with local_cluster(2) as address:
        yield address


class TestRay(ExecutorContract):
    @pytest.fixture
    def executor(self, cluster):
        return Ray(jobs=2, address=cluster)


def timeless(value: Any) -> Any:
    """Without what a clock says, and the manifest but for its hashes."""
    if isinstance(value, dict):
        kept = {k: timeless(v) for k, v in value.items() if k not in ("seconds", "manifest")}
        return {**kept, "cells": value["manifest"]["cells"]} if "manifest" in value else kept
    return [timeless(v) for v in value] if isinstance(value, list) else value


def audit(place: Path, out: str, *more: str) -> "subprocess.Popen[bytes]":
    (place / "rays.toml").write_text(SCENARIO)
    start = "from glasshouse.cli import main; main()"
    with (place / f"{out}.said").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", start, "audit", "rays.toml", "--out", out, *more],
            cwd=place,
            stdout=output,
            stderr=output,
        )


def workers_on(task: str) -> list[int]:
    """Processes that work on a Ray task of that name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:
            continue
        if title.startswith(f"ray::{task}".encode()):
            found.append(int(path.parent.name))
    return found


def wait_for(what: Any, seconds: float = 240) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def claims(run: Path) -> dict[str, int]:
    """When each finished call of an attack was written."""
    return {str(p): p.stat().st_mtime_ns for p in run.glob("cells/*/claims/*/*/claims.json")}


def test_a_killed_worker_and_a_killed_driver_change_no_result(tmp_path, cluster):
    whole = audit(tmp_path, "whole", "--jobs", "2")
    assert whole.wait(timeout=600) == 0, (tmp_path / "whole.said").read_text()
    ray = ("--executor", "ray", "--address", cluster)

    before = set(workers_on("attacks"))
    broken = audit(tmp_path, "broken", *ray)
    os.kill(wait_for(lambda: set(workers_on("attacks")) - before).pop(), signal.SIGKILL)
    assert broken.wait(timeout=600) == 0, (tmp_path / "broken.said").read_text()

    killed = audit(tmp_path, "killed", *ray)
    wait_for(lambda: len(claims(tmp_path / "killed")) >= 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=60)
    assert not (tmp_path / "killed" / "result.json").exists()
    kept = claims(tmp_path / "killed")
    resumed = audit(tmp_path, "killed", "--resume", "--jobs", "2")  # with another executor
    assert resumed.wait(timeout=600) == 0, (tmp_path / "killed.said").read_text()
    assert claims(tmp_path / "killed").items() >= kept.items()

    results = {
        run: json.loads((tmp_path / run / "result.json").read_text()) for run in ("whole", "broken", "killed")
    }
    assert timeless(results["broken"]) == timeless(results["whole"])
    assert timeless(results["killed"]) == timeless(results["whole"])
    assert results["whole"]["findings"]
    assert results["broken"]["manifest"]["executor"] == "ray"


def test_pieces_end_once_and_never_overlap_however_often_their_process_or_driver_is_killed(tmp_path, cluster):
    command = [sys.executable, "-c", DRIVER, str(tmp_path), cluster]
    notes = tmp_path / "notes"

    def written(word: str) -> list[tuple[str, int]]:
        lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        return [(name, int(pid)) for kind, name, pid in lines if kind == word]

    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, pid = wait_for(lambda: written("begin"))[0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(written("end")) >= 2)
    driver.send_signal(signal.SIGKILL)
    driver.wait(timeout=60)
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert sorted(again.stdout.split()) == list("abcdef")  # nothing is lost
    ended = Counter(name for name, _ in written("end"))
    assert ended == dict.fromkeys("abcdef", 1)  # nothing ends twice
    begun = Counter(name for name, _ in written("begin"))
    assert sum(begun.values()) <= 6 + 3  # again: what was killed with its worker, or with its driver
    for name in "abcdef":
        words = [line.split()[0] for line in notes.read_text().splitlines() if line.split()[1] == name]
        assert words == ["begin"] * begun[name] + ["end"]  # and nothing runs beside itself

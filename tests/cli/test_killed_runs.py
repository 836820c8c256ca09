"""A run that is killed goes on where it was, and a killed worker is one plain error."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from glasshouse.errors import WorkerKilled
from glasshouse.process import Workers, each

KILLS = 8
SCENARIO = """
name = "killed"
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
search.iterations = 150
[[attacks]]
name = "linear_input"
[axes]
"federation.batch_size" = [1, 2]
[audit]
metrics = ["psnr"]
controls = false
seeds = [0, 1]
"""


def end(task: int) -> int:
    """As the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_killed_worker_says_how_to_go_on():
    with pytest.raises(WorkerKilled, match="out of memory") as caught, Workers(2) as workers:
        list(workers.each(end, [1, 2]))
    assert "--jobs 1 --resume" in caught.value.fix
    assert caught.value.exit_code == 2  # as the README says
    with pytest.raises(WorkerKilled, match="was killed"):
        each(end, [1, 2], processes=2, label="ends")


def audit(place: Path, out: str, *, resume: bool = False) -> subprocess.Popen[bytes]:
    """The command line, in a process group of its own."""
    (place / "killed.toml").write_text(SCENARIO)
    start = "from glasshouse.cli import main; main()"
    command = [sys.executable, "-c", start, "audit", "killed.toml", "--out", out, "--jobs", "2"]
    with (place / "said.txt").open("ab") as output:
        return subprocess.Popen(
            [*command, *(["--resume"] if resume else [])],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )


def timeless(value: Any) -> Any:
    """Without what a clock says, and the manifest but for its hashes."""
    if isinstance(value, dict):
        kept = {k: timeless(v) for k, v in value.items() if k not in ("seconds", "manifest")}
        return {**kept, "cells": value["manifest"]["cells"]} if "manifest" in value else kept
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_eight_kills_at_random_moments_change_nothing(tmp_path):
    started = time.monotonic()
    whole = audit(tmp_path, "whole")
    assert whole.wait(timeout=300) == 0, (tmp_path / "said.txt").read_text()
    longest = 0.6 * (time.monotonic() - started)
    moments = random.Random(15)
    kills, resume = 0, False
    while kills < KILLS:
        process = audit(tmp_path, "broken", resume=resume)
        try:
            process.wait(timeout=moments.uniform(1.0, longest))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)
            kills, resume = kills + 1, True
        else:  # it was finished before its moment came: another one is killed
            shutil.rmtree(tmp_path / "broken")
            resume = False
    last = audit(tmp_path, "broken", resume=True)
    assert last.wait(timeout=300) == 0, (tmp_path / "said.txt").read_text()
    before, after = (json.loads((tmp_path / run / "result.json").read_text()) for run in ("whole", "broken"))
    assert timeless(after) == timeless(before)
    assert before["findings"]

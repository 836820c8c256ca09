"""Ctrl-C ends an audit within seconds, however long its pieces take; what is finished is kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glasshouse.cli.parts.interrupts import CLEAN_UP, PATIENCE, one_interrupt

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the state of processes from /proc")

BOUND = 10.0
"""Seconds in which an interrupted command ends, on a machine that is busy with other things."""
ENTRIES = "[glasshouse.defenses]\nendless = endless:Endless\n"
DEFENCE = '''
"""A defence that never ends, until there is a file 'go'; it keeps a core inside a library."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch

from glasshouse.registry import Card
from glasshouse.wire import Mechanism


@dataclass(frozen=True, kw_only=True)
class Endless:
    card: ClassVar[Card] = Card(summary="never ends")
    place: ClassVar[Literal["update"]] = "update"

    def describe(self):
        return Mechanism(name="endless", place="update", parameters={})

    def update(self, update, *, rng):
        large = torch.rand(1500, 1500)
        while not Path("go").exists():
            large @ large
            Path("started").touch()
        return update
'''
SCENARIO = """
name = "slow"
[data]
examples = 2
auxiliary = 60
heldout = 60
[model]
name = "mlp"
[federation]
clients = 2
batch_size = 1
[[attacks]]
name = "linear_input"
[axes]
defenses = [{ label = "none", value = [] }, { label = "endless", value = [{ name = "endless" }] }]
[audit]
metrics = ["psnr"]
controls = false
"""


@pytest.fixture(autouse=True)
def answers_interrupts():
    """Where the tests run in the background of a script, they and what they start would ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line in ``place``, as a terminal would start it: in a process group of its own."""
    (place / "slow.toml").write_text(SCENARIO)
    (place / "endless.py").write_text(DEFENCE)
    info = place / "endless-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: endless\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    path = os.pathsep.join(p for p in (str(place), os.environ.get("PYTHONPATH")) if p)
    return subprocess.Popen(
        [sys.executable, "-c", "from glasshouse.cli import main; main()", *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, *, seconds: float) -> bool:
    """Whether ``condition`` became true in time."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def running(session: int) -> list[int]:
    """The processes of this session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended meanwhile
            continue
        if int(own) == session and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def interrupt(process: subprocess.Popen[str], *, whole_group: bool, times: int) -> tuple[int, str]:
    """Press Ctrl-C, impatiently; return the exit code and what was said, in less than ``BOUND`` seconds."""
    began = time.monotonic()
    for _ in range(times):
        try:
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert time.monotonic() - began < BOUND
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize(("whole_group", "times"), [(True, 1), (True, 20), (False, 3)])
def test_an_interrupt_does_not_wait_for_a_slow_piece(tmp_path, whole_group, times):
    """From a terminal all processes get the signal; from a supervisor, only the first one."""
    arguments = ["audit", "slow.toml", "--out", "run", "--jobs", "2"]
    process = start(tmp_path, *arguments)
    begun = wait_for(
        lambda: (tmp_path / "started").exists() and list(tmp_path.glob("run/cells/*/group.json")), seconds=90
    )
    assert begun, process.poll()
    code, said = interrupt(process, whole_group=whole_group, times=times)
    assert code == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert wait_for(lambda: not running(process.pid), seconds=BOUND)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("run/cells/*/group.json")}
    assert len(kept) == 1
    assert not (tmp_path / "run" / "result.json").exists()

    (tmp_path / "go").touch()
    again = start(tmp_path, *arguments, "--resume")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    assert len(list(tmp_path.glob("run/cells/*/group.json"))) == 2
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.slow
def test_an_interrupt_while_workers_start_is_as_plain(tmp_path):
    """The server from which workers are forked is still importing: it would print a traceback."""
    process = start(tmp_path, "audit", "slow.toml", "--out", "run", "--jobs", "2")
    assert wait_for(lambda: len(running(process.pid)) > 2, seconds=90)
    code, said = interrupt(process, whole_group=True, times=2)
    assert code == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert wait_for(lambda: not running(process.pid), seconds=BOUND)


LONG_CALL = """
import hashlib
from glasshouse.cli.parts.interrupts import one_interrupt
with one_interrupt():
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
SWALLOWED = """
import time
from glasshouse.cli.parts import interrupts
interrupts.CLEAN_UP = 0.5
with interrupts.one_interrupt():
    while True:
        try:
            print("started", flush=True)
            time.sleep(60)
        except BaseException:
            print("swallowed", flush=True)
"""


@pytest.mark.parametrize("script", [LONG_CALL, SWALLOWED], ids=["a call of minutes", "swallowed"])
def test_a_process_that_does_not_answer_is_ended(script):
    """Python runs no handler during a call into a library; a plug-in may catch everything."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(1.0)  # until it is in the call
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.count("--resume") == 1
    assert time.monotonic() - began < PATIENCE + BOUND


def test_without_an_interrupt_everything_is_as_before():
    before = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    with one_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)) == before
    assert PATIENCE < CLEAN_UP


def test_an_interrupt_that_is_ignored_stays_ignored():
    """As in a script's background job: whoever started it does not want it to end with Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with one_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

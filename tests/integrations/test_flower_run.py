"""One real federation: ``flwr run`` with a SuperLink and SuperNodes over the loopback, captured.

It runs the example as a reader does. One node is killed on the way.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import flwr
import pytest

import glasshouse
from glasshouse.transcript.files import read_transcript

EXAMPLE = Path(__file__).parents[2] / "examples/flower-quickstart"
BIN = Path(flwr.__file__).parents[4] / "bin"
CONFIG = """
[superlink]
default = "loopback"

[superlink.loopback]
address = "127.0.0.1:{port}"
insecure = true
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(condition, *, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)


@contextmanager
def started(command, log, **settings):
    """A process in a group of its own, which ends with the test."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, **settings)
    try:
        yield process
    finally:
        kill(process)


def kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_federation_over_the_loopback_of_which_a_node_is_killed(tmp_path):
    port, home = free_port(), tmp_path / "home"
    (home / "flwr").mkdir(parents=True)
    (home / "flwr/config.toml").write_text(CONFIG.format(port=port))
    shutil.copytree(EXAMPLE, tmp_path / "app")
    environment = {
        **os.environ,
        "HOME": str(home),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(glasshouse.__file__).parents[1]),
    }
    capture, link = home / "glasshouse/capture", f"127.0.0.1:{port}"
    lines = capture / "transcript/rounds.jsonl"

    def command(name, *arguments):
        return [str(BIN / name), *arguments]

    def node(number):
        settings = f"partition-id={number} num-partitions=2"
        call = command("flower-supernode", "--insecure", "--superlink", link, "--port", str(free_port()))
        return started([*call, "--node-config", settings], tmp_path / f"node{number}.log", env=environment)

    server = command("flower-superlink", "--insecure", "--port", str(port))
    server.append("--disable-runtime-dependency-installation")
    with started(server, tmp_path / "link.log", env=environment), node(0), node(1) as doomed:
        nodes = tmp_path / "link.log"
        wait_for(lambda: nodes.read_text().count("Activated node_id") == 2, seconds=120, what="two nodes")
        run = command("flwr", "run", str(tmp_path / "app"), "loopback", "--stream")
        with started(run, tmp_path / "run.log", env=environment) as running:
            wait_for(
                lambda: lines.is_file() and lines.read_text().count('"update"') >= 2,
                seconds=300,
                what="round 0",
            )
            kill(doomed)
            running.wait(timeout=600)
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    first, *later = transcript.rounds
    assert len(first.updates) == 2
    assert len(transcript.rounds) == 3
    assert len(later[-1].updates) == 1
    assert [len(r.dropouts) for r in transcript.rounds] in ([0, 1, 0], [0, 0, 1], [0, 1, 1])

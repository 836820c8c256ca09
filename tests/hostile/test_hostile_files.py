"""Files from strangers: one error with its four parts, no code run, nothing read outside, little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile import hostile_driver
from tests.hostile.hostile_driver import CASES, SECONDS, allowed
from tests.hostile.hostile_files import SCENARIO, SHOWN

from glasshouse.cli import main

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

GIBIBYTE = 2**30


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small honest run."""
    place = tmp_path_factory.mktemp("honest")
    (place / "mine.toml").write_text(SCENARIO.format(source="digits"))
    with pytest.raises(SystemExit) as stop:
        main(["audit", str(place / "mine.toml"), "--out", str(place / "run"), "--jobs", "1"])
    assert stop.value.code == 0
    return place / "run"


@pytest.fixture(scope="module")
def happened(honest: Path, tmp_path_factory: pytest.TempPathFactory):
    """What every case did: all run in one process of their own."""
    place = tmp_path_factory.mktemp("hostile")
    root = Path(hostile_driver.__file__).parents[2]
    command = [sys.executable, "-m", "tests.hostile.hostile_driver", str(place / "cases"), str(honest)]
    done = subprocess.run(
        [*command, str(place / "happened.json")],
        cwd=root,
        # The limit of a small machine: that of this one would let the 9 * 10^8 numbers of a case pass.
        env={**os.environ, "PYTHONPATH": str(root), "GLASSHOUSE_MOST_NUMBERS": str(2**28)},
        capture_output=True,
        text=True,
        timeout=len(CASES) * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((place / "happened.json").read_text())


def test_there_are_enough_cases():
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_and_harms_nobody(name, happened):
    one = happened[name]
    assert one["crash"] == ""
    assert "Traceback" not in one["said"]
    assert not one["evil"]
    assert one["outside"] == []
    assert one["seconds"] <= SECONDS
    assert one["grown"] < GIBIBYTE
    assert "\x1b" not in one["said"]
    if name in SHOWN:
        assert one["code"] == 0
    elif name == "model: names that are markup":
        assert one["code"] == 1
        assert "[/bold]" in one["said"]
    else:
        assert one["code"] == 2
        assert all(f"  {part}" in one["said"] for part in ("needs", "got", "fix"))


def test_cases_are_refused_for_reasons_of_their_own(happened):
    """Many cases with one reason would mean that most were never looked at."""
    reasons = {line for one in happened.values() for line in one["said"].splitlines() if "  got  " in line}
    assert len(reasons) > 0.7 * len(CASES)


def test_the_honest_run_replays(honest, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["replay", str(honest), "--attack", "linear_input"])
    assert stop.value.code == 0
    assert "same claims" in capsys.readouterr().out


def test_a_trusted_factory_is_imported(honest, tmp_path, monkeypatch):
    """The fence can be opened, so the cases above do test it."""
    CASES["agreed: a factory of the current folder"](tmp_path, honest)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit):
        main(["guard", "m.safetensors", "--agreed", "terms.json", "--trust-factory"])
    assert (tmp_path / "EVIL").exists()


def test_a_path_outside_is_noticed(tmp_path):
    assert not "/etc/passwd".startswith(allowed(tmp_path))

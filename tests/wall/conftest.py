"""A small finished audit, and its adversary's side alone, for every fence to be tried on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.wall.cheated import RAW as RAW_CHEATED
from tests.wall.cheated import installed, run_audit

from glasshouse.audit.replay import SIDE
from glasshouse.audit.run import audit
from glasshouse.results.records import Result
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite

SECRET_NAME = "hospital-seven"
RAW = {
    "name": SECRET_NAME,
    "seed": 3,
    "data": {"auxiliary": 60, "heldout": 60, "examples": 3},
    "model": {"name": "mlp"},
    "federation": {"clients": 4, "batch_size": 1},
    "defenses": [{"name": "gaussian_noise", "std": 0.001}],
    "attacks": [{"name": "linear_input"}],
    "audit": {"metrics": ["psnr", "identification"], "distractors": 19, "controls": False},
}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory."""
    out = tmp_path_factory.mktemp("wall") / "run"
    suite = Suite(name="wall", members=(Member(scenario=from_dict(RAW)),), given="wall")
    audit(suite, out=out, jobs=1)
    return out


@pytest.fixture(scope="session")
def group(run: Path) -> Path:
    """The folder of the run's one group."""
    (folder,) = (run / "cells").iterdir()
    return folder


@pytest.fixture
def side(group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the adversary has, copied to where nothing else is; the test stands there."""
    for part in SIDE:
        shutil.copytree(group / part, tmp_path / "side" / part)
    monkeypatch.chdir(tmp_path / "side")
    return tmp_path / "side"


@pytest.fixture(scope="session")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Result, Path]]:
    """An audit of the twelve cheats between honest attacks, and its run directory."""
    place = tmp_path_factory.mktemp("cheats")
    with installed(place):
        yield run_audit(place / "run", RAW_CHEATED["attacks"]), place / "run"

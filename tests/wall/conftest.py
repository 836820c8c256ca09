"""Small finished audits of images and of sentences, and their adversary's side, to try each fence on."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.wall.cheated import CHEATS, PLUGINS, run_audit
from tests.wall.cheated import RAW as RAW_CHEATED
from tests.worlds import installed

from glasshouse.audit.replay import SIDE
from glasshouse.audit.run import audit
from glasshouse.results.records import Result
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite

SECRET_NAME = "hospital-seven"
COMMON: Mapping[str, Any] = {
    "name": SECRET_NAME,
    "seed": 3,
    "federation": {"clients": 4, "batch_size": 1},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One audit: what clients hold, and an attack that reads much of it in spite of a little noise.

    Attributes:
        units: what the attack is called on.
    """

    source: str
    attack: str
    metric: str
    units: tuple[str, ...]
    noise: float
    data: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def raw(self) -> dict[str, Any]:
        """The scenario."""
        return {
            **COMMON,
            "data": {"source": self.source, "auxiliary": 60, "heldout": 60, "examples": 3, **self.data},
            "model": self.model,
            "defenses": [{"name": "gaussian_noise", "std": self.noise}],
            "attacks": [{"name": self.attack}],
            "audit": {"metrics": [self.metric], "distractors": 19, "controls": False},
        }


CASES = (
    Case(
        source="digits",
        attack="linear_input",
        metric="psnr",
        units=tuple(f"round0-client{i}" for i in range(4)),
        noise=1e-3,
        data={},
        model={"name": "mlp"},
    ),
    Case(
        source="sentences",
        attack="dager",
        metric="token_accuracy",
        units=("round0",),
        noise=1e-4,
        data={"images_are_public": False},
        model={"name": "small_gpt", "width": 64},
    ),
)


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.source)
def case(request: pytest.FixtureRequest) -> Case:
    """Images, then sentences."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(scope="session")
def run(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory."""
    out = tmp_path_factory.mktemp("wall") / "run"
    suite = Suite(name="wall", members=(Member(scenario=from_dict(case.raw)),), given="wall")
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
    with installed(place, PLUGINS, "cheating_attacks", CHEATS):
        yield run_audit(place / "run", RAW_CHEATED["attacks"]), place / "run"

"""Presets start, every ``-paper`` one among them: sizes cut by ``--set``, the same code as the real run."""

import json
import tomllib

import pytest

from glasshouse.cli import main
from glasshouse.registry import arguments, load, table_of
from glasshouse.scenario.shipped import preset_text, presets

PAPER = [name for name in presets() if name.endswith("-paper")]
FROM_FILES = ["pli-mnist"]
"""Other presets on data that are not built in."""
LONG = {"ggl-paper", "pli-paper"}
"""They train a generator or translators, however small; both run in ``make slow``."""
SMALL = {
    "search": {"iterations": 2, "restarts": 1, "evaluations": 4, "population": 4},
    "iterations": 2,
    "training": {"steps": 3, "width": 4, "epochs": 1},
    "head": {"epochs": 1},
    "inversion": {"iterations": 2},
    "networks": 2,
    "method": {"pairs": 8},
    "translator": {"epochs": 1},
}
"""What attacks call their sizes; each is set where an attack takes it."""


def shorter(sizes, taken) -> list[str]:
    """``path=value`` of every size that is among the arguments, in their tables too."""
    paths = []
    for key, value in sizes.items():
        if key in taken and isinstance(value, dict):
            paths += [f"{key}.{path}" for path in shorter(value, arguments(table_of(taken[key])))]
        elif key in taken:
            paths.append(f"{key}={value}")
    return paths


def shrunk(name: str) -> list[str]:
    """``--set`` options that make a preset tiny and take the built-in digits for its data."""
    raw = tomllib.loads(preset_text(name))
    batch = raw.get("federation", {}).get("batch_size", 1)
    sets = [
        'data.source="digits"',
        *(f'data.{part}_split=""' for part in ("private", "auxiliary", "public", "heldout")),
        *(f"data.{part}=[]" for part in ("private_classes", "auxiliary_classes", "heldout_classes")),
        "data.auxiliary=120",
        "data.heldout=40",
        "data.public=60",
        f"data.examples={min(batch, 4)}",
        f"federation.batch_size={min(batch, 4)}",
        "federation.clients=2",
        f"federation.rounds={min(raw.get('federation', {}).get('rounds', 1), 2)}",
        "federation.cohort=1.0",
        "audit.rounds=[0]",
        "audit.victims=2",
        "audit.distractors=9",
        "audit.controls=false",
        f"audit.seeds={[0, 1] if raw['audit'].get('seeds') else []}",
        "axes={}",
        "axes_zipped=[]",
    ]
    if "width" in arguments(load("models", raw["model"]["name"])):
        sets.append("model.width=2")
    if "domains" in raw["data"]:
        small = {
            "targets": 4,
            "shifts": '["lower_half_mask"]',
            "identities": 0,
            "per_class": 8,
            "sensitive": 0,
            "other": '""',
        }
        sets += [f"data.domains.{key}={value}" for key, value in small.items()]
    if "members" in raw["data"]:
        sets.append("data.members=1")
    if raw["model"].get("pretraining"):
        sets.append("model.pretraining.epochs=1")
    for index, attack in enumerate(raw["attacks"]):
        parameters = arguments(load("attacks", attack["name"]))
        sets += [f"attacks.{index}.{path}" for path in shorter(SMALL, parameters)]
    return [part for text in sets for part in ("--set", text)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in (*PAPER, *FROM_FILES)],
)
def test_a_preset_runs_to_its_report(name, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["audit", name, "--out", str(tmp_path / "run"), "--jobs", "1", *shrunk(name)])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stop.value.code == 0
    assert result["findings"]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_there_are_paper_presets():
    assert len(PAPER) >= 2

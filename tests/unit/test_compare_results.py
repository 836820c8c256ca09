"""The script that compares two runs: what it lets pass, and what it must not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.compare_results import compare, main, same
from safetensors.torch import save_file

FINDING = {
    "scenario": "s",
    "cell": "c",
    "axes": {},
    "attack": "dlg",
    "metric": "psnr",
    "value": 20.0,
    "n": 8,
    "unit": "victims",
    "median": 19.0,
    "chance": None,
    "baseline": "mean auxiliary image",
    "baseline_value": 11.0,
    "gain": 9.0,
    "gain_low": 7.0,
    "gain_high": 11.0,
    "verdict": "leaks",
    "chosen": "one run, no choice",
    "control": None,
    "seconds": 1.0,
}
PICTURES = {"scenario": "s", "kind": "pictures", "title": "t", "data": {}, "file": "cells/c/truth/p.npz"}


def write_run(
    folder: Path, *, tensor: float = 1.0, pixel: float = 0.5, cell: str = "c", **changes: Any
) -> Path:
    """A run directory with one claim, one finding and one picture."""
    unit = folder / "cells" / cell / "claims" / "00-dlg" / "round0-client0"
    unit.mkdir(parents=True)
    save_file({"inputs": torch.full((1, 2), tensor)}, unit / "0.safetensors")
    line = {"kind": "Reconstruction", "about": {"rounds": [0], "client": 0}, "tensors": ["inputs"]}
    (unit / "claims.json").write_text(json.dumps({"claims": [line], "refusal": None, "seconds": 1.0}))
    (folder / "cells" / "c" / "truth").mkdir(parents=True)
    np.savez(folder / "cells" / "c" / "truth" / "p.npz", images=np.full((1, 1, 2, 2, 1), pixel))
    result = {
        "findings": [FINDING | {"cell": cell} | changes],
        "exhibits": [PICTURES],
        "refusals": [],
        "utility": [],
        "contrasts": [],
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def undeclared(before: Path, after: Path) -> list[str]:
    return [what for reason, what in compare(before, after) if not reason]


def test_a_run_equals_itself_but_for_its_seconds(tmp_path):
    before, after = write_run(tmp_path / "a"), write_run(tmp_path / "b", seconds=2.0)
    assert undeclared(before, after) == []
    assert main([str(before), str(after)]) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"value": 20.1},
        {"baseline_value": 11.1},
        {"baseline": "grey image"},
        {"gain": 8.0},
        {"n": 7},
        {"tensor": 1.0000001},
        {"pixel": 0.6},
        {"metric": "ssim"},
    ],
)
def test_what_nothing_declares_fails(tmp_path, changes):
    before, after = write_run(tmp_path / "a"), write_run(tmp_path / "b", **changes)
    assert undeclared(before, after)
    assert main([str(before), str(after)]) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "not shown"},
        {"gain_low": 6.0, "gain_high": 12.0},
        {"chosen": "a single run"},
        {"baseline": "chance", "baseline_value": 12.0, "gain": 8.0},
    ],
)
def test_what_a_decision_declares_passes(tmp_path, changes):
    assert undeclared(write_run(tmp_path / "a"), write_run(tmp_path / "b", **changes)) == []


def test_claims_of_a_renamed_cell_are_found_and_compared(tmp_path):
    before = write_run(tmp_path / "a")
    assert undeclared(before, write_run(tmp_path / "b", cell="d")) == []
    assert undeclared(before, write_run(tmp_path / "e", cell="d", tensor=1.0000001))


def test_numbers_are_the_same_within_a_millionth_and_truth_is_no_number():
    assert same(0.4025829962645038, 0.40258299626450383)
    assert not same(0.4, 0.40001)
    assert not same(True, 1)

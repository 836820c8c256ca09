"""The published bands of gradient inversion, through the shipped presets, on real test images.

``make slow`` runs them; they need CIFAR-10 in ``shared/data`` beside the checkout and minutes to hours.
"""

import json
from pathlib import Path

import pytest

from glasshouse.cli import main

CIFAR = Path(__file__).parents[3] / "shared" / "data" / "cifar10_12k.npz"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CIFAR.is_file(), reason="needs shared/data/cifar10_12k.npz beside the checkout"),
]


def audited(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The result of a preset."""
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(SystemExit) as stop:
        main(["audit", name, "--out", str(place / "run")])
    assert stop.value.code == 0
    result: dict = json.loads((place / "run" / "result.json").read_text())
    return result


def test_idlg_on_dlgs_lenet_is_nearly_exact(tmp_path, monkeypatch):
    """Zhao et al. 2020: exact recovery on this network. Too good fails too: 60 dB would be a copy."""
    table = {f["metric"]: f for f in audited("dlg", tmp_path, monkeypatch)["findings"]}
    assert table["psnr"]["n"] == 20
    assert 30 <= table["psnr"]["median"] < 60
    assert table["psnr"]["gain_low"] > 0
    assert not table["psnr"]["control"]["negative_low"] > 0
    assert table["psnr"]["control"]["passed"]


def test_simulating_local_steps_beats_reading_them_as_one(tmp_path, monkeypatch):
    """Five local mini-batch steps, same victims: the interval of the difference lies above 0."""
    result = audited("fedavg-steps", tmp_path, monkeypatch)
    (contrast,) = (c for c in result["contrasts"] if c["metric"] == "psnr")
    assert (contrast["attack"], contrast["n"]) == ("simulated steps", 20)
    assert contrast["low"] > 0
    assert all(f["gain_low"] > 0 for f in result["findings"] if f["metric"] == "psnr")

"""Generative Gradient Leakage on real faces: what Li et al. 2022 (arXiv:2203.15696) find under noise of 0.1.

``make slow`` runs it; it needs the ORL faces in ``shared/data`` beside the checkout and about three minutes.
"""

import json
from pathlib import Path

import pytest

from glasshouse.cli import main

FACES = Path(__file__).parents[3] / "shared" / "data" / "orl_faces_64.npz"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FACES.is_file(), reason="needs shared/data/orl_faces_64.npz beside the checkout"),
]

GGL = (
    '{name="ggl",label="GGL",latent=32,search={population=20,evaluations=600},'
    "training={width=16,steps=1500,batch_size=32,learning_rate=1e-3,critic_steps=2,mirror=true}}"
)
IG = '{name="inverting_gradients",label="IG",adaptive=true,search={iterations=60,restarts=1}}'
SMALL = (
    f"attacks=[{GGL},{IG}]",
    'defenses=[{name="gaussian_noise",std=0.1}]',
    "federation.clients=10",
    "audit.victims=10",
    "audit.controls=false",
    'audit.metrics=["psnr","mse_r","identification","label_accuracy","defense_named"]',
)


def test_under_noise_ggl_finds_the_person_and_inverting_gradients_does_not(tmp_path, monkeypatch):
    """The paper's claim in features and identity; too good fails too: 230 images make no copies."""
    monkeypatch.chdir(Path(__file__).parents[2])
    sets = [part for one in SMALL for part in ("--set", one)]
    with pytest.raises(SystemExit) as stop:
        main(["audit", "ggl", "--jobs", "1", "--out", str(tmp_path / "run"), *sets])
    assert stop.value.code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    table = {(f["attack"], f["metric"]): f for f in result["findings"]}
    assert all(f["n"] == 10 for f in table.values())
    assert table["GGL", "label_accuracy"]["value"] == 1
    assert table["GGL", "defense_named"]["value"] >= 0.9
    assert table["GGL", "mse_r"]["gain_low"] > 0
    assert table["GGL", "mse_r"]["high"] < table["IG", "mse_r"]["low"]
    assert 14 < table["GGL", "psnr"]["value"] < 22
    assert table["IG", "identification"]["value"] < table["GGL", "identification"]["value"] < 1

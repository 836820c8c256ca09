"""Who is behind the sums: members and attackers among 50 clients, through the presets, on real images.

``make slow`` runs them; they need CIFAR-10 in ``shared/data`` beside the checkout, and minutes. Seeds and
rounds are fewer than in docs/results/prolin.md.
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
ONE_CELL = "axes_zipped=[]"


def scores(
    preset: str, place: Path, monkeypatch: pytest.MonkeyPatch, *sets: str
) -> dict[tuple[str, str], dict]:
    """Findings of a preset by attack and metric."""
    monkeypatch.chdir(Path(__file__).parents[2])
    options = [part for text in (ONE_CELL, *sets) for part in ("--set", text)]
    with pytest.raises(SystemExit) as stop:
        main(["audit", preset, "--out", str(place / "run"), *options])
    assert stop.value.code == 0
    result = json.loads((place / "run" / "result.json").read_text())["findings"]
    return {(f["attack"], f["metric"]): f for f in result}


def test_members_are_found_behind_a_hundred_sums(tmp_path, monkeypatch):
    """Ten of 100 clients hold the example; a coin that knows this has F1 .10."""
    tables = scores("prolin-membership", tmp_path, monkeypatch, "federation.rounds=100", "audit.seeds=[0, 1]")
    best = tables["prolin_posterior", "f1"]
    assert best["value"] >= 0.75
    assert best["gain_low"] > 0
    assert tables["prolin_posterior", "auc"]["n"] == 100
    assert tables["prolin_posterior", "auc"]["value"] > 0.9
    for weaker in ("disaggregation", "ols"):
        assert best["value"] > tables[weaker, "f1"]["value"]


def test_clients_that_send_the_opposite_are_found(tmp_path, monkeypatch):
    """Five of 50, in 100 rounds."""
    tables = scores("prolin-misbehaving", tmp_path, monkeypatch, "federation.rounds=100", "audit.seeds=[0]")
    best = tables["prolin_posterior", "f1"]
    assert best["value"] >= 0.75
    assert best["gain_low"] > 0
    assert best["value"] > tables["disaggregation", "f1"]["value"]

"""What comes out of secure sums of CIFAR-10 test images, through the shipped presets, in the published bands.

``make slow`` runs them; they need CIFAR-10 in ``shared/data`` beside the checkout, and minutes (autoencoders
are trained once and cached) to an hour.
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
SIZES = (8, 32, 64, 128)
ZIPPED = f'axes_zipped=[{{"data.examples"={list(SIZES)}, "federation.batch_size"={list(SIZES)}}}]'
KINDS = {
    "gradient": ["federation.protocol=fedsgd"],
    "parameters": ["federation.protocol=fedavg", "federation.sends=parameters"],
    "three steps": ["federation.protocol=fedavg", "federation.sends=delta", "federation.local_epochs=3"],
}
ASKED = {
    "gradient": {"rate_paper": (0.945, 0.855, 0.735, 0.54), "rate_blind": (0.94, 0.84, 0.72, 0.525)},
    "parameters": {"rate_paper": (0.93, 0.81, 0.68, 0.47)},
    "three steps": {"rate_paper": (0.90, 0.78, 0.65, 0.44)},
}
"""The last row: within .03 of the row above it."""


def findings(preset: str, place: Path, monkeypatch: pytest.MonkeyPatch, *sets: str) -> list[dict]:
    """All findings of a preset."""
    monkeypatch.chdir(Path(__file__).parents[2])
    options = [part for text in sets for part in ("--set", text)]
    with pytest.raises(SystemExit) as stop:
        main(["audit", preset, "--out", str(place / "run"), *options])
    assert stop.value.code == 0
    tables: list[dict] = json.loads((place / "run" / "result.json").read_text())["findings"]
    return tables


@pytest.mark.parametrize("kind", KINDS)
def test_rates_by_size_and_by_what_clients_send(kind, tmp_path, monkeypatch):
    tables = findings("scale-mia", tmp_path, monkeypatch, ZIPPED, *KINDS[kind])
    by_place = {(f["metric"], f["axes"]["data.examples"]): f for f in tables}
    for metric, bars in ASKED[kind].items():
        for examples, bar in zip(SIZES, bars, strict=True):
            one = by_place[metric, examples]
            assert one["n"] == 20
            assert bar <= one["value"] < 0.995, (metric, 8 * examples)
            assert one["gain_low"] > 0
            assert one["control"]["passed"]
    assert by_place["leaked_labels", 8]["value"] >= 0.95


def test_larger_models_give_their_batch_away_too(tmp_path, monkeypatch):
    tables = findings("scale-mia-models", tmp_path, monkeypatch)
    rates = {f["axes"]["model.name"]: f["value"] for f in tables if f["metric"] == "rate_paper"}
    assert all(rates[f"scale_mia_{name}"] >= 0.84 for name in ("alexnet", "resnet", "vgg"))
    assert rates["scale_mia_vit"] > 0


def test_noise_of_dp_sgd_stops_it_and_clipping_alone_does_not(tmp_path, monkeypatch):
    tables = findings("scale-mia-defences", tmp_path, monkeypatch)
    rates = {f["defenses"][0]: f for f in tables if f["metric"] == "rate_blind" and f["defenses"]}
    assert rates["DP-SGD without its noise"]["value"] > 0.9
    assert rates["DP-SGD, epsilon 1"]["value"] < 0.02

"""What comes out of a head that clients fine-tune on robust features, through the preset, on real images.

``make slow`` runs it; it needs CIFAR-10 in ``shared/data`` beside the checkout, and minutes. The features see
8,000 images for six epochs instead of 45,000 for twelve, so the band is below that of docs/results/maui.md.
"""

import json
from pathlib import Path

import pytest

from glasshouse.cli import main

CIFAR = Path(__file__).parents[3] / "shared" / "data" / "cifar10_12k.npz"
SETS = (
    'data.source="npz:../shared/data/cifar10_12k.npz"',
    "data.public=8000",
    "data.auxiliary=2000",
    "axes_zipped=[]",
    'model.pretraining.adversarial.method="fgsm"',
    "model.pretraining.epochs=6",
    "federation.clients=4",
    'attacks=[{name="maui", head={mode="exemplars", output_epochs=20}}]',
)


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR.is_file(), reason="needs shared/data/cifar10_12k.npz beside the checkout")
def test_a_head_made_from_examples_gives_batches_of_eight_away(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    options = [part for text in SETS for part in ("--set", text)]
    with pytest.raises(SystemExit) as stop:
        main(["audit", "maui", "--out", str(tmp_path / "run"), *options])
    assert stop.value.code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    table = {f["metric"]: f for f in result["findings"]}
    assert table["leakage"]["value"] >= 0.9
    assert 15 < table["psnr"]["value"] < 30
    assert table["psnr"]["gain_low"] > 0
    assert table["ssim"]["gain_low"] > 0
    assert table["psnr"]["control"]["passed"]

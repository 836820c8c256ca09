"""An audit of a transfer federation, end to end on digits: findings, what clients received, exhibits."""

import json

import pytest

from glasshouse.audit.run import audit
from glasshouse.report import write_html
from glasshouse.scenario.load import load

SMALL = [
    "data.public=200", "data.auxiliary=100", "data.heldout=50", "data.examples=4", "federation.clients=2",
    "federation.batch_size=4", "model.width=8", "model.hidden=64", "model.pretraining.epochs=2",
    "attacks.maui.epochs=2", "attacks.maui.batches=10", "attacks.*.iterations=20", "audit.controls=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    where = tmp_path_factory.mktemp("transfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSHOUSE_CACHE", str(where / "cache"))
        audit(load("quickstart-transfer", SMALL), out=where / "run", jobs=1)
    return where / "run"


@pytest.fixture(scope="module")
def result(run):
    return json.loads((run / "result.json").read_text())


def test_both_attacks_are_scored_by_what_they_read(result):
    found = {(f["attack"], f["metric"]): f for f in result["findings"]}
    for attack in ("maui", "nex"):
        for metric in ("leakage", "leakage_precision", "psnr", "ssim"):
            assert (attack, metric) in found
    assert found["maui", "leakage"]["baseline_value"] == 0
    assert found["maui", "leakage"]["value"] > 0.3
    assert result["refusals"] == []


def test_what_clients_received_is_shown(result):
    shown = {e["title"]: e for e in result["exhibits"]}
    rows = {row[0]: row for row in shown["Accuracy of what clients received"]["data"]["rows"]}
    assert rows.keys() == {
        "public model, natural images",
        "public model, PGD-10 within 4/255",
        "as sent by maui",
    }
    assert all(low <= value <= high for _, value, low, high, _ in rows.values())
    curve = shown["Making of the head: maui"]["data"]["series"]
    assert [len(s["y"]) for s in curve] == [3, 3]
    boxes = shown["Entropy of the weight vectors received"]["data"]["series"]
    assert [s["name"] for s in boxes] == ["random weights", "as sent by maui"]
    (_, _, _, random, _), (_, _, _, sent, _) = shown["What a guard finds"]["data"]["rows"]
    assert (random, sent) == (0, 0)


def test_the_report_shows_it(run):
    page = write_html(run).read_text()
    assert "Making of the head: maui" in page
    assert "What a guard finds" in page

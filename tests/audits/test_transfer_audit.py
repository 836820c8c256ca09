"""An audit of a transfer federation, end to end on digits: findings, what clients received, exhibits."""

import json

import pytest

from glasshouse.audit.run import audit
from glasshouse.guard.inspect import inspect
from glasshouse.report.html import write_html
from glasshouse.scenario.load import load
from glasshouse.transcript.files import read_transcript

SMALL = [
    "data.public=200", "data.auxiliary=100", "data.heldout=50", "data.examples=4", "federation.clients=2",
    "federation.batch_size=4", "model.width=8", "model.hidden=64", "model.pretraining.epochs=2",
    "attacks.maui.head.epochs=2", "attacks.maui.head.batches=10", "attacks.*.inversion.iterations=20",
    "audit.controls=false",
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
    table = {(f["attack"], f["metric"]): f for f in result["findings"]}
    for attack in ("maui", "nex"):
        for metric in ("leakage", "leakage_precision", "psnr", "ssim"):
            assert (attack, metric) in table
    assert table["maui", "leakage"]["baseline_value"] == 0
    assert table["maui", "leakage"]["value"] > 0.3
    assert result["refusals"] == []


def test_what_clients_received_is_shown(result):
    table = {e["title"]: e for e in result["exhibits"]}
    rows = {row[0]: row for row in table["Accuracy of what clients received"]["data"]["rows"]}
    assert rows.keys() == {
        "public model, natural images",
        "public model, PGD-10 within 4/255",
        "as sent by maui",
    }
    assert all(low <= value <= high for _, value, low, high, _ in rows.values())
    curve = table["Making of the head: maui"]["data"]["series"]
    assert [(s["name"], s["x"]) for s in curve] == [
        ("leakage, epochs", [1, 2]),
        ("accuracy, epochs", [1, 2]),
        ("leakage, as sent", [3]),
        ("accuracy, as sent", [3]),
    ]
    assert "batches of 512" in table["Making of the head: maui"]["caption"]
    boxes = table["Entropy of the weight vectors received"]["data"]["series"]
    assert [s["name"] for s in boxes] == ["random weights", "as sent by maui"]
    (_, _, _, random, _), (_, _, _, sent, _) = table["What a guard finds"]["data"]["rows"]
    assert (random, sent) == (0, 0)


def test_each_attack_runs_on_its_own_federation_alone(run):
    """Passive ones on the honest federation, a malicious server's on the one that it tampered with."""
    ran = {
        path.parts[-5].partition("-")[2]: path.parts[-3]
        for path in run.glob("cells/*/claims/*/*/claims.json")
    }
    assert ran == {"": "01-nex", "0-maui": "00-maui"}
    assert len(list(run.glob("cells/*/claims/*"))) == 2


def test_the_report_shows_it(run):
    page = write_html(run).read_text()
    assert "Making of the head: maui" in page
    assert "What a guard finds" in page


def test_a_guard_is_shown_what_was_sent_in_the_attacked_rounds(tmp_path, monkeypatch):
    """Round 0 is honest; what a client meets is the head of round 1."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    changes = [*SMALL, "federation.rounds=2", 'federation.keep.rounds="all"', "audit.rounds=[1]"]
    audit(load("quickstart-transfer", changes), out=tmp_path / "run", jobs=1)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    table = {e["title"]: e for e in result["exhibits"]}
    boxes = {
        s["name"]: s["values"] for s in table["Entropy of the weight vectors received"]["data"]["series"]
    }
    transcript = read_transcript(next((tmp_path / "run").glob("cells/*-maui")) / "transcript")
    honest, crafted = (inspect(r.broadcasts[0].tensors).entropies.tolist() for r in transcript.rounds)
    assert boxes["as sent by maui"] == crafted != honest


@pytest.mark.parametrize("summed", ["true", "false"])
def test_models_before_the_attack_need_not_be_kept(tmp_path, monkeypatch, summed):
    """Of round 0 the log has the sum at most. Batches differ from round to round: two victims or more."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    changes = [*SMALL, "federation.rounds=3", "audit.rounds=[1, 2]", "data.examples=16"]
    changes += [f"federation.secure_sum={summed}"]
    audit(load("quickstart-transfer", changes), out=tmp_path / "run", jobs=1)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    leakage = [f for f in result["findings"] if (f["attack"], f["metric"]) == ("maui", "leakage")]
    assert [f["about"].split(",")[0] for f in leakage] == ["2 rounds"]
    transcript = read_transcript(next((tmp_path / "run").glob("cells/*-maui")) / "transcript")
    assert [r.round for r in transcript.rounds if r.broadcasts] == [1, 2]
    (chart,) = [e["data"] for e in result["exhibits"] if e["title"] == "Accuracy of the global model"]
    lines = {s["name"]: s for s in chart["series"]}
    assert sorted(lines) == ["global model", "under maui"]
    assert all(line["x"] == [0, 1, 2, 3] for line in lines.values())
    assert lines["global model"]["y"][0] == lines["under maui"]["y"][0] != lines["under maui"]["y"][1]


def test_silence_is_a_result(tmp_path, monkeypatch):
    """Noise that drowns every update: nothing is read of any client, and that is a leakage of 0."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    changes = [*SMALL, 'defenses=[{name="gaussian_noise", std=1.0}]', "model.pretraining.epochs=1"]
    audit(load("quickstart-transfer", changes), out=tmp_path / "run", jobs=1)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    table = {(f["attack"], f["metric"]): f for f in result["findings"]}
    for attack in ("maui", "nex"):
        assert (table[attack, "leakage"]["value"], table[attack, "leakage"]["n"]) == (0, 2)
        assert table[attack, "psnr"]["gain_low"] <= 0
    undefined = {f"metric 'leakage_precision' of attack '{attack}'" for attack in ("maui", "nex")}
    assert {r["subject"] for r in result["refusals"]} == undefined

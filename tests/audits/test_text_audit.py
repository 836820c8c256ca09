"""An audit of sentences from end to end, with the smallest attack that reads some."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from glasshouse import registry
from glasshouse.audit.replay import replay
from glasshouse.audit.run import audit
from glasshouse.audit.simulation.build import build
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.report.html import write_html
from glasshouse.scenario.load import from_dict, write_resolved
from glasshouse.scenario.suite import Member, Suite
from glasshouse.transcript.files import read_transcript

RAW = {
    "name": "letters",
    "data": {"source": "sentences", "auxiliary": 120, "heldout": 80, "images_are_public": False},
    "model": {"name": "small_gpt", "width": 48},
    "federation": {"clients": 6},
    "attacks": [{"name": "toy_reader"}],
    "audit": {
        "metrics": ["exact_sentences", "exact_claims", "token_accuracy", "sentence_identification",
                    "tokens_named", "tokens_named_right"],
        "victims": 6,
        "distractors": 60,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def reader(tmp_path_factory, monkeypatch):
    """Registers the attack of ``toy_reader.py``, here and in worker processes."""
    info = tmp_path_factory.mktemp("package") / "toy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[glasshouse.attacks]\ntoy_reader = toy_reader:ToyReader\n")
    places = [str(info.parent), str(Path(__file__).parent)]
    monkeypatch.setattr(sys, "path", [*places, *sys.path])
    monkeypatch.setenv("PYTHONPATH", ":".join(places))
    registry.look_again()
    yield
    registry.look_again()


def merged(raw, **changes):
    return {**raw, **{k: {**raw.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


def run(folder, **changes):
    scenario = from_dict(merged(RAW, **changes))
    return audit(
        Suite(name="letters", members=(Member(scenario=scenario),), given="letters"), out=folder, jobs=1
    )


@pytest.fixture(scope="module")
def open_run(tmp_path_factory):
    return tmp_path_factory.mktemp("open") / "run"


@pytest.fixture(scope="module")
def found():
    return {}


def findings(result):
    return {f.metric: f for f in result.findings}


def test_sentences_are_read_scored_beside_nulls_and_hidden_on_the_page(open_run, found):
    result = run(open_run)
    found["run"] = open_run
    every = findings(result)
    exact = every["exact_sentences"]
    assert exact.value == 1.0
    assert exact.baseline_value == 0.0
    assert exact.verdict == "leaks"
    assert exact.control.passed
    assert every["tokens_named"].baseline_value > 0.1  # common words are guessed
    assert every["exact_claims"].value == 1.0
    assert {f.baseline for f in result.findings} <= {
        "most frequent tokens by position", "random auxiliary sentence", "samples of a language model",
        "chance",
    }  # fmt: skip
    (exhibit,) = [e for e in result.exhibits if e.kind == "sentences"]
    rows = json.loads((open_run / exhibit.file).read_text())["sentences"]
    assert [row[0] for row in rows] == [row[1] for row in rows]
    private = rows[0][0]
    assert private not in (open_run / "result.json").read_text()
    page = write_html(open_run).read_text()
    assert private not in page
    assert re.search(r"\(\d+ words, hidden\)", page)
    assert private in write_html(open_run, show_private=True).read_text()


def test_the_claims_come_out_again_without_data_and_truth(found):
    rows = replay(found["run"], "toy_reader")
    assert len(rows) == 6
    assert all(row["same"] for row in rows)


def test_noise_takes_the_sentences_away(tmp_path):
    result = run(
        tmp_path / "run",
        defenses=[{"name": "gaussian_noise", "std": 1.0}],
        audit={"controls": False, "utility": False},
    )
    assert findings(result)["exact_sentences"].value == 0.0
    assert findings(result)["exact_sentences"].verdict != "leaks"


@pytest.mark.parametrize(
    ("federation", "read"),
    [
        ({"protocol": "fedavg", "learning_rate": 0.1}, 6),
        ({"protocol": "fedsgd", "sends": "parameters"}, 6),
    ],
)
def test_steps_and_parameters_are_read_like_gradients(tmp_path, federation, read):
    result = run(tmp_path / "run", federation=federation, audit={"controls": False, "utility": False})
    assert findings(result)["exact_sentences"].value * 6 == pytest.approx(read)


def simulated(folder, **changes):
    scenario = from_dict(merged(RAW, **changes))
    write_resolved(scenario, folder / "scenario.toml")
    simulate(Group(folder=str(folder), seed=0))
    return read_transcript(folder / "transcript")


@pytest.mark.parametrize(
    "defense",
    [
        {"name": "clip", "norm": 0.1},
        {"name": "prune", "share": 0.9},
        {"name": "quantise", "bits": 4},
        {"name": "subsample", "share": 0.5},
        {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0},
    ],
)
def test_defences_work_on_updates_of_language_models(tmp_path, defense):
    defense = {
        k: v
        for k, v in defense.items()
        if k in ("name", *registry.arguments(registry.load("defenses", defense["name"])))
    }
    more = {"data": {"examples": 4}, "federation": {"batch_size": 2}}
    plain = simulated(tmp_path / "plain", **more).rounds[0].updates[0].tensors
    defended = simulated(tmp_path / "defended", defenses=[defense], **more).rounds[0].updates[0].tensors
    assert plain.keys() == defended.keys()
    assert any(not torch.equal(plain[name], defended[name]) for name in plain)


def test_a_secure_sum_holds_the_sum_alone(tmp_path):
    record = simulated(tmp_path / "sum", federation={"secure_sum": True}).rounds[0]
    assert record.updates == ()
    assert record.aggregate.examples == 6


def test_frozen_embeddings_do_not_travel(tmp_path):
    sent = simulated(tmp_path / "frozen", model={"frozen": "embeddings"}).rounds[0].updates[0].tensors
    assert not [name for name in sent if "tokens" in name or "positions" in name]
    assert "body.layers.0.qkv.weight" in sent


def test_only_adapters_travel_and_the_base_is_known(tmp_path):
    pytest.importorskip("peft", reason="the extra 'text'")
    small = {"name": "gpt2", "width": 32, "layers": 2, "heads": 4, "rank": 4}
    transcript = simulated(
        tmp_path / "lora",
        model=small,
        federation={"rounds": 2, "learning_rate": 1.0, "keep": {"rounds": "all"}},
    )
    first, second = transcript.rounds
    assert all("lora_" in name for name in second.updates[0].tensors)
    assert "body.wte.weight" in first.broadcasts[0].tensors
    before, after = (
        r.updates[0].tensors["body.h.0.attn.c_attn.lora_A.default.weight"] for r in (first, second)
    )
    assert not before.any()  # as long as the second matrix is 0, the first one learns nothing
    assert after.any()


def test_other_data_need_another_model():
    with pytest.raises(Exception, match="whose numbers a layer can take"):
        build(from_dict(merged(RAW, model={"name": "convnet"})), seed=0)


@pytest.mark.parametrize("attack", [{"name": "tag"}, {"name": "lamp", "starts": 2, "every": 1, "moves": 1}])
def test_searches_that_are_cut_short_are_called_unfinished(tmp_path, attack):
    result = run(
        tmp_path / "run",
        data={"task": "classification"},
        federation={"clients": 2, "batch_size": 1},
        attacks=[{**attack, "search": {"iterations": 2, "restarts": 1}}],
        audit={"metrics": ["token_accuracy"], "victims": 2, "utility": False},
    )
    (finding,) = result.findings
    assert [search.finished for search in finding.searches] == [False, False]
    assert finding.unfinished == 2
    assert finding.verdict != "no leak found"

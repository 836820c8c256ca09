"""The terms of a capture: read where the app states them, repaired by test clients, corrected by hand."""

import json

import flower_apps as apps
import pytest
import torch
from flower_apps import message_client, message_server, numpy_client, workflow_server
from flwr.client.mod import secaggplus_mod

import glasshouse as gh
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.origins import ASSUMED, CORRECTED, STATED, TESTED
from glasshouse.cli.main import main
from glasshouse.errors import BadScenario, BadValue
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.store import read_jsonl

MINE = """
name = "mine"

[data]
source = "digits"
auxiliary = 200
auxiliary_split = "train"
heldout = 60
heldout_split = "train"

[audit]
metrics = ["label_accuracy"]
controls = false
"""


def run(
    folder, *, terms=None, config=None, recorded=2, client=message_client, server=message_server, **settings
):
    """Capture two rounds of three clients, of which the first ones are test clients."""
    mods = settings.pop("mods", [])
    test, plain = (client(mods=m, **settings) for m in ([*mods, truth_mod(folder / "client")], mods))
    clients = {100 + i: test if i < recorded else plain for i in range(3)}
    grid = InProcessGrid(apps=clients, run_config=config or {})
    captured = capture(server(rounds=2), folder / "run", model=apps.MODEL, terms=terms)
    run_in_process(captured, grid)
    if recorded:
        collect(folder / "run", [folder / "client"])
    return folder / "run"


def adam(network):
    return torch.optim.Adam(network.parameters(), lr=1e-3)


def test_what_nobody_says_is_read_from_a_test_client(tmp_path):
    found = gh.terms(run(tmp_path, optimizer=adam))
    assert found.terms.optimizer.name == "adam"
    assert (found.terms.learning_rate, found.terms.batch_size) == (apps.RATE, apps.BATCH)
    assert found.origins["batch_size"] == found.origins["optimizer.name"] == TESTED
    # The server's messages say lr = 0.05, which this app ignores: named, and not changed unasked.
    assert found.origins["learning_rate"] == "message, 'lr'"
    assert "learning_rate=0.001" in found.checked.fix
    assert gh.terms(found.folder, sets=["learning_rate=0.001"]).checked.suspect == ""


def test_a_configuration_is_read_before_a_test_client(tmp_path):
    config = {"batch-size": apps.BATCH, "local_epochs": 1, "momentum": 0.5, "optimizer": "SGD", "epochs": 3}
    found = gh.terms(run(tmp_path, config=config, recorded=0))
    assert found.origins["batch_size"] == "run configuration, 'batch-size'"
    assert found.origins["local_epochs"] == "run configuration, 'local_epochs'"
    assert found.terms.optimizer.momentum == 0.5
    assert found.assumed == ("optimizer.weight_decay", "training.mode")
    assert "optimizer.weight_decay = 0.0: assumed" in str(found)
    assert "not checked" in str(found)


def test_what_was_assumed_is_marked_on_the_page_and_in_the_log(tmp_path, caplog):
    place = run(tmp_path, recorded=0)
    assert "capture: assumed: batch_size, local_epochs, optimizer.name" in caplog.text
    (tmp_path / "mine.toml").write_text(MINE + '[[attacks]]\nname = "label_inference"\n')
    result = gh.audit(
        tmp_path / "mine.toml", captured=place, out=tmp_path / "o", jobs=1, register=False
    ).result
    assert any("assumed: batch_size, local_epochs" in note for note in result.threats[0].notes)


def test_stated_terms_are_corrected_by_hand_and_never_unasked(tmp_path, caplog, capsys):
    place = run(tmp_path, terms={**apps.TERMS, "optimizer": {"momentum": 0.9}})
    assert "optimizer.momentum is 0.9 (stated), but a test client has 0.0" in caplog.text
    with pytest.raises(SystemExit) as stop:
        main(["terms", str(place)])
    said = capsys.readouterr().out
    assert stop.value.code == 1
    assert "momentum: 0 fits" in said
    assert "correct the terms: glasshouse terms CAPTURE --set optimizer.momentum=0" in said
    with pytest.raises(SystemExit) as stop:
        main(["terms", str(place), "--set", "federation.optimizer.momentum=0", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0
    assert facts["origins"]["optimizer.momentum"] == CORRECTED
    assert facts["origins"]["batch_size"] == STATED
    assert facts["checked"]["suspect"] == ""


def test_wrong_terms_are_answered_by_the_right_ones(tmp_path):
    place = run(tmp_path, terms={**apps.TERMS, "optimizer": {"momentum": 0.9}})
    (tmp_path / "mine.toml").write_text(MINE + '[[attacks]]\nname = "label_inference"\n')
    finished = gh.audit(tmp_path / "mine.toml", captured=place, out=tmp_path / "o", jobs=1, register=False)
    (finding,) = finished.findings
    assert finding.verdict == "no power"
    assert finding.remedy == "correct the terms: glasshouse terms CAPTURE --set optimizer.momentum=0"
    page = (tmp_path / "o/report.html").read_text(encoding="utf-8")
    assert "correct the terms: glasshouse terms CAPTURE --set optimizer.momentum=0" in page
    assert "more effort" not in page


@pytest.mark.parametrize(
    "wrong", ["clients=3", "architecture.name=mlp", "nonsense=1", "batch_size=-1", "task=1"]
)
def test_what_was_observed_is_not_corrected(wrong, tmp_path):
    place = run(tmp_path, terms=apps.TERMS, recorded=0)
    before = (place / "transcript/terms.json").read_bytes()
    with pytest.raises(BadValue, match="terms of a capture"):
        gh.terms(place, sets=[wrong])
    assert (place / "transcript/terms.json").read_bytes() == before


def test_steps_behind_updates_follow_the_terms(tmp_path):
    place = run(tmp_path, terms=apps.TERMS, recorded=0)
    gh.terms(place, sets=["batch_size=4", "local_epochs=2"])
    lines = read_jsonl(place / "transcript/rounds.jsonl")
    assert {line["steps"] for line in lines if line["message"] == "update"} == {2 * apps.EXAMPLES // 4}


def test_counts_of_batches_are_noticed(tmp_path, monkeypatch, caplog):
    """As Flower's quickstarts with MONAI and BERT report: the length of the loader."""
    examples = apps.EXAMPLES
    monkeypatch.setattr(apps, "EXAMPLES", examples // apps.BATCH)

    def order(turn, number):
        return torch.arange(examples).split(apps.BATCH)

    monkeypatch.setattr(apps, "shard", lambda number: wide_shard(number, examples))
    place = run(tmp_path, terms=apps.TERMS, order=order)
    assert "num-examples count batches: a test client that trained on 16 examples reported 2" in caplog.text
    found = gh.terms(place)
    assert found.checked.suspect == ""
    lines = read_jsonl(place / "transcript/rounds.jsonl")
    assert {line["examples"] for line in lines if line["message"] == "update"} == {examples}
    assert "num-examples count batches" in str(found)


def wide_shard(number, examples):
    rows = torch.arange(number * examples, (number + 1) * examples)
    batch = apps.DIGITS.splits["test"].batch(rows)
    return batch.inputs, batch.labels


def test_settings_of_the_federation_are_refused_beside_a_capture(tmp_path):
    place = run(tmp_path, terms=apps.TERMS, recorded=0)
    (tmp_path / "mine.toml").write_text(MINE)
    for wrong in ("federation.optimizer.momentum=0.9", "model.name=mlp", 'axes={"federation.rounds"=[1, 2]}'):
        with pytest.raises(BadScenario, match=r"the capture says it.*glasshouse terms"):
            gh.check(tmp_path / "mine.toml", captured=place, sets=[wrong])


def test_a_file_for_a_capture_does_not_play_the_default_simulation(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    with pytest.raises(BadScenario, match="--captured FOLDER: this file describes no federation"):
        gh.check(tmp_path / "mine.toml")


def test_check_chooses_the_attacks_of_a_capture_and_audit_runs_them(tmp_path, capsys):
    place = run(tmp_path, terms=apps.TERMS)
    (tmp_path / "mine.toml").write_text(MINE + 'budget = "1 s"\n')
    with pytest.raises(SystemExit) as stop:
        main(["check", str(tmp_path / "mine.toml"), "--captured", str(place)])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    assert "1. label_inference: measured strength" in said
    result = gh.audit(
        tmp_path / "mine.toml", captured=place, out=tmp_path / "o", jobs=1, register=False
    ).result
    assert {f.attack for f in result.findings} == {"label_inference"}


def test_a_secure_sum_says_which_attacks_can_run_on_it(tmp_path):
    place = run(
        tmp_path, terms=apps.TERMS, client=numpy_client, mods=[secaggplus_mod],
        server=lambda rounds: workflow_server(rounds, secure=True),
    )  # fmt: skip
    found = gh.terms(place)
    said = str(found)
    assert "only sums are seen (secure aggregation)" in said
    assert "label_inference" not in found.runs
    assert any("label_inference" in names and "sees" in reason for reason, names in found.refused.items())
    assert found.origins["batch_size"] != ASSUMED


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("optimizer Adagrad with learning_rate 0.01", lambda net: torch.optim.Adagrad(net.parameters())),
        (
            "optimizer RMSprop with learning_rate 0.001",
            lambda net: torch.optim.RMSprop(net.parameters(), 1e-3),
        ),
    ],
)
def test_an_optimizer_that_no_terms_state_is_named(words, make, tmp_path):
    found = gh.terms(run(tmp_path, optimizer=make))
    assert found.checked.suspect == f"{words} fits, which no terms can state: attacks do not repeat it"
    assert found.checked.fix == ""


@pytest.mark.parametrize(
    ("fix", "loss"),
    [
        ("training.reduction=sum", torch.nn.CrossEntropyLoss(reduction="sum")),
        ('task.criterion="margin"', torch.nn.MultiMarginLoss()),
    ],
)
def test_a_loss_in_use_is_named_with_its_assignment(fix, loss, tmp_path):
    place = run(tmp_path, loss=lambda logits, labels, inputs: loss(logits, labels))
    found = gh.terms(place)
    assert found.checked.fix == fix
    assert gh.terms(place, sets=[fix]).checked.suspect == ""

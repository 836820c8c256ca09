"""``glasshouse guard FILE`` for documents, and the same rules in a site's gate."""

import json

import numpy as np
import pytest
import torch
import xgboost
from safetensors.torch import save_file

from glasshouse.cli import main
from glasshouse.formats.base import looks_like_document
from glasshouse.gate.judge import judge
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.message import Origin, Outgoing
from glasshouse.gate.policy import parse_policy
from glasshouse.gate.preflight.documents import DocumentGuard


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["guard", *map(str, arguments)])
    return stop.value.code


def coarse(n, seed):
    """Three yes-or-no columns and a label that depends on them."""
    draws = np.random.default_rng(seed)
    rows = draws.integers(0, 2, (n, 3)).astype(np.float32)
    labels = (draws.random(n) < 0.2 + 0.2 * rows.sum(1)).astype(int)
    return rows, labels


def trees(rows, labels, **settings):
    how = {"objective": "binary:logistic", "nthread": 1, **settings}
    return bytes(xgboost.train(how, xgboost.DMatrix(rows, labels), 2).save_raw("json"))


def counts(*values):
    numbers = [{"name": "count", "value": v, "column": f"c{i}", "digits": None} for i, v in enumerate(values)]
    return json.dumps({"format": "statistics", "numbers": numbers}).encode()


@pytest.fixture
def own(tmp_path):
    """A site's rows of continuous numbers as ``arrays:``, and trees that were boosted on them."""
    draws = np.random.default_rng(0)
    rows = draws.random((80, 4)).astype(np.float32)
    labels = (rows[:, 0] + rows[:, 1] * rows[:, 2] + draws.normal(0, 0.3, 80) > 0.75).astype(np.int64)
    np.savez(tmp_path / "own.npz", train_inputs=rows, train_labels=labels, range=np.array([0.0, 1.0]))
    np.save(tmp_path / "own.npy", rows)
    (tmp_path / "fine.json").write_bytes(trees(rows, labels, max_depth=6, min_child_weight=0.1))
    return tmp_path


def test_trees_with_small_cells_and_own_values_are_not_sent(own, capsys):
    assert run(own / "fine.json", "--data", f"arrays:{own / 'own.npz'}") == 1
    said = capsys.readouterr().out
    assert "do not send it" in said
    assert "joint cell" in said
    assert "values that occur in your rows" in said


def test_without_own_rows_it_says_what_was_not_compared(own, capsys):
    assert run(own / "fine.json") == 0
    assert "give them by --data" in capsys.readouterr().out


def test_counts_that_moved_are_not_sent(tmp_path, capsys):
    (tmp_path / "last.json").write_bytes(counts(100, 90))
    (tmp_path / "now.json").write_bytes(counts(101, 90))
    assert run(tmp_path / "now.json", "--before", tmp_path / "last.json", "--json") == 1
    row = json.loads(capsys.readouterr().out)[str(tmp_path / "now.json")]
    assert (row["verdict"], row["moved"]) == ("refused", 1)
    assert run(tmp_path / "now.json", "--before", tmp_path / "now.json") == 0
    assert run(tmp_path / "now.json", "--fewest", "1") == 2


def test_findings_as_sarif(own):
    (own / "raw.json").write_text(json.dumps({"format": "survival", "times": [3, 5, 8], "raw": [1, 0, 1]}))
    assert run(own / "raw.json", "--sarif", own / "out.sarif") == 1
    assert "raw follow-up" in (own / "out.sarif").read_text()


def test_models_and_documents_are_told_apart(tmp_path, capsys):
    """Whatever byte the length of a safetensors header begins with."""
    for size in range(1, 120):
        save_file({"w" * size: torch.zeros(2)}, tmp_path / "model.safetensors")
        assert not looks_like_document((tmp_path / "model.safetensors").read_bytes()[:4096])
    (tmp_path / "now.json").write_bytes(counts(100))
    assert run(tmp_path / "now.json", tmp_path / "model.safetensors") == 2
    assert "documents alone, or models alone" in capsys.readouterr().err


def policy(**document):
    return parse_policy(
        {"format": 1, "site": "ward", "dataset": "rows", "out": {"norm": 2.5, "document": document}}
    )


def decided(rule, guard, document):
    arrays = {"0": np.frombuffer(document, dtype=np.uint8).copy()}
    message = Outgoing(
        kind="train", origin=Origin(run="7", node="3"), arrays=arrays, fields={"num-examples": 600}, bytes=9
    )
    return judge(rule, message, None, Ledger(), documents=guard)


def test_the_gate_refuses_what_the_guard_names(own, tmp_path):
    rule = policy(rows="own.npy")
    guard = DocumentGuard(rule.out.document, tmp_path)
    decision = decided(rule, guard, (own / "fine.json").read_bytes())
    assert decision.action == "refused"
    assert [reason.rule for reason in decision.reasons] == ["document", "document"]
    assert decided(rule, guard, b"\x80\x04pickle").reasons[0].rule == "document_unread"
    assert decided(policy(formats=["glm-json"]), guard, counts(100)).action == "passed"
    other = policy(formats=["glm-json"])
    assert decided(other, DocumentGuard(other.out.document, tmp_path), counts(100)).reasons[0].rule == (
        "document_format"
    )


def test_the_gate_sees_counts_that_moved_and_writes_numbers_anew(tmp_path):
    rule = policy()
    guard = DocumentGuard(rule.out.document, tmp_path)
    hidden = json.loads(counts(100))
    hidden["numbers"][0]["note"] = "a row of data"
    first = decided(rule, guard, json.dumps(hidden).encode())
    assert first.action == "passed"
    sent = first.message.arrays["0"].tobytes()
    assert b"a row of data" not in sent
    assert json.loads(sent)["numbers"][0]["value"] == 100
    guard.remember("7", first.message.arrays)
    assert decided(rule, guard, counts(102)).reasons[0].detail.startswith("1 counts moved")
    assert decided(rule, guard, counts(105)).action == "passed"


def test_without_the_rule_bytes_are_tensors_like_any():
    bare = parse_policy({"format": 1, "site": "ward", "dataset": "rows", "out": {"norm": 2.5}})
    assert decided(bare, None, counts(100)).reasons[0].rule == "no_model_received"


def test_three_hundred_honest_documents_pass_the_gate(tmp_path):
    refused = 0
    for seed in range(300):
        rows, labels = coarse(600, seed)
        np.save(tmp_path / "rows.npy", rows)
        rule = policy(rows="rows.npy")
        guard = DocumentGuard(rule.out.document, tmp_path)
        sent = trees(rows, labels, max_depth=1, min_child_weight=5)
        refused += decided(rule, guard, sent).action == "refused"
    assert refused == 0

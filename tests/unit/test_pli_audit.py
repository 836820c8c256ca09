"""A whole audit of a logit protocol: roles, findings beside nulls, exhibits, replay of accuracy per round."""

import json

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.audit.claims import read_outcome
from glasshouse.audit.class_score import GUESS, OWN_PRIOR, PRIOR, PUBLIC
from glasshouse.audit.result import read_result
from glasshouse.audit.run import audit
from glasshouse.audit.score import relabelled
from glasshouse.errors import BadScenario
from glasshouse.scenario.load import load
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch

SMALL = [
    "data.domains.per_class=12",
    "federation.clients=2",
    'audit.metrics=["attack_accuracy", "ssim_gap", "owner"]',
    "audit.controls=false",
    "federation.rounds=2",
    "attacks.*.width=8",
    "attacks.*.epochs=1",
    "audit.seeds=[0, 1]",
]


TBI = 'attacks=[{name="tbi", width=8, epochs=1}]'


def rounds_read(run):
    """By attack and unit, the rounds of every claim of images."""
    found = [read_outcome(path.parent).claims for path in run.glob("cells/*/claims/*/*/claims.json")]
    return [[c.about.rounds for c in claims if isinstance(c, ClassRepresentatives)] for claims in found]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("pli") / "run"
    audit(load("quickstart-logits", sets=SMALL), out=out, jobs=1)
    return out


def test_findings_have_a_null_of_known_name_and_count_private_classes(run):
    findings = read_result(run / "result.json").findings
    assert {f.attack for f in findings} == {"pli", "PLI without uploads", "PLI averaged", "tbi"}
    for f in findings:
        assert f.n == 8  # four digits, two seeds
        assert f.baseline in (PRIOR, OWN_PRIOR, PUBLIC, GUESS)
        assert f.verdict != "no power"
    owner = [f for f in findings if f.metric == "owner"]
    assert {f.baseline_value for f in owner} == {0.5}


def test_the_last_upload_is_read_although_audit_rounds_names_no_such_round(run):
    """Two rounds have three uploads; with the first the server has no logits of its own yet."""
    assert rounds_read(run) == [[(1,), (1, 2)]] * 8  # four attacks, two seeds


def test_the_last_upload_alone_can_be_kept(tmp_path):
    alone = [*SMALL, TBI, "federation.keep.rounds=[2]", "audit.seeds=[0]"]
    audit(load("quickstart-logits", sets=alone), out=tmp_path / "run", jobs=1)
    assert rounds_read(tmp_path / "run") == [[(2,)]]
    with pytest.raises(BadScenario) as caught:
        load("quickstart-logits", sets=[*SMALL, "federation.keep.rounds=[3]"])
    assert [p.needs for p in caught.value.problems] == ["a round from 0 to 2"]


def test_accuracy_per_upload_of_every_party(run):
    facts = json.loads(next(run.glob("cells/*-s0/group.json")).read_text())
    clients = [r for r in facts["parties"] if r["who"] == "clients" and r["on"] == "private"]
    assert [r["round"] for r in clients] == [0, 1, 2]
    assert facts["entropies"]["clients on private data"]
    assert 0 <= facts["utility"]["value"] <= 1


def test_exhibits(run):
    exhibits = read_result(run / "result.json").exhibits
    titles = " | ".join(e.title for e in exhibits)
    for words in (
        "Accuracy of the federation",
        "The confidence gap",
        "quality per round",
        "beside every null",
    ):
        assert words in titles
    pictures = next(e for e in exhibits if e.kind == "pictures")
    assert np.load(run / pictures.file)["images"].shape[:2] == (4, len(pictures.data["columns"]))


def test_the_negative_control_exchanges_classes():
    private = Batch(inputs=torch.rand(4, 1, 8, 8), labels=torch.tensor([0, 1, 2, 2]))
    turned = relabelled(Truth(private=private, shards={}, used={}))
    assert turned.private.labels.tolist() == [1, 2, 0, 0]

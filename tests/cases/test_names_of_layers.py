"""Layers that do not travel are named by patterns; a pattern that matches nothing is refused before a run."""

import numpy as np
import pytest
from torch import nn

import glasshouse as gh
from glasshouse.errors import BadScenario

DATA = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 4


def mine(**training):
    return {
        "name": "parts", "data": {"auxiliary": 15, "heldout": 15, "examples": 2},
        "federation": {
            "clients": 3, "protocol": "fedavg", "batch_size": 2, "local_epochs": 2, "training": training,
        },
        "attacks": ["label_inference"],
        "audit": {"victims": 3, "controls": False, "metrics": ["label_accuracy"], "planted": 0},
    }  # fmt: skip


def net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 4)
    )


def test_a_federation_with_personal_batch_norm_is_audited_and_its_accuracy_is_not_measured(tmp_path):
    training = {"mode": "training", "personal": ["1"]}
    result = gh.audit(mine(**training), data=DATA, model=net(), out=str(tmp_path / "out"))
    assert [finding.n for finding in result.findings] == [3]
    assert any("Clients keep layers of their own" in note for note in result.result.threats[0].notes)
    assert not [utility for utility in result.utility if utility.value is not None]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (
            {"personal": ["bn*"]},
            r"federation\.training\.personal +needs patterns of names of the model's layers",
        ),
        ({"fixed": ["backbone"]}, r"federation\.training\.fixed +needs patterns of names"),
        ({"personal": ["1"], "fixed": ["0", "4", "5"]}, "needs a parameter that travels"),
    ],
)
def test_a_pattern_without_a_layer_is_refused(training, words):
    with pytest.raises(BadScenario, match=words):
        gh.check(mine(**training), data=DATA, model=net(), probe=False)


def test_personal_layers_need_local_steps():
    sends_gradients = mine(personal=["1"])
    sends_gradients["federation"] |= {"protocol": "fedsgd", "local_epochs": 1}
    with pytest.raises(BadScenario, match="nothing where clients take no local steps"):
        gh.check(sends_gradients, data=DATA, model=net(), probe=False)

"""Layers that do not travel are named by patterns; a pattern that matches nothing is refused before a run."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import BadScenario, BadValue

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


class Holder(nn.Module):
    """A network whose layers stand under one name, as in most modules of Lightning."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.add_module(name, nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))

    def forward(self, x):
        return getattr(self, self.name)(x.flatten(1))


@pytest.mark.parametrize("name", ["net", "model", "module", "network", "layers", "wrapped", "head", "logits"])
def test_layers_may_stand_under_any_usual_name(name):
    network, picture = Holder(name), torch.rand(1, 1, 2, 3)
    slopes = torch.autograd.grad(F.cross_entropy(network(picture), torch.tensor([1])), network.parameters())
    seen = gh.view(network, slopes, input_shape=(1, 2, 3))
    (claim,) = gh.attack("linear_input")(seen)
    assert torch.allclose(claim.inputs, picture, atol=1e-5)
    assert claim.labels.tolist() == [1]
    assert len(gh.attack("inverting_gradients", search={"iterations": 2, "restarts": 1})(seen)) == 1


def test_a_name_that_an_audit_uses_itself_is_refused():
    with pytest.raises(BadValue, match="one named 'representation'"):
        gh.adapt(Holder("representation"))

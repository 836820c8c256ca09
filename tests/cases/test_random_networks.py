"""Networks that draw by code, patterns of names without a layer, and SCAFFOLD, audited as a user would."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.audit.preflight.network import _patterns
from glasshouse.errors import BadScenario
from glasshouse.interfaces.modes import draws_at_random
from glasshouse.settings import Training

CLASSES = 5
IMAGES = torch.rand(80, 1, 8, 8, generator=torch.Generator().manual_seed(0))
DATA = (IMAGES, torch.arange(80) % CLASSES)


class Net(nn.Module):
    """Two layers; ``always``: noise in evaluation, too; ``drops``: in training, by a function."""

    def __init__(self, *, always=False, drops=False):
        super().__init__()
        self.first, self.out = nn.Linear(64, 16), nn.Linear(16, CLASSES)
        self.always, self.drops = always, drops

    def forward(self, x):
        hidden = F.relu(self.first(x.flatten(1)))
        hidden = hidden + 0.1 * torch.randn_like(hidden) if self.always else hidden
        return self.out(F.dropout(hidden, 0.5, self.training) if self.drops else hidden)


def mine(protocol="fedavg", **training):
    return {
        "name": "mine",
        "data": {"examples": 4, "auxiliary": 20, "heldout": 20},
        "federation": {
            "clients": 3, "rounds": 2, "protocol": protocol, "batch_size": 2, "training": training,
        },
        "attacks": [{"name": "label_inference"}],
        "audit": {"metrics": ["label_accuracy"], "controls": False},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("net", "mode", "draws"),
    [
        (Net(), "training", False),
        (Net(drops=True), "training", True),
        (Net(drops=True), "evaluation", False),
        (Net(always=True), "evaluation", True),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)), "training", False),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.RReLU()), "training", True),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.0)), "training", False),
    ],
)
def test_what_draws_is_asked_of_the_network(net, mode, draws):
    before = torch.get_rng_state()
    assert draws_at_random(net, IMAGES[:4], Training(mode=mode)) == draws
    assert torch.equal(torch.get_rng_state(), before)


def test_scaffold_is_audited_and_the_page_says_that_the_network_draws(tmp_path):
    """Its control variates were loaded into the network that accuracy is measured with."""
    net = Net(always=True)
    run = gh.audit(mine("scaffold"), DATA, model=net, out=tmp_path / "run", jobs=1, register=False)
    assert [finding.n for finding in run.findings] == [3]
    assert [utility for utility in run.utility if utility.value is not None]
    assert any("with dropout, or with other draws" in note for note in run.result.threats[0].notes)


def test_a_frozen_pattern_without_a_layer_is_refused():
    with pytest.raises(BadScenario, match=r"federation\.training\.frozen +needs patterns of names"):
        gh.check(mine(frozen=["bn*"]), DATA, model=Net())


def test_a_layer_without_tensors_may_stay_in_evaluation():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    agreed = gh.view(
        net, [torch.zeros_like(p) for p in net.parameters()], input_shape=(1, 8, 8)
    ).terms.architecture
    assert not list(_patterns(Training(mode="training", frozen=("2",)), agreed))
    assert list(_patterns(Training(mode="training", frozen=("9",)), agreed))

"""What an attack does with a client's training: its mode, its loss, its precision, its frozen layers."""

import copy

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.settings import Training
from glasshouse.tasks.classification import Classification


def digits(count):
    pictures = torch.tensor(load_digits().images[:count] / 16, dtype=torch.float32)[:, None]
    return pictures, torch.tensor(load_digits().target[:count])


def psnr(claimed, true):
    """Mean PSNR in dB of the best assignment."""
    errors = ((claimed[:, None] - true[None]) ** 2).flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    return float((-10 * errors[rows, columns].log10()).mean())


def test_an_update_of_training_mode_is_matched_with_the_statistics_of_the_batch():
    """The mode is read off the network; told the wrong one, the same attack sees far less."""
    torch.manual_seed(0)
    pictures, labels = digits(2)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
    ).train()
    client = copy.deepcopy(net)
    update = torch.autograd.grad(F.cross_entropy(client(pictures), labels), list(client.parameters()))
    search = {"iterations": 200, "restarts": 1}
    reached = {}
    for name, training in (("read", None), ("wrong", Training(mode="evaluation"))):
        seen = gh.view(net, update, input_shape=(1, 8, 8), examples=2, training=training)
        (claim,) = gh.attack("inverting_gradients", search=search)(seen, seed=1)
        reached[name] = psnr(claim.inputs, pictures)
    assert seen.terms.training.mode == "evaluation"
    assert reached["read"] > 30
    assert reached["read"] > reached["wrong"] + 10


def test_frozen_layers_are_known_and_do_not_travel(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 4
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    net[1].requires_grad_(False)
    mine = {
        "name": "frozen", "data": {"auxiliary": 15, "heldout": 15}, "federation": {"clients": 3},
        "attacks": ["label_inference"],
        "audit": {"victims": 3, "controls": False, "metrics": ["label_accuracy"], "planted": 0},
    }  # fmt: skip
    result = gh.audit(mine, data=(images, labels), model=net, out=str(tmp_path / "frozen"))
    assert [finding.n for finding in result.findings] == [3]
    update = torch.autograd.grad(
        net(torch.rand(1, 1, 8, 8)).sum(), [p for p in net.parameters() if p.requires_grad]
    )
    seen = gh.view(net, update, input_shape=(1, 8, 8))
    assert sorted(seen.rounds[0].updates[0].tensors) == ["3.bias", "3.weight"]


WEIGHTS = (10.0, 1.0, 1.0, 0.1, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0)


@pytest.mark.parametrize(
    ("task", "loss"),
    [
        (Classification(classes=10), F.cross_entropy),
        (
            Classification(classes=10, weights=WEIGHTS),
            lambda z, y: F.cross_entropy(z, y, weight=torch.tensor(WEIGHTS)),
        ),
        (
            Classification(classes=10, criterion="binary"),
            lambda z, y: F.binary_cross_entropy_with_logits(z, F.one_hot(y, 10).float()),
        ),
    ],
)
def test_labels_are_read_under_the_loss_that_is_told(task, loss):
    torch.manual_seed(0)
    pictures, labels = digits(4)[0], torch.tensor([0, 3, 3, 7])
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
    update = torch.autograd.grad(loss(net(pictures), labels), list(net.parameters()))
    seen = gh.view(net, update, input_shape=(1, 8, 8), examples=4, task=task)
    assert gh.attack("label_inference")(seen)[0].counts.tolist() == [1, 0, 0, 2, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_network_of_another_precision_is_attacked(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    picture = torch.rand(1, 1, 8, 8)
    update = torch.autograd.grad(
        F.cross_entropy(net(picture.to(dtype)), torch.tensor([2])), list(net.parameters())
    )
    (claim,) = gh.attack("linear_input")(gh.view(net, update, input_shape=(1, 8, 8)))
    error = float((claim.inputs - picture).abs().max())
    assert error < (0.03 if dtype is torch.bfloat16 else 1e-5)


class Block(nn.Module):
    """Batch norm under a name of its own, and dropout."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.0)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        x = self.drop(self.bn(self.conv(x)).relu())
        return self.head(self.bn2(self.conv2(x)).relu().flatten(1))


@pytest.mark.parametrize("resting", [(), ("bn",), ("bn", "bn2"), ("bn2",)])
def test_the_mode_is_read_layer_by_layer(resting):
    """Frozen batch norms inside a network in training mode, as in fine-tuning."""
    torch.manual_seed(0)
    pictures, labels = digits(3)
    net = Block().train()
    for name in resting:
        net.get_submodule(name).eval()
    client = copy.deepcopy(net)
    update = torch.autograd.grad(F.cross_entropy(client(pictures), labels), list(client.parameters()))
    seen = gh.view(net, update, input_shape=(1, 8, 8), examples=3)
    assert set(seen.terms.training.frozen) == set(resting)
    measure = objective(replica(seen, subject="test"), distance="squared")
    at_truth = float(measure(pictures[None], labels[None]).detach())
    assert at_truth < 1e-6 * measure.target_square
    if resting != ("bn", "bn2"):
        told = gh.view(net, update, input_shape=(1, 8, 8), examples=3, training=Training())
        wrong = objective(replica(told, subject="test"), distance="squared")
        assert float(wrong(pictures[None], labels[None]).detach()) > 1e-3 * wrong.target_square


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.LayerNorm([8, 8, 8])]
)
def test_norms_of_single_examples_have_one_mode(norm):
    torch.manual_seed(0)
    pictures, labels = digits(2)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    ).train()
    update = torch.autograd.grad(F.cross_entropy(net(pictures), labels), list(net.parameters()))
    seen = gh.view(net, update, input_shape=(1, 8, 8), examples=2)
    assert seen.terms.training == Training()
    measure = objective(replica(seen, subject="test"), distance="squared")
    assert float(measure(pictures[None], labels[None]).detach()) < 1e-6 * measure.target_square

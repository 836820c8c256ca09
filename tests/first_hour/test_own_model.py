"""Networks of one's own, from a file to a finding: names of tensors stay, every part of an audit runs."""

import copy

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from glasshouse.audit.run import audit
from glasshouse.errors import BadValue
from glasshouse.federation.defenses.per_example import own_layers, prepare_model
from glasshouse.models.adapt import adapt
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite
from glasshouse.wire import Architecture

NETS = '''
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from glasshouse.models.adapt import adapt


def clinic(input_shape, classes):
    """BatchNorm, dropout, activations in place."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, classes),
    )


class Vit(nn.Module):
    """A class token and position embeddings at the top level, a buffer beside them, a tuple as output."""

    def __init__(self, channels, classes, side, width=16):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // 4) ** 2 + 1, width) * 0.02)
        self.register_buffer("scale", torch.ones(1))
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        x = x + self.mix(self.norm(x)).mean(1, keepdim=True) * self.scale
        return self.classifier(x[:, 0]), x


def vit(input_shape, classes):
    net = Vit(input_shape[0], classes, input_shape[1])
    return adapt(net, normalize=(0.5, 0.25), logits=lambda out: out[0])
'''


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def architecture(name: str) -> Architecture:
    return Architecture.of(f"nets_of_mine:{name}", (1, 8, 8), 10)


@pytest.mark.parametrize("name", ["clinic", "vit"])
def test_the_names_of_the_tensors_stay(nets, name):
    model = build(architecture(name), rng=Rng.root(0))
    assert list(model.state_dict()) == list(model.wrapped_network.state_dict())
    assert not any(key.startswith("normalize") for key in model.state_dict())


def test_what_normalizes_is_found_and_gives_the_same_logits(nets):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x = torch.rand(3, 1, 8, 8)
    expected = net((x - 0.5) / 0.25)
    model = adapt(net, normalize=(0.5, 0.25))
    torch.testing.assert_close(model(x), expected)
    assert "normalize" in dict(model.named_children())


def test_a_copy_is_independent_and_whole(nets):
    model = build(architecture("vit"), rng=Rng.root(0))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.get_parameter("token").add_(1.0)
    x = torch.rand(2, 1, 8, 8)
    assert not torch.equal(twin.eval()(x), model.eval()(x))
    assert torch.equal(twin.wrapped_network.token, twin.get_parameter("token"))


def test_functional_calls_reach_parameters_of_the_top_level(nets):
    model = build(architecture("vit"), rng=Rng.root(0)).eval()
    x = torch.rand(2, 1, 8, 8)
    moved = {name: p + 0.1 for name, p in model.named_parameters()}
    assert not torch.equal(torch.func.functional_call(model, moved, (x,)), model(x))


def test_moving_it_moves_everything(nets):
    model = build(architecture("vit"), rng=Rng.root(0)).double().eval()
    assert model(torch.rand(2, 1, 8, 8, dtype=torch.float64)).dtype == torch.float64


def test_training_mode_reaches_the_network(nets):
    model = build(architecture("clinic"), rng=Rng.root(0))
    x = torch.rand(4, 1, 8, 8)
    model.eval()
    assert torch.equal(model(x), model(x))
    assert not model.wrapped_network.training
    model.train()
    assert not torch.equal(model(x), model(x))  # dropout


def test_the_representation_enters_the_head(nets):
    model = build(architecture("clinic"), rng=Rng.root(0)).eval()
    x = torch.rand(3, 1, 8, 8)
    head = model.get_submodule(model.head_name)
    torch.testing.assert_close(head(model.representation(x)), model(x))


@pytest.mark.parametrize(
    ("net", "settings", "needs"),
    [
        (nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), {"head": "0"}, "the name of a linear layer"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), {"head": "0"}, "the name of a linear layer"),
    ],
)
def test_what_cannot_be_adapted_is_said(net, settings, needs):
    with pytest.raises(BadValue, match=needs):
        adapt(net, **settings)


def test_a_network_without_a_linear_layer_is_adapted():
    net = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    x = torch.rand(2, 1, 8, 8)
    expected = net(x)
    model = adapt(net)
    assert model.head_name == ""
    torch.testing.assert_close(model(x), expected)


SCENARIO = {
    "name": "own",
    "data": {"source": "digits", "auxiliary": 120, "heldout": 60, "examples": 1},
    "federation": {"clients": 4, "batch_size": 1},
    "audit": {"victims": 4, "distractors": 20, "controls": False, "metrics": ["mse", "psnr", "mse_r"]},
    "attacks": [
        {"name": "inverting_gradients", "search": {"iterations": 4, "restarts": 1}},
        {"name": "label_inference"},
    ],
}


@pytest.mark.parametrize("name", ["clinic", "vit"])
def test_from_a_file_to_a_finding(nets, tmp_path, name):
    raw = {**SCENARIO, "model": {"name": f"nets_of_mine:{name}"}}
    suite = Suite(name="own", members=(Member(scenario=from_dict(raw)),), given="own")
    result = audit(suite, out=tmp_path / "run", jobs=1)
    assert {f.metric for f in result.findings} >= {"mse", "psnr", "mse_r"}
    assert not [r for r in result.refusals if "inverting" in r.subject]


@pytest.mark.parametrize("name", ["clinic", "vit"])
def test_a_client_can_train_it_by_dp_sgd(nets, name):
    model = build(architecture(name), rng=Rng.root(0))
    trained = tuple(n for n, p in model.named_parameters() if p.requires_grad)
    if name == "vit":  # parameters outside of layers have no gradient per example: Opacus says so itself
        trained = tuple(n for n in trained if n not in ("token", "places"))
    work = prepare_model(model, trained=trained, dropout=False)
    for layer in own_layers(work):
        work.get_submodule(layer).training = True
    hooked = GradSampleModule(work, loss_reduction="sum")
    hooked(torch.rand(3, 1, 8, 8).requires_grad_(True)).sum().backward()
    sampled = {n: p.grad_sample for n, p in work.named_parameters() if n in trained}
    assert {len(part) for part in sampled.values()} == {3}

import importlib.util
import sys

import pytest
import torch
from torch import nn

from glasshouse import registry
from glasshouse.errors import BadFile, BadValue, NotInstalled, UnknownName
from glasshouse.models.base import SplitModel
from glasshouse.models.build import build, load, state
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

SHAPES = [(1, 8, 8), (3, 16, 16), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 24, 40)]
ZOO = ["convnet", "lenet5", "lenet_sigmoid", "maui_cnn", "mlp", "resnet18", "shufflenet_v2"]
SMALL = {"convnet": {"width": 4}, "maui_cnn": {"width": 4, "hidden": 0}, "resnet18": {"width": 4}}


def architecture(name, shape=(3, 32, 32), classes=10, **arguments):
    return Architecture.of(name, shape, classes, arguments)


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_zoo_takes_every_size(name, shape):
    model = build(architecture(name, shape, 7, **SMALL.get(name, {})), rng=Rng.root(1))
    assert isinstance(model, SplitModel)
    assert isinstance(model.head, nn.Linear)
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    logits = model.eval()(x)
    assert logits.shape == (2, 7)
    torch.testing.assert_close(logits, model.head(model.representation(x)))
    assert model.representation(x).ndim == 2
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", ZOO)
def test_gradients_reach_every_parameter_and_twice(name):
    model = build(architecture(name, (1, 8, 8), **SMALL.get(name, {})), rng=Rng.root(1)).eval()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = nn.functional.cross_entropy(model(x), torch.tensor([1, 2]))
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    assert all(g.abs().sum() > 0 for g in gradients)
    (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradients), x)
    assert second.abs().sum() > 0


@pytest.mark.parametrize("name", ZOO)
def test_no_layer_works_in_place(name):
    """Ghost norms read the inputs of layers after the forward pass."""
    model = build(architecture(name, (1, 8, 8), **SMALL.get(name, {})))
    assert not any(getattr(m, "inplace", False) for m in model.modules())


@pytest.mark.parametrize("name", ZOO)
def test_initial_weights_come_from_the_stream_alone(name):
    before = torch.get_rng_state()
    small = architecture(name, (1, 8, 8), **SMALL.get(name, {}))
    first, again, other = (state(build(small, rng=Rng.root(seed))) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", ["maui_cnn", "resnet18", "shufflenet_v2"])
def test_a_head_may_have_two_layers(name):
    model = build(architecture(name, (1, 8, 8), **{**SMALL.get(name, {}), "hidden": 6}))
    assert [n for n, _ in model.head.named_parameters()] == [
        "hidden.weight",
        "hidden.bias",
        "out.weight",
        "out.bias",
    ]
    assert model.head.out.in_features == 6


@pytest.mark.parametrize("name", ["resnet50", "vgg11_bn", "vit_b_32"])
def test_imagenet_models_say_which_extra_they_need(name):
    one = architecture(name, (3, 64, 64))
    if importlib.util.find_spec("torchvision"):
        assert build(one).eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 10)
    else:
        with pytest.raises(NotInstalled, match=r"glasshouse\[vision\]"):
            build(one)


def test_sizes_known_from_elsewhere():
    """The GGL authors' ResNet-18 with 2 classes has 11,169,858 parameters; ConvNets of 49 k and 2.9 M."""
    assert count(build(architecture("resnet18", classes=2))) == 11_169_858
    assert round(count(build(architecture("convnet", width=8))) / 1e3) == 49
    assert round(count(build(architecture("convnet", width=64))) / 1e6, 1) == 2.9
    assert build(architecture("lenet_sigmoid")).head.in_features == 768  # DLG: Linear(768, classes)
    assert count(build(architecture("lenet5"))) == 62_006  # with 3 channels
    # Maui's "260K" and "341K" are of the features; 512 and 1,024 of them.
    for name, arguments, inside, features in (
        ("maui_cnn", {"batch_norm": False}, 260_160, 512),
        ("maui_cnn", {}, 260_928, 512),
        ("shufflenet_v2", {}, 341_792, 1024),
        ("resnet18", {}, 11_168_832, 512),
    ):
        model = build(architecture(name, **arguments))
        assert (count(model.features), model.representation(torch.zeros(1, 3, 32, 32)).shape[1]) == (
            inside,
            features,
        )


def test_dlg_initialisation():
    model = build(architecture("lenet_sigmoid"), rng=Rng.root(3))
    for p in model.parameters():
        assert p.abs().max() <= 0.5
    weights = model.head.weight.detach()
    assert weights.std() == pytest.approx(1 / 12**0.5, rel=0.02)  # uniform(-0.5, 0.5)


def test_resnet_initialisation():
    """Kaiming, fan out: standard deviation sqrt(2 / (channels out × 9))."""
    model = build(architecture("resnet18", width=16), rng=Rng.root(3))
    assert model.features[-3].conv2.weight.detach().std() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)


def test_normalisation_is_no_part_of_what_travels():
    model = build(architecture("mlp", hidden=4, mean=0.25, std=0.5))
    assert not any("normalize" in name for name in state(model))
    x = torch.full((1, 3, 32, 32), 0.75)
    assert torch.equal(model.normalize(x), torch.ones_like(x))


def test_batch_norm_can_be_left_out():
    with_norm, without = (build(architecture("convnet", width=4, batch_norm=b)) for b in (True, False))
    assert any("running_mean" in name for name in state(with_norm))
    assert not any("bn" in name for name in state(without))
    assert without.features.conv3.weight.detach().std() == pytest.approx((2 / (8 * 9)) ** 0.5, rel=0.1)


def test_state_is_a_copy_and_load_brings_it_back():
    a, b = (build(architecture("convnet", width=4), rng=Rng.root(s)) for s in (1, 2))
    saved = state(a)
    load(b, saved)
    assert all(torch.equal(t, saved[n]) for n, t in b.state_dict().items())
    with torch.no_grad():
        a.head.bias.add_(1)
    assert not torch.equal(saved["head.bias"], a.head.bias)
    assert b.head.weight.requires_grad


def test_part_of_a_model():
    model = build(architecture("mlp", hidden=4))
    head = {f"head.{n}": torch.zeros_like(p) for n, p in model.head.named_parameters()}
    assert set(head) == {"head.weight", "head.bias"}
    load(model, head, partial=True)
    assert not model.head.weight.any()
    assert model.features.fc1.weight.any()


def test_load_says_what_does_not_fit_and_changes_nothing():
    model = build(architecture("mlp", hidden=4))
    before = state(model)
    wrong = {**before, "head.bias": torch.zeros(3), "extra": torch.zeros(1)}
    wrong.pop("features.fc1.bias")
    wrong["head.weight"] = torch.ones(10, 4)
    with pytest.raises(BadValue) as caught:
        load(model, wrong)
    assert "missing features.fc1.bias" in caught.value.got
    assert "unknown extra" in caught.value.got
    assert "'head.bias' is (3,), not (10,)" in caught.value.got
    assert all(torch.equal(before[n], t) for n, t in state(model).items())


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        (architecture("resnet81"), UnknownName, "resnet18"),
        (architecture("lenet5", (1, 4, 4)), BadValue, "at least 1 × 8 × 8"),
        (architecture("mlp", hiden=3), BadValue, "did you mean hidden"),
        (architecture("mlp", hidden="3,x"), BadValue, "whole numbers"),
        (architecture("convnet", width=0), BadValue, "width"),
        (architecture("resnet18", width=1.5), BadValue, "width"),
        (architecture("lenet5", std=0.0), BadValue, "std > 0"),
        (architecture("no_such_module:net"), BadFile, "No module named"),
        (architecture("my_nets:none"), BadValue, "no such name"),
        (architecture("my_nets:number"), BadValue, "a int"),
        (architecture("my_nets:plain"), BadValue, "forward pass on pictures (3, 32, 32)"),
        (architecture("my_nets:five"), BadValue, "outputs (B, 10)"),
        (architecture("my_nets:grey"), BadValue, "forward pass on pictures (3, 32, 32)"),
    ],
    ids=lambda x: x.name if isinstance(x, Architecture) else None,
)
def test_refusals_by_their_words(wanted, error, words, my_nets):
    with pytest.raises(error) as caught:
        build(wanted)
    assert words in str(caught.value)


@pytest.fixture
def my_nets(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "from collections import OrderedDict as O\n"
        "number = 3\n"
        "def plain(shape, classes): return nn.Linear(1, 1)\n"
        "def net(units, classes):\n"
        "    return nn.Sequential(O(features=nn.Sequential(nn.Flatten(), nn.Linear(units, 4)),\n"
        "                           head=nn.Linear(4, classes)))\n"
        "def five(shape, classes): return net(3 * 32 * 32, 5)\n"
        "def grey(shape, classes): return net(32 * 32, classes)\n"
        "def good(shape, classes, *, extra=0): return net(3 * 32 * 32, classes + extra)\n"
        "class Plain(nn.Module):\n"
        "    def __init__(self, width=4):\n"
        "        super().__init__()\n"
        "        self.layers = net(3 * 32 * 32, 10)\n"
        "        self.width = width\n"
        "    def forward(self, x): return self.layers(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    yield
    sys.modules.pop("my_nets", None)


def test_a_model_of_the_users_own(my_nets):
    model = build(architecture("my_nets:good", extra=0), rng=Rng.root(1))
    assert model.training
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_class_of_a_plain_network_is_called_as_it_is_and_normalised_outside(my_nets):
    model = build(architecture("my_nets:Plain", width=8, mean=0.5, std=0.25), rng=Rng.root(1))
    assert model.wrapped_network.width == 8
    assert "normalize" in dict(model.named_children())
    blank = torch.full((1, 3, 32, 32), 0.75)
    assert torch.equal(model(blank), model.wrapped_network(torch.ones_like(blank)))
    assert "normalize" not in dict(build(architecture("my_nets:Plain")).named_children())
    with pytest.raises(BadValue, match="arguments among mean, std, width"):
        build(architecture("my_nets:Plain", depth=2))


@pytest.mark.parametrize("name", ZOO)
def test_cards(name):
    assert registry.card("models", name).summary

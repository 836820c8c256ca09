"""An own network from its file to a finding in at most 15 lines; arrays in memory; pictures of 16 bits."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import glasshouse as gh
from glasshouse.errors import BadScenario

NETS = '''
import torch
from torch import nn
from torch.nn import functional as F


def clinic(channels=1, classes=3):
    """BatchNorm, dropout, activations in place."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, classes),
    )


class BasicBlock(nn.Module):
    def __init__(self, inward, width, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inward, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inward != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inward, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(out)) + shortcut)


class ResNet(nn.Module):
    """torchvision's names: conv1, bn1, layer1.0.conv1, ..., layer2.0.downsample.0, fc."""

    def __init__(self, channels=1, classes=3, width=4):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(width, width))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class ViT(nn.Module):
    """A class token, position embeddings, torch's own encoder layer with its fused attention."""

    def __init__(self, channels=1, classes=3, width=8):
        super().__init__()
        self.conv_proj = nn.Conv2d(channels, width, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.randn(1, 5, width) * 0.02)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 16, activation="gelu", batch_first=True)
        self.heads = nn.Linear(width, classes)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.pos_embedding
        return self.heads(self.encoder(x)[:, 0])


class Attention(nn.Module):
    """Attention as one calls it by hand, in a network that returns a dictionary."""

    def __init__(self, channels=1, classes=3):
        super().__init__()
        self.embed = nn.Linear(8 * channels, 8)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = self.embed(x.flatten(1).unflatten(1, (8, -1)))
        return {"logits": self.head(F.scaled_dot_product_attention(x, x, x).flatten(1))}


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(4, 4)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.flatten(1))


class Steps(nn.Module):
    """A rounding whose gradient is known and whose second one is not."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.round()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(context, gradient):
            return gradient

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.Once.apply(self.first(x.flatten(1))))
'''
PROGRAM = """
import numpy as np
import glasshouse as gh
import nets_from_file as nets
generator = np.random.default_rng(0)
images = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8)
labels = np.arange(60) % 3
scenario = {"name": "first", "data": {"auxiliary": 16, "heldout": 16}, "federation": {"clients": 2}}
scenario["attacks"] = [{"name": "inverting_gradients", "search": {"iterations": 2, "restarts": 1}}]
scenario["audit"] = {"metrics": ["psnr", "ssim"], "victims": 2, "controls": False}
run = gh.audit(scenario, data=(images, labels), model=NETWORK, out="run")
"""
PICTURES = """
import glasshouse as gh
import nets_from_file as nets
scenario = {"name": "scans", "federation": {"clients": 2}, "attacks": [{"name": "inverting_gradients"}]}
scenario["data"] = {"source": "folder:scans", "auxiliary": 16, "heldout": 16}
scenario["attacks"][0] |= {"search": {"iterations": 2, "restarts": 1}}
scenario["audit"] = {"metrics": ["psnr"], "victims": 2, "controls": False}
run = gh.audit(scenario, model=nets.clinic(classes=2), out="run")
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "nets_from_file.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("nets_from_file")
    del sys.modules["nets_from_file"]


def execute(program: str) -> gh.Run:
    assert len(program.strip().splitlines()) <= 15
    names = {}
    exec(compile(program, "program", "exec"), names)
    return names["run"]


@pytest.mark.parametrize(
    "network",
    [
        "nets.clinic()",
        "nets.ResNet()",
        "nets.ViT()",
        "gh.adapt(nets.Attention(), logits=lambda out: out['logits'], normalize=(0.5, 0.25))",
    ],
)
def test_a_network_of_ones_own(network, nets):
    run = execute(PROGRAM.replace("NETWORK", network))
    assert {f.metric for f in run.findings} == {"psnr", "ssim"}
    assert run.refusals == ()
    assert (run.folder / "report.html").is_file()


def test_the_update_has_the_names_of_the_network(nets):
    net = nets.ResNet().eval()
    loss = torch.nn.functional.cross_entropy(net(torch.rand(1, 1, 8, 8)), torch.tensor([1]))
    seen = gh.view(net, torch.autograd.grad(loss, net.parameters()), input_shape=(1, 8, 8))
    (update,) = seen.rounds[0].updates.values()
    assert list(update.tensors) == list(dict(net.named_parameters()))
    assert "layer2.0.downsample.0.weight" in update.tensors
    assert list(seen.rounds[0].broadcast.tensors) == list(net.state_dict())


def test_pictures_of_16_bits(nets):
    generator = np.random.default_rng(0)
    for label in ("ill", "well"):
        Path("scans", label).mkdir(parents=True)
        for i in range(24):
            picture = generator.integers(0, 65536, (8, 8), dtype=np.uint16)
            Image.fromarray(picture).save(f"scans/{label}/{i}.png")
    (finding,) = execute(PICTURES).findings
    assert finding.n == 2


def frozen(nets):
    net = nets.clinic(classes=10)
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda nets: nets.Steps(), "differentiated twice"),
        (lambda nets: nets.clinic(channels=3), "a forward pass on pictures"),
        (lambda nets: nets.clinic(classes=4), r"outputs \(B, 10\)"),
    ],
)
def test_check_says_what_is_missing(make, match, nets):
    raw = {"name": "x", "attacks": ["inverting_gradients"], "data": {"auxiliary": 40}}
    with pytest.raises(BadScenario, match=match):
        gh.check(raw, model=make(nets))


@pytest.mark.parametrize("make", [frozen, lambda nets: nets.Unused()], ids=["frozen", "unused"])
def test_layers_that_do_not_train_are_no_fault(make, nets):
    gh.check({"name": "x", "attacks": ["inverting_gradients"], "data": {"auxiliary": 40}}, model=make(nets))


def test_check_says_what_was_found(nets):
    raw = {"name": "x", "attacks": ["inverting_gradients"], "data": {"auxiliary": 40}}
    (sentence,) = gh.check(raw, model=nets.clinic(classes=10)).networks
    assert "logits from layer '8', 1 BatchNorm (with the statistics received), 1 dropout (off" in sentence


def test_a_network_of_a_file_is_probed(nets):
    Path("factory_of_mine.py").write_text(
        "from nets_from_file import clinic\ndef make(shape, classes):\n    return clinic(shape[0], classes)\n"
    )
    raw = {"name": "x", "model": {"name": "factory_of_mine:make"}, "attacks": ["inverting_gradients"]}
    assert "factory_of_mine:make: " in str(gh.check(raw))


def test_another_network_has_another_name(nets):
    from glasshouse.models.memory import keep

    net = nets.clinic()
    assert keep(net) == keep(copy.deepcopy(net))
    moved = copy.deepcopy(net)
    with torch.no_grad():
        moved[0].bias += 1
    assert keep(moved) != keep(net)

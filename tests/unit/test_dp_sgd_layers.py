"""DP-SGD on layers that are hard to differentiate per example, and on networks that have no such gradient."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from glasshouse.errors import Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.rng import Rng
from glasshouse.wire import Batch

SIZE = 4  # of a batch; also a side of the inputs, so that dimensions can be mistaken for each other
SILENT = 1e-20


class Applied(nn.Module):
    """``function(self, x)`` with some layers by name, then a linear head."""

    def __init__(self, function, width, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.function(self, x[:, 0]).flatten(1))


class Weighted(nn.Module):
    """A weight of its own, used by functions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(x.relu(), self.weight.T)


def attention(first):
    return nn.MultiheadAttention(4, 2, batch_first=first)


RIGHT = {
    "linear": lambda: Applied(lambda m, x: m.a(x.flatten(1)).relu(), 5, a=nn.Linear(16, 5)),
    "convolution": lambda: Applied(lambda m, x: m.a(x[:, None]), 32, a=nn.Conv2d(1, 2, 3, padding=1)),
    "transposed convolution": lambda: Applied(lambda m, x: m.a(x), 24, a=nn.ConvTranspose1d(4, 4, 3)),
    "group norm": lambda: Applied(lambda m, x: m.a(x), 16, a=nn.GroupNorm(2, 4)),
    "layer norm": lambda: Applied(lambda m, x: m.a(x), 16, a=nn.LayerNorm(4)),
    "instance norm": lambda: Applied(lambda m, x: m.a(x), 16, a=nn.InstanceNorm1d(4, affine=True)),
    "LSTM": lambda: Applied(lambda m, x: m.a(x)[0][:, -1], 6, a=nn.LSTM(4, 6, batch_first=True)),
    "GRU": lambda: Applied(lambda m, x: m.a(x)[0][:, -1], 6, a=nn.GRU(4, 6, batch_first=True)),
    "attention": lambda: Applied(lambda m, x: m.a(x, x, x, need_weights=False)[0], 16, a=attention(True)),
    "shared positions": lambda: Applied(
        lambda m, x: x + m.a(torch.arange(4))[None], 16, a=nn.Embedding(4, 4)
    ),
    "folded patches": lambda: Applied(
        lambda m, x: m.a(x.reshape(-1, 4)).relu().reshape(len(x), 12), 12, a=nn.Linear(4, 3)
    ),
    "weight used by functions": lambda: Applied(lambda m, x: m.a(x), 16, a=Weighted()),
    "layer used twice": lambda: Applied(lambda m, x: m.a(m.a(x).relu()), 16, a=nn.Linear(4, 4)),
    "weight norm": lambda: Applied(lambda m, x: m.a(x), 16, a=weight_norm(nn.Linear(4, 4))),
}
MIXED = {
    "mean of the batch": lambda: Applied(lambda m, x: x - x.mean(0, keepdim=True), 16),
    "deviation of the batch": lambda: Applied(lambda m, x: x / (1e-3 + x.std(0, unbiased=False)), 16),
    "largest of the batch": lambda: Applied(lambda m, x: x / x.max(), 16),
    "softmax over the batch": lambda: Applied(lambda m, x: x.softmax(0), 16),
    "running sum over the batch": lambda: Applied(lambda m, x: x.cumsum(0), 16),
    "neighbour in the batch": lambda: Applied(lambda m, x: x + x.roll(1, 0), 16),
    "LSTM over the batch": lambda: Applied(lambda m, x: m.a(x)[0], 24, a=nn.LSTM(4, 6)),
    "attention over the batch": lambda: Applied(
        lambda m, x: m.a(x, x, x, need_weights=False)[0], 16, a=attention(False)
    ),
    "only where the sizes agree": lambda: Applied(
        lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1) if len(x) == SIZE else m.a(x),
        16,
        a=nn.GroupNorm(2, 4),
    ),
}


def batch(seed=0):
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.rand(8, 1, 4, 4, generator=draws)
    return Batch(inputs=inputs, labels=torch.arange(8) % 3)


def made(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return build().eval()


def private(network, *, clip):
    train = DpSgd(clip=clip, noise_multiplier=SILENT).local(LocalTraining(kind="gradient", batch_size=8))
    return train(network, batch(), rng=Rng.root(0)).tensors


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_equals_clipped_gradients_of_single_examples(name, clip):
    network, data = made(RIGHT[name]), batch()
    total = [torch.zeros_like(p) for p in network.parameters()]
    for i in range(len(data)):
        loss = F.cross_entropy(network(data.inputs[i : i + 1]), data.labels[i : i + 1])
        each = torch.autograd.grad(loss, list(network.parameters()))
        size = torch.cat([g.flatten() for g in each]).norm()
        total = [t + g * min(1.0, clip / float(size)) for t, g in zip(total, each, strict=True)]
    sent = private(network, clip=clip)
    for (parameter, _), expected in zip(network.named_parameters(), total, strict=True):
        torch.testing.assert_close(sent[parameter], expected / len(data), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_influence_each_other_are_refused(name):
    train = DpSgd(clip=1.0, noise_multiplier=1.0).local(LocalTraining(kind="gradient", batch_size=SIZE))
    with pytest.raises(Inapplicable) as caught:
        train(made(MIXED[name]), batch(), rng=Rng.root(0))
    assert "no example influences another" in caught.value.needs
    assert caught.value.got.startswith("in a batch of")


@pytest.mark.parametrize("name", ["LSTM over the batch", "attention over the batch"])
def test_the_layer_that_mixes_them_is_named(name):
    train = DpSgd(clip=1.0, noise_multiplier=1.0).local(LocalTraining(kind="gradient", batch_size=SIZE))
    network = made(MIXED[name])
    with pytest.raises(Inapplicable, match=rf"layer 'a' \({type(network.a).__name__}\) differs"):
        train(network, batch(), rng=Rng.root(0))

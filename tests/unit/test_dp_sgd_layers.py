"""DP-SGD on layers that are hard to differentiate per example, and on networks that have no such gradient."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from glasshouse.errors import Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.rng import Rng
from glasshouse.settings import Training
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


class InTraining(nn.Module):
    """A weight of its own, and another function in training mode."""

    def __init__(self, function, size=4):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.linspace(1, 2, size))
        self.register_buffer("places", torch.arange(size))
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x):
        return (self.function(self, x) if self.training else x)[..., self.places] * self.weight


def remembers(layer, x):
    layer.mean = layer.mean / 2 + x.detach().flatten(0, -2).mean(0)
    return x - layer.mean


def tokens(network, x):
    return network.a((x * 7).long().flatten(1))


class Noisy(nn.Module):
    """Noise that is not turned off."""

    def forward(self, x):
        return x + torch.randn_like(x)


class Stubborn(Noisy):
    """Stays in training mode, whatever it is told."""

    def train(self, mode=True):
        del mode
        return super().train()


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
    "spectral norm": lambda: Applied(lambda m, x: m.a(x), 16, a=spectral_norm(nn.Linear(4, 4))),
    "drop-out within an LSTM": lambda: Applied(
        lambda m, x: m.a(x)[0][:, -1], 6, a=nn.LSTM(4, 6, 2, batch_first=True, dropout=0.5)
    ),
    "drop-out within attention": lambda: Applied(
        lambda m, x: m.a(x, x, x)[0], 16, a=nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    ),
    "another function in training mode": lambda: Applied(
        lambda m, x: m.a(x), 16, a=InTraining(lambda _, x: x - x.mean(0))
    ),
    "tracked instance norm": lambda: Applied(
        lambda m, x: m.a(x), 16, a=nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    ),
    "sparse gradients": lambda: Applied(tokens, 5, a=nn.EmbeddingBag(8, 5, sparse=True)),
    "a head that is not used": lambda: Applied(lambda m, x: x, 16, a=nn.Linear(4, 4)),
}
MIXED = {
    "mean of the batch": lambda: Applied(lambda m, x: x - x.mean(0, keepdim=True), 16),
    "deviation of the batch": lambda: Applied(lambda m, x: x / (1e-3 + x.std(0, unbiased=False)), 16),
    "largest of the batch": lambda: Applied(lambda m, x: x / x.max(), 16),
    "softmax over the batch": lambda: Applied(lambda m, x: x.softmax(0), 16),
    "running sum over the batch": lambda: Applied(lambda m, x: x.cumsum(0), 16),
    "neighbour in the batch": lambda: Applied(lambda m, x: x + x.roll(1, 0), 16),
    "a little of the others": lambda: Applied(lambda m, x: x + 1e-4 * x.mean(0), 16),
    "a little of the others, detached": lambda: Applied(lambda m, x: x + 1e-4 * x.mean(0).detach(), 16),
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
        parameters = list(network.parameters())
        each = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        each = [g.to_dense() if g.is_sparse else g for g in each]
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


TRAINING = {
    "mean of the batch": (lambda _, x: x - x.mean(0), "in a batch of 2, layer 'a'"),
    "examples mixed at random": (lambda _, x: x + x[torch.randperm(len(x))], r"in a batch of \d, layer 'a'"),
    "a mean that is kept": (remembers, r"layer 'a' \(InTraining\) changes with every pass"),
}


@pytest.mark.parametrize("name", TRAINING)
def test_what_influences_examples_in_training_mode_only_is_refused_there(name):
    function, words = TRAINING[name]
    network = made(lambda: Applied(lambda m, x: m.a(x), 16, a=InTraining(function)))
    train = LocalTraining(kind="gradient", batch_size=SIZE, training=Training(mode="training"))
    with pytest.raises(Inapplicable, match=words):
        DpSgd(clip=1.0, noise_multiplier=1.0).local(train)(network, batch(), rng=Rng.root(0))


def test_layers_that_stay_in_evaluation_are_frozen_under_dp_sgd():
    network = made(lambda: Applied(lambda m, x: m.a(x), 16, a=nn.BatchNorm1d(4)))
    how = {"kind": "gradient", "batch_size": 8}
    frozen = LocalTraining(**how, training=Training(mode="training", frozen=("a",)))
    private = DpSgd(clip=1.0, noise_multiplier=SILENT)
    sent = private.local(frozen)(network, batch(), rng=Rng.root(0)).tensors
    same = private.local(LocalTraining(**how))(network, batch(), rng=Rng.root(0)).tensors
    torch.testing.assert_close(sent, same)


@pytest.mark.parametrize("layer", [Noisy, Stubborn])
def test_noise_in_every_mode_is_named(layer):
    network = made(lambda: Applied(lambda m, x: m.a(x), 16, a=layer()))
    train = DpSgd(clip=1.0, noise_multiplier=1.0).local(LocalTraining(kind="gradient", batch_size=SIZE))
    with pytest.raises(Inapplicable, match=rf"layer 'a' \({layer.__name__}\) draws at random in every mode"):
        train(network, batch(), rng=Rng.root(0))

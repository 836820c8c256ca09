"""A network's own code in both modes: what a client computes, what attacks repeat of it, and what draws."""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.attacks.base import About
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.property.per_example import shares_gradients
from glasshouse.attacks.rows.tableak import TabLeak
from glasshouse.errors import BadScenario, BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.guard.pursuit.states import EVALUATION, TRAINING, in_mode
from glasshouse.interfaces.modes import mode_of, moved_buffers
from glasshouse.modalities.row import Column, Row
from glasshouse.models.build import adapted_copy
from glasshouse.rng import Rng
from glasshouse.settings import Training
from glasshouse.wire import Batch

CLASSES, SIZE = 5, 4
IMAGES = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 1, 3, 4, 2, 0, 3])
ORDER = tuple(torch.arange(8).split(SIZE))
EXACT = 1e-6
"""Share of the update's squared norm that rounding leaves."""


class Net(nn.Module):
    """Two layers; others change what is between them."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(64, 16), nn.Linear(16, CLASSES)

    def between(self, x):
        return x

    def forward(self, x):
        return self.out(self.between(self.first(x.flatten(1)).relu()))


class Drops(Net):
    def between(self, x):
        return F.dropout(x, 0.5, self.training)


class Auxiliary(Net):
    """A head that exists in training only."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        hidden = self.first(x.flatten(1)).relu()
        return self.out(hidden) + 0.3 * self.head(hidden) if self.training else self.out(hidden)


class Normed(Net):
    """Batch norm by its function, with statistics of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("var", torch.ones(16))

    def between(self, x):
        return F.batch_norm(x, self.mean, self.var, training=self.training)


class Resting(Net):
    """A batch norm that its own method keeps in evaluation; the method returns nothing, as many do."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def between(self, x):
        return self.norm(x)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()


class Spectral(Net):
    """A weight whose norm is estimated anew in every pass of training."""

    def __init__(self):
        super().__init__()
        self.middle = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))

    def between(self, x):
        return self.middle(x)


class Centred(Net):
    """A statistic of the batch by hand, in both modes."""

    def between(self, x):
        return x - x.mean(0)


class Noisy(Normed):
    """Draws of four kinds beside statistics of the batch, all of them in one piece of code."""

    def between(self, x):
        x = super().between(x)
        if self.training:
            x = x + torch.randn_like(x)
            x = x * torch.bernoulli(torch.full_like(x, 0.8)) / 0.8
        return F.dropout(x, 0.5, self.training)


class Foreign(Net):
    """Draws that are not torch's."""

    def between(self, x):
        if not self.training or random.random() < 0.2:
            return x
        return x + torch.from_numpy(np.random.randn(*x.shape)).float()  # noqa: NPY002  # as people write it


class Path(nn.Module):
    """Leaves out a branch for some examples, as it stands in many repositories."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(16, 16)

    def forward(self, x):
        if not self.training:
            return x + self.branch(x)
        return x + self.branch(x) / 0.7 * (0.7 + torch.rand(len(x), 1)).floor()


class Stochastic(Normed):
    """A part that draws, and a batch norm by its function."""

    def __init__(self):
        super().__init__()
        self.path = Path()

    def between(self, x):
        return super().between(self.path(x))


class Tuple(Auxiliary):
    """Two outputs in training, one in evaluation."""

    def forward(self, x):
        hidden = self.first(x.flatten(1)).relu()
        return (self.out(hidden), self.head(hidden)) if self.training else self.out(hidden)


NETWORKS = (Drops, Auxiliary, Normed, Resting, Spectral, Centred)


def made(kind, *, nested=False, mode=True):
    torch.manual_seed(0)
    net = nn.Sequential(kind()) if nested else kind()
    net.train(mode)
    return net


def looped(net, *, mode, seed=0):
    """The change of parameters after a loop as people write it."""
    client = copy.deepcopy(net)
    client.train(mode)
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    torch.manual_seed(seed)
    for rows in ORDER:
        optimizer.zero_grad()
        F.cross_entropy(client(IMAGES[rows]), LABELS[rows]).backward()
        optimizer.step()
    after = dict(client.named_parameters())
    return {name: (after[name] - p).detach() for name, p in net.named_parameters()}


def seen_by(net, update):
    return gh.view(net, update, input_shape=(1, 8, 8), examples=8, batch_size=SIZE, sends="delta")


def at_truth(net, update):
    """Of what is repeated at the truth, as a share of the update's squared norm."""
    measure = objective(replica(seen_by(net, update), subject="a case"), distance="squared")
    return float(measure(IMAGES[None], LABELS[None]).detach()) / measure.target_square


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_simulated_client_trains_as_a_loop_does(kind, nested, mode):
    """The mode did not reach the root of a network: its own dropout and heads were off."""
    net, rng = made(kind, nested=nested), Rng.root(3)
    expected = looped(net, mode=mode, seed=rng.child("dropout").seed())
    training = Training(mode="training" if mode else "evaluation")
    train = LocalTraining(kind="delta", batch_size=SIZE, training=training, order=ORDER)
    given = train(adapted_copy(net), Batch(inputs=IMAGES, labels=LABELS), rng=rng).tensors
    for name, change in expected.items():
        torch.testing.assert_close(given[name], change, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("kind", [k for k in NETWORKS if k is not Drops])
def test_an_attack_repeats_what_a_loop_does(kind, mode):
    net = made(kind, mode=mode)
    assert at_truth(net, looped(net, mode=mode)) < EXACT


@pytest.mark.parametrize("kind", [Drops, Noisy, Stochastic, Foreign])
def test_what_is_drawn_is_put_off_and_nothing_else(kind):
    """Dropout by its function is off like the layer; beside it the statistics of the batch stay."""
    net = made(kind)
    client = replica(seen_by(net, looped(net, mode=True)), subject="a case")
    before = torch.get_rng_state()
    answers = [client.trained(IMAGES) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    hidden = net.first(IMAGES.flatten(1)).relu()
    hidden = net.path.eval()(hidden) if kind is Stochastic else hidden
    if issubclass(kind, Normed):
        hidden = F.batch_norm(hidden, None, None, training=True)
    for answer in answers:
        torch.testing.assert_close(answer, net.out(hidden))


def test_candidates_of_a_network_with_a_batch_statistic_by_hand_do_not_meet():
    """Restarts went through it in one batch: at the truth 0.3 of the update was unexplained."""
    net = made(Centred, mode=False)
    update = torch.autograd.grad(F.cross_entropy(net(IMAGES), LABELS), list(net.parameters()))
    client = replica(gh.view(net, update, input_shape=(1, 8, 8), examples=8), subject="a case")
    measure = objective(client, distance="squared")
    both = torch.stack([IMAGES, torch.rand_like(IMAGES)])
    errors = measure(both, LABELS.expand(2, -1)).detach() / measure.target_square
    assert float(errors[0]) < EXACT < float(errors[1])


def test_gradients_are_shared_only_where_no_example_meets_another():
    for kind, mode, shared in (
        (Net, "training", True), (Drops, "training", True), (Centred, "evaluation", False),
        (Normed, "evaluation", True), (Normed, "training", False),
    ):  # fmt: skip
        net = made(kind)
        terms = seen_by(net, looped(net, mode=True)).terms
        told = terms.training.model_copy(update={"mode": mode})
        assert shares_gradients(adapted_copy(net), told_terms(terms, told)) == shared


def told_terms(terms, training):
    return replace(terms, training=training)


def test_the_mode_of_a_network_is_read_off_its_own_code_too():
    assert mode_of(made(Drops)) == Training(mode="training")
    assert mode_of(made(Drops, mode=False)) == Training()
    assert mode_of(made(Spectral)).mode == "training"
    assert mode_of(made(Resting)).frozen == ("norm",)
    part = nn.Sequential(made(Resting, mode=False))
    part[0].norm.training = True
    with pytest.raises(BadValue, match=r"'0' in evaluation and '0\.norm' in training"):
        mode_of(part)


def test_auxiliary_outputs_of_training_are_refused_unless_the_loss_is_said():
    net = made(Tuple)
    update = [torch.randn_like(p) for p in net.parameters()]
    with pytest.raises(BadValue, match=r"got +a tuple of 2\n.*aux_logits=False"):
        gh.view(net, update, input_shape=(1, 8, 8))
    gh.view(net.eval(), update, input_shape=(1, 8, 8))
    told = gh.adapt(made(Tuple), logits=lambda out: out[0] if isinstance(out, tuple) else out)
    gh.view(told, update, input_shape=(1, 8, 8))
    mine = {"name": "x", "federation": {"protocol": "fedavg"}, "attacks": ["label_inference"],
            "data": {"auxiliary": 16, "heldout": 16, "examples": 4}}  # fmt: skip
    data = torch.rand(80, 1, 8, 8), torch.arange(80) % CLASSES
    with pytest.raises(BadScenario, match="a tuple of 2"):
        gh.check(mine, data, model=made(Tuple))
    gh.check({**mine, "federation": {"protocol": "fedsgd"}}, data, model=made(Tuple))
    with pytest.raises(BadScenario, match="in mode training"):
        gh.check(mine, data, model=made(Broken))


class Broken(Net):
    def between(self, x):
        return self.missing(x) if self.training else x


class Looped(Net):
    def train(self, loader, epochs):
        raise AssertionError("no mode is set")


def test_a_training_loop_named_train_is_refused_by_name():
    with pytest.raises(BadValue, match=r"got +train\(loader, epochs\)\n +fix +give your training loop"):
        gh.view(nn.Sequential(Looped()), [], input_shape=(1, 8, 8))


def test_statistics_of_own_code_are_seen_to_leave():
    """A guarantee about updates was stated although they left beside it."""
    training = Training(mode="training")
    assert moved_buffers(made(Normed), IMAGES, training) == ("mean", "var")
    assert moved_buffers(made(Normed), IMAGES, Training()) == ()
    tracked = nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True))
    assert moved_buffers(tracked, IMAGES, training) == ("0.running_mean", "0.running_var")


def test_networks_that_were_adapted_first_are_told_apart_by_their_settings():
    names = []
    for share in (0.1, 0.5):
        net = made(Net)
        net.share = share
        seen = gh.view(gh.adapt(net), [torch.zeros_like(p) for p in net.parameters()], input_shape=(1, 8, 8))
        names.append(seen.terms.architecture.name)
    assert names[0] != names[1]


@pytest.mark.parametrize("mode", [TRAINING, EVALUATION])
def test_the_guard_looks_at_a_network_without_its_draws(mode):
    one = in_mode(made(Noisy), mode, IMAGES)
    assert torch.equal(one(IMAGES), one(IMAGES))
    assert one.training == (mode == TRAINING)


def test_rows_are_searched_with_the_statistics_of_the_batch():
    table = Row(columns=tuple(Column(name=f"c{i}", kind="continuous", low=0, high=1) for i in range(6)))
    rows, labels = torch.rand(4, 6), torch.tensor([0, 1, 1, 0])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()
    update = torch.autograd.grad(F.cross_entropy(net(rows), labels), list(net.parameters()))
    seen = gh.view(net, update, inputs=table, examples=4)
    search = TabLeak().objective(seen, About(rounds=(0,), client=0), rng=Rng.root(0))
    assert float(search.loss(rows[None], labels[None])) < EXACT
    with pytest.raises(Inapplicable, match="statistics of the batch"):
        gh.attack("double_span")(seen)

"""Steps as people really take them, each beside a loop in plain torch; and attacks that repeat them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadFile, BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build
from glasshouse.models.memory import keep
from glasshouse.outside.schema import ArchitectureFile
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer, Training
from glasshouse.tasks.classification import Classification
from glasshouse.transcript.described import architecture_of
from glasshouse.wire import Architecture, Batch

CLASSES, SHAPE = 5, (1, 6, 6)
WEIGHTS = (3.0, 1.0, 0.2, 1.0, 2.0)


def own_loss(outputs, wanted):
    """A loss that no library has: squared hinge of every class."""
    return (1 - (2 * wanted - 1) * outputs).clamp_min(0).square().mean(1)


OWN = f"{__name__}:own_loss"
LOSSES = {
    "weights": (
        Classification(classes=CLASSES, weights=WEIGHTS),
        lambda z, y: F.cross_entropy(z, y, weight=torch.tensor(WEIGHTS)),
    ),
    "ignored": (
        Classification(classes=CLASSES, ignored=(2,)),
        lambda z, y: F.cross_entropy(z, y, ignore_index=2),
    ),
    "smoothing": (
        Classification(classes=CLASSES, smoothing=0.2),
        lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2),
    ),
    "binary": (
        Classification(classes=CLASSES, criterion="binary"),
        lambda z, y: F.binary_cross_entropy_with_logits(z, F.one_hot(y, CLASSES).float()),
    ),
    "squared": (
        Classification(classes=CLASSES, criterion="squared"),
        lambda z, y: F.mse_loss(z, F.one_hot(y, CLASSES).float()),
    ),
    "focal": (
        Classification(classes=CLASSES, criterion="focal", gamma=1.5),
        lambda z, y: ((1 - torch.exp(-F.cross_entropy(z, y, reduction="none"))) ** 1.5
                      * F.cross_entropy(z, y, reduction="none")).mean(),
    ),
    "huber": (
        Classification(classes=CLASSES, criterion="huber"),
        lambda z, y: F.smooth_l1_loss(z, F.one_hot(y, CLASSES).float()),
    ),
    "margin": (
        Classification(classes=CLASSES, criterion="margin"),
        F.multi_margin_loss,
    ),
    "divergence": (
        Classification(classes=CLASSES, criterion="divergence"),
        lambda z, y: F.kl_div(z.log_softmax(1), F.one_hot(y, CLASSES).float(), reduction="none").mean(),
    ),
    "pos_weight": (
        Classification(classes=CLASSES, criterion="binary", positive=4.0),
        lambda z, y: F.binary_cross_entropy_with_logits(
            z, F.one_hot(y, CLASSES).float(), pos_weight=torch.tensor(4.0)
        ),
    ),
    "own": (
        Classification(classes=CLASSES, criterion=OWN),
        lambda z, y: own_loss(z, F.one_hot(y, CLASSES).float()).mean(),
    ),
}  # fmt: skip


def network(*, norm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))


def examples(count):
    rng = torch.Generator().manual_seed(1)
    return Batch(
        inputs=torch.rand(count, *SHAPE, generator=rng),
        labels=torch.randint(CLASSES, (count,), generator=rng),
    )


def trained(net, task, data, *, kind="delta", **how):
    """What the simulation's client sends, and the rows of its steps."""
    model = build(Architecture.of(keep(net), SHAPE, task))
    settings = {"batch_size": len(data), "learning_rate": 0.5, **how}
    done = LocalTraining(kind=kind, **settings)(model, data, rng=Rng.root(0))
    return dict(done.tensors), done


def by_hand(net, loss, data, order, *, optimizer=None, closure=None):
    """A loop as in any tutorial: the change of the parameters over the batches in ``order``."""
    model = copy.deepcopy(net)
    steps = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.5)
    for rows in order:
        steps.zero_grad()
        loss(model(data.inputs[rows]), data.labels[rows]).backward()
        if closure is not None:
            closure(model)
        steps.step()
    start = dict(net.named_parameters())
    return {name: (p - start[name]).detach() for name, p in model.named_parameters()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, t in one.items():
        torch.testing.assert_close(t, other[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_that_of_torch(name):
    task, loss = LOSSES[name]
    net, data = network(), examples(6)
    sent, done = trained(net, task, data, batch_size=2, epochs=2)
    assert len(done.order) == 6
    assert_same(sent, by_hand(net, loss, data, done.order))


@pytest.mark.parametrize("name", LOSSES)
def test_matching_is_zero_at_the_truth_under_the_told_loss_and_labels_are_read(name):
    task, loss = LOSSES[name]
    net, data = network(), examples(4)
    update = torch.autograd.grad(loss(net(data.inputs), data.labels), list(net.parameters()))
    seen = gh.view(net, update, input_shape=SHAPE, examples=4, task=task)
    client = replica(seen, subject="test")
    for distance in ("cosine", "squared"):
        at_truth = objective(client, distance=distance)(data.inputs[None], data.labels[None])
        assert float(at_truth.detach()) < 1e-6
    counts = gh.attack("label_inference")(seen)[0].counts
    true = data.labels.bincount(minlength=CLASSES)
    if name == "ignored":
        counts, true = counts[[0, 1, 3, 4]], true[[0, 1, 3, 4]]
        assert int(counts.sum()) >= int(true.sum())
    else:
        assert int(torch.minimum(counts, true).sum()) >= 3


@pytest.mark.parametrize("name", ["weights", "binary"])
def test_several_candidates_are_weighed_each_on_its_own(name):
    """Candidates in one batch must not share the sum of their weights."""
    task, loss = LOSSES[name]
    net, data = network(), examples(4)
    update = torch.autograd.grad(loss(net(data.inputs), data.labels), list(net.parameters()))
    seen = gh.view(net, update, input_shape=SHAPE, examples=4, task=task)
    other = torch.tensor([0, 0, 1, 1])
    pairs = torch.stack([data.inputs, data.inputs]), torch.stack([data.labels, other])
    measure = objective(replica(seen, subject="test"), distance="squared")
    together = measure(*pairs).detach()
    alone = [measure(x[None], y[None]).detach() for x, y in zip(*pairs, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone))


STEPS = {
    "sum": (Training(reduction="sum"), {"batch_size": 2}),
    "drop_last": (Training(drop_last=True), {"batch_size": 4}),
    "accumulate": (Training(accumulate=2), {"batch_size": 2}),
    "accumulate unevenly": (Training(accumulate=3), {"batch_size": 2}),
    "accumulate with batch norm": (Training(accumulate=2, mode="training"), {"batch_size": 3}),
    "clip": (Training(clip_norm=0.1), {"batch_size": 3}),
    "proximal": (Training(proximal=0.7), {"batch_size": 3}),
}


def loop(net, data, order, how, *, batch, optimizer):
    """The same steps in plain torch, with clip_grad_norm_ and gradients that add up."""
    model = copy.deepcopy(net)
    model.train(how.mode == "training")
    start = [p.detach().clone() for p in model.parameters()]
    steps = optimizer(model.parameters())
    for rows in order:
        steps.zero_grad()
        parts = rows.split(batch)
        for part in parts:
            loss = F.cross_entropy(model(data.inputs[part]), data.labels[part], reduction=how.reduction)
            if how.proximal:
                far = sum(((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True))
                loss = loss + how.proximal / 2 * far
            (loss / len(parts)).backward()
        if how.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), how.clip_norm)
        steps.step()
    names = [name for name, _ in model.named_parameters()]
    return {n: (p - s).detach() for n, p, s in zip(names, model.parameters(), start, strict=True)}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=0.9, nesterov=True)])
def test_steps_are_those_of_a_plain_loop_and_attacks_repeat_them(name, optimizer):
    how, settings = STEPS[name]
    net, data = network(norm=how.mode == "training"), examples(6)
    plain = Classification(classes=CLASSES)
    sent, done = trained(
        net, plain, data, training=how, optimizer=optimizer, epochs=2, learning_rate=0.05, **settings
    )

    def torchs(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=optimizer.momentum, nesterov=optimizer.nesterov)

    expected = loop(net, data, done.order, how, batch=settings["batch_size"], optimizer=torchs)
    for key, t in sent.items():
        torch.testing.assert_close(t, expected[key], rtol=1e-4, atol=1e-6)
    # The attack takes the images of every epoch in the same order, so one epoch is compared.
    sent, done = trained(net, plain, data, training=how, optimizer=optimizer, learning_rate=0.05, **settings)
    seen = gh.view(
        net, sent, input_shape=SHAPE, examples=6, sends="delta", learning_rate=0.05, optimizer=optimizer,
        training=how, **settings,
    )  # fmt: skip
    assert seen.rounds[0].updates[0].steps == done.steps
    client, rows = replica(seen, subject="test"), torch.cat(done.order)
    assert client.images == len(rows)
    at_truth = objective(client, distance="squared")(data.inputs[rows][None], data.labels[rows][None])
    assert float(at_truth.detach()) < 1e-5 * float(objective(client, distance="squared").target_square)


def test_a_sum_of_weighted_losses_is_refused_by_name():
    net, data = network(), examples(4)
    loss = F.cross_entropy(net(data.inputs), data.labels, weight=torch.tensor(WEIGHTS), reduction="sum")
    update = torch.autograd.grad(loss, list(net.parameters()))
    task = Classification(classes=CLASSES, weights=WEIGHTS)
    seen = gh.view(net, update, input_shape=SHAPE, examples=4, task=task, training=Training(reduction="sum"))
    for attack in ("label_inference", "inverting_gradients"):
        with pytest.raises(Inapplicable, match="a sum of weighted losses"):
            gh.attack(attack)(seen)


def test_a_foreign_file_cannot_name_code_as_a_loss():
    stated = {
        "name": "mlp",
        "inputs": {"name": "image", "fields": {"size": [1, 6, 6]}},
        "task": {"name": "classification", "fields": {"classes": 3, "criterion": "os:getcwd"}},
    }
    raw = ArchitectureFile.model_validate(stated)
    with pytest.raises(BadFile, match="never has code imported"):
        architecture_of(raw, subject="file", trust_factory=False)
    assert architecture_of(raw, subject="file", trust_factory=True).task.code == "os:getcwd"


def test_an_own_loss_that_reduces_over_the_batch_is_refused():
    task = Classification(classes=CLASSES, criterion="torch.nn.functional:cross_entropy")
    with pytest.raises(BadValue, match="the loss of each example"):
        task.losses(torch.zeros(3, CLASSES), torch.tensor([0, 1, 2]), torch.zeros(3, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"criterion": "hinge"},
        {"criterion": "focal", "positive": 2.0},
        {"criterion": "binary", "positive": 0.0},
        {"criterion": "squared", "weights": (1.0,) * CLASSES},
        {"ignored": (7,)},
        {"ignored": (0, 1, 2, 3, 4)},
    ],
)
def test_losses_that_do_not_exist_are_refused(wrong):
    with pytest.raises(BadValue, match="criterion cross_entropy, binary, squared, focal, huber"):
        Classification(classes=CLASSES, **wrong)

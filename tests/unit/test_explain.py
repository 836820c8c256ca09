"""Losses and modes that nobody states are tried: exactly with a test client's examples, else by searches."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import BadValue
from glasshouse.settings import Training
from glasshouse.tasks.regression import Regression

CLASSES, SHAPE = 5, (1, 6, 6)
LOSSES = {
    "cross-entropy": F.cross_entropy,
    "label smoothing of 0.1": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
    "binary cross-entropy": lambda z, y: F.binary_cross_entropy_with_logits(z, F.one_hot(y, CLASSES).float()),
    "mean squared error": lambda z, y: F.mse_loss(z, F.one_hot(y, CLASSES).float()),
    "class weights by inverse frequency": lambda z, y: F.cross_entropy(
        z, y, weight=torch.tensor([4 / 3, 2 / 3, 0, 0, 4 / 3]).where(y.bincount(minlength=5) > 0, 4 / 3)
    ),
}


def setting(*, norm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(4)] if norm else []
    net = nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
    return net, torch.rand(4, *SHAPE), torch.tensor([0, 1, 1, 4])


def sent(net, loss, images, labels, *, training):
    client = copy.deepcopy(net).train(training)
    return torch.autograd.grad(loss(client(images), labels), list(client.parameters()))


@pytest.mark.parametrize("words", LOSSES)
@pytest.mark.parametrize("training", [False, True])
def test_a_test_clients_examples_settle_loss_and_mode(words, training):
    net, images, labels = setting(norm=True)
    update = sent(net, LOSSES[words], images, labels, training=training)
    seen = gh.view(net.eval(), update, input_shape=SHAPE, examples=4)
    first, second, *_ = gh.explain(seen, examples=(images, labels))
    assert first.words == f"{words}, mode {'training' if training else 'evaluation'}"
    assert first.reproduced
    assert not second.reproduced
    assert first.view.terms.training.mode == ("training" if training else "evaluation")


@pytest.mark.parametrize("words", ["cross-entropy", "binary cross-entropy", "mean squared error"])
def test_without_examples_the_family_of_the_loss_is_found(words):
    net, images, labels = setting()
    update = sent(net, LOSSES[words], images[:1], labels[:1], training=False)
    tried = gh.explain(gh.view(net.eval(), update, input_shape=SHAPE), iterations=60)
    likely = {one.words for one in tried if one.likely}
    assert words in likely
    others = {"cross-entropy", "binary cross-entropy", "mean squared error"} - {words}
    assert not likely & others
    assert [one.error for one in tried] == sorted(one.error for one in tried)


def test_a_stated_loss_is_tried_first_and_other_tasks_are_refused():
    net, images, labels = setting()
    update = sent(net, F.cross_entropy, images, labels, training=False)
    seen = gh.view(net.eval(), update, input_shape=SHAPE, examples=4, training=Training(clip_norm=9.0))
    assert gh.explain(seen, examples=(images, labels))[0].view.terms.training.clip_norm == 9.0
    with pytest.raises(BadValue, match="the 4 examples behind it"):
        gh.explain(seen, examples=(images[:2], labels[:2]))
    one = nn.Sequential(nn.Flatten(), nn.Linear(36, 1))
    told = gh.view(one, [torch.zeros(1, 36), torch.ones(1)], input_shape=SHAPE, task=Regression())
    with pytest.raises(BadValue, match="one class per example"):
        gh.explain(told)


BY_BATCH = {
    "Huber (smooth L1) loss": lambda z, y: F.smooth_l1_loss(z, F.one_hot(y, CLASSES).float()),
    "margin loss": F.multi_margin_loss,
    "Kullback-Leibler divergence, mean over batch and classes": lambda z, y: F.kl_div(
        z.log_softmax(1), F.one_hot(y, CLASSES).float(), reduction="none"
    ).mean(),
    "binary cross-entropy with pos_weight = negatives / positives": lambda z, y: (
        F.binary_cross_entropy_with_logits(
            z, F.one_hot(y, CLASSES).float(), pos_weight=torch.full((CLASSES,), CLASSES - 1.0)
        )
    ),
    "cross-entropy, summed over the batch": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
}


@pytest.mark.parametrize("words", BY_BATCH)
def test_other_losses_in_use_have_a_name(words):
    net, images, labels = setting()
    update = sent(net, BY_BATCH[words], images, labels, training=True)
    seen = gh.view(net.eval(), update, input_shape=SHAPE, examples=4)
    first, second, *_ = gh.explain(seen, examples=(images, labels))
    assert (first.words, first.reproduced, first.stated) == (words, True, True)
    assert not second.reproduced


def triplet(z, y):
    """With torch's own module, over all triples."""
    triples = [
        (a, p, n)
        for a in range(len(y)) for p in range(len(y)) for n in range(len(y))
        if a != p and y[a] == y[p] and y[a] != y[n]
    ]  # fmt: skip
    a, p, n = (torch.tensor(one) for one in zip(*triples, strict=True))
    return nn.TripletMarginLoss(margin=1.0, eps=0.0)(z[a], z[p], z[n])


def contrastive(z, y):
    """Hadsell et al. 2006, pair by pair."""
    terms = []
    for i in range(len(y)):
        for j in range(i + 1, len(y)):
            d = (z[i] - z[j]).norm()
            terms.append(d**2 if y[i] == y[j] else (1 - d).clamp_min(0) ** 2)
    return torch.stack(terms).mean()


@pytest.mark.parametrize(
    ("words", "loss"),
    [
        ("triplet loss over all triples, margin 1", triplet),
        ("contrastive loss over all pairs, margin 1", contrastive),
    ],
)
def test_losses_of_pairs_and_triples_are_named_and_not_repeated(words, loss):
    net, images, labels = setting()
    update = sent(net, loss, images, labels, training=True)
    seen = gh.view(net.eval(), update, input_shape=SHAPE, examples=4)
    first, second, *_ = gh.explain(seen, examples=(images, labels))
    assert (first.words, first.reproduced, first.stated) == (words, True, False)
    assert first.view.terms == seen.terms
    assert not second.reproduced


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("optimizer Adagrad, learning rate 0.01", torch.optim.Adagrad),
        ("optimizer RMSprop, learning rate 0.001", lambda p: torch.optim.RMSprop(p, lr=1e-3)),
        ("optimizer L-BFGS, learning rate 0.1", lambda p: torch.optim.LBFGS(p, lr=0.1)),
    ],
)
def test_optimizers_that_no_terms_state_are_named(words, make):
    """Two steps of two images, as people write the loop."""
    net, images, labels = setting()
    client = copy.deepcopy(net)
    optimizer = make(client.parameters())
    for rows in torch.arange(4).split(2):

        def closure(rows=rows):
            optimizer.zero_grad()
            loss = F.cross_entropy(client(images[rows]), labels[rows])
            loss.backward()
            return loss

        optimizer.step(closure)
    change = [(a - b).detach() for a, b in zip(client.parameters(), net.parameters(), strict=True)]
    seen = gh.view(net, change, input_shape=SHAPE, examples=4, sends="delta", batch_size=2, learning_rate=0.1)
    first, second, *_ = gh.explain(seen, examples=(images, labels))
    assert (first.words, first.reproduced, first.stated) == (words, True, False)
    assert not second.reproduced


def test_a_stated_sum_is_reproduced():
    """It was compared with the mean, and the client's true terms were called wrong."""
    net, images, labels = setting()
    update = sent(net, lambda z, y: F.cross_entropy(z, y, reduction="sum"), images, labels, training=True)
    seen = gh.view(net.eval(), update, input_shape=SHAPE, examples=4, training=Training(reduction="sum"))
    first = gh.explain(seen, examples=(images, labels))[0]
    assert (first.words, first.reproduced) == ("cross-entropy", True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, y.float()), "whole numbers"),
        (lambda x, y: (x, y[:, None]), r"labels \(B,\)"),
        (lambda x, y: (x, y + 3), "from 0 to 4"),
        (lambda x, y: (x, y - 1), "a class of each of the 4"),
        (lambda x, y: (x, y[:2]), "a class of each of the 4"),
        (lambda x, y: (x.numpy(), y.numpy()), "a pair of tensors"),
        (lambda x, y: x, "a pair of tensors"),
        (lambda x, y: (x[..., :3], y), r"\(4, 1, 6, 6\)"),
    ],
)
def test_examples_that_cannot_be_those_behind_an_update_are_refused(change, words):
    net, images, labels = setting()
    update = sent(net, F.cross_entropy, images, labels, training=False)
    seen = gh.view(net.eval(), update, input_shape=SHAPE, examples=4)
    with pytest.raises(BadValue, match=words):
        gh.explain(seen, examples=change(images, labels))


def test_what_is_no_view_or_no_search_is_refused():
    net, images, labels = setting()
    update = sent(net, F.cross_entropy, images, labels, training=False)
    with pytest.raises(BadValue, match=r"gh\.view"):
        gh.explain(update)
    with pytest.raises(BadValue, match="iterations"):
        gh.explain(gh.view(net.eval(), update, input_shape=SHAPE, examples=4), iterations=0)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"task": "classification"}, "task as an object"),
        ({"labels": "0,1"}, "labels of the 4 examples"),
        ({"labels": [0.5, 1, 1, 4]}, "labels of the 4 examples"),
        ({"update": None}, "a list of them"),
        ({"update": "gradient"}, "a list of them"),
    ],
)
def test_a_view_of_what_is_no_update_is_refused(told, words):
    net, images, labels = setting()
    update = told.pop("update", sent(net, F.cross_entropy, images, labels, training=False))
    with pytest.raises(BadValue, match=words):
        gh.view(net.eval(), update, input_shape=SHAPE, examples=4, **told)


def test_a_view_of_complex_numbers_is_refused():
    net, images, labels = setting()
    update = sent(net, F.cross_entropy, images, labels, training=False)
    with pytest.raises(BadValue, match="real numbers"):
        gh.view(net.eval(), [t.to(torch.complex64) for t in update], input_shape=SHAPE, examples=4)

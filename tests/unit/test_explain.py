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

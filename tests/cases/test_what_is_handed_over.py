"""Arguments of another type than a function takes: answered in our form, not by a traceback."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import BadValue

IMAGES = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 4
SCENARIO = {
    "name": "small",
    "data": {"auxiliary": 20, "heldout": 20},
    "attacks": ["linear_input"],
    "audit": {"metrics": ["psnr"], "distractors": 9},
}


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def seen():
    network = net()
    gradient = torch.autograd.grad(F.cross_entropy(network(IMAGES[:1]), LABELS[:1]), network.parameters())
    return gh.view(network, gradient, input_shape=(1, 8, 8))


CALLS = {
    "load": lambda: gh.load(None),
    "terms": lambda: gh.terms(3),
    "defenses": lambda: gh.defenses(None),
    "out": lambda: gh.audit(SCENARIO, (IMAGES, LABELS), model=net(), out=3),
    "jobs": lambda: gh.audit(SCENARIO, (IMAGES, LABELS), model=net(), jobs="2"),
    "shape": lambda: gh.view(net(), [], input_shape=8),
    "half an iteration": lambda: gh.explain(seen(), iterations=1.5),
    "no seed": lambda: gh.explain(seen(), iterations=1, seed="a"),
    "no pair": lambda: gh.guard(net(), data=(IMAGES,)),
    "no numbers": lambda: gh.guard(net(), data=(IMAGES, ["cat"] * 20)),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_type_is_refused(name):
    with pytest.raises(BadValue):
        CALLS[name]()


def test_the_guard_takes_arrays_and_classes_of_any_whole_type():
    network = net()
    plain = gh.guard(network, agreed=network, data=(IMAGES, LABELS))
    arrays = gh.guard(network, agreed=network, data=(IMAGES.numpy(), LABELS.numpy().astype(np.int32)))
    assert arrays.verdict == plain.verdict

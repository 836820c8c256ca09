"""Calls from where people stand: in a block without gradients, with other defaults; networks that object."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import GlasshouseError
from glasshouse.models.memory import keep

IMAGE, LABEL = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([2])
DATA = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 4
SCENARIO = {
    "name": "small",
    "data": {"auxiliary": 20, "heldout": 20},
    "federation": {"clients": 2},
    "attacks": [{"name": "inverting_gradients", "search": {"iterations": 2, "restarts": 1}}],
    "audit": {"victims": 2, "controls": False, "distractors": 9, "metrics": ["psnr"]},
}


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def wide_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def matched():
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        network = net().float()
        gradient = torch.autograd.grad(F.cross_entropy(network(IMAGE), LABEL), network.parameters())
    seen = gh.view(network, gradient, input_shape=(1, 8, 8))
    (claim,) = gh.attack("inverting_gradients", search={"iterations": 5, "restarts": 1})(seen, seed=1)
    return claim


@pytest.mark.parametrize(
    "block",
    [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", dtype=torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_an_attack_searches_as_anywhere_else_and_leaves_the_block_as_it_was(block):
    usual = matched()
    with block():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        claim = matched()
        assert before == (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        )  # fmt: skip
    assert torch.equal(claim.inputs, usual.inputs)


def test_another_default_type_changes_nothing(wide_default):
    assert torch.get_default_dtype() is torch.float64
    claim = matched()
    assert claim.inputs.dtype is torch.float32
    assert torch.get_default_dtype() is torch.float64


def test_an_audit_runs_without_gradients_around_it(tmp_path):
    with torch.no_grad():
        assert gh.check(SCENARIO, data=DATA, model=net()).suite.name == "small"
        run = gh.audit(SCENARIO, data=DATA, model=net(), out=tmp_path / "run")
    assert not run.refusals
    assert len(run.findings) == 1


class Asserts(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        assert x.shape[-1] == 224, "image size"
        return self.head(x.flatten(1))


class Missing(Asserts):
    def forward(self, x):
        raise NotImplementedError


class Lacks(Asserts):
    def forward(self, x):
        raise ImportError("flash attention")


class Locked(Asserts):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        return self.head(x.flatten(1))


@pytest.mark.parametrize("kind", [Asserts, Missing, Lacks, Locked])
def test_whatever_a_network_raises_is_said(kind):
    words = {Asserts: "AssertionError: image size", Missing: "NotImplementedError", Lacks: "flash attention",
             Locked: "deepcopy"}[kind]  # fmt: skip
    for call in (
        lambda: gh.view(kind(), [], input_shape=(1, 8, 8)),
        lambda: gh.check(SCENARIO, data=DATA, model=kind()),
    ):
        with pytest.raises(GlasshouseError) as caught:
            call()
        assert words in str(caught.value)


class Scaled(nn.Module):
    """What tells two of these apart stands in no state_dict."""

    def __init__(self, *, factor=1.0, held=1.0, code=None):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.head = nn.Linear(64, 4)
        self.register_buffer("factor", torch.tensor(factor), persistent=False)
        self.held = torch.tensor(held)
        self.code = code or (lambda z: z)

    def forward(self, x):
        return self.code(self.head(x.flatten(1)) * self.factor * self.held)


def scale(by):
    return lambda z: z * by


def hooked(by):
    network = Scaled()
    network.head.register_forward_hook(lambda module, inputs, output: output * by)
    return network


def frozen():
    network = Scaled()
    network.head.bias.requires_grad_(False)
    return network


def test_networks_that_differ_outside_of_their_state_do_not_take_each_others_place():
    every = [
        Scaled(), Scaled(factor=2.0), Scaled(held=2.0), Scaled(code=scale(2)), Scaled(code=scale(3)),
        Scaled(code=partial(torch.mul, other=2)), Scaled(code=partial(torch.mul, other=3)),
        hooked(2), hooked(3), frozen(),
    ]  # fmt: skip
    assert len({keep(network) for network in every}) == len(every)
    assert keep(Scaled()) == keep(Scaled())


def test_freezing_a_layer_later_does_not_change_an_earlier_view():
    network = net()
    gradient = torch.autograd.grad(F.cross_entropy(network(IMAGE), LABEL), network.parameters())
    seen = gh.view(network, gradient, input_shape=(1, 8, 8))
    network[1].requires_grad_(False)
    gh.view(network, gradient[2:], input_shape=(1, 8, 8))
    (claim,) = gh.attack("linear_input")(seen)
    assert torch.allclose(claim.inputs, IMAGE, atol=1e-4)

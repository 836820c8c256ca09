"""Updates and side knowledge in the forms in which people hold them: right, or refused by name."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import BadValue, GlasshouseError

SHAPE = (1, 8, 8)
IMAGES = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 3, 1])


def net(*, batch_norm=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = [nn.BatchNorm1d(16)] if batch_norm else []
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *norm, nn.ReLU(), nn.Linear(16, 4))


def gradient(network, count=1):
    loss = F.cross_entropy(network(IMAGES[:count]), LABELS[:count])
    return torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])


def quantised(t):
    return torch.quantize_per_tensor(t, float(t.abs().max()) / 127 + 1e-12, 0, torch.qint8)


HELD = {
    "sparse": (lambda t: t.to_sparse(), 1e-5),
    "sparse rows": (lambda t: t.to_sparse_csr() if t.ndim == 2 else t, 1e-5),
    "quantised with its scale": (quantised, 0.05),
    "eight bits": (lambda t: t.to(torch.float8_e4m3fn), 0.1),
    "the other byte order": (lambda t: t.numpy().astype(">f4"), 1e-5),
    "read backwards": (lambda t: t.numpy()[::-1].copy()[::-1], 1e-5),
    "lists": (torch.Tensor.tolist, 1e-5),
    "with a gradient": (lambda t: t.clone().requires_grad_(), 1e-5),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("how", HELD)
def test_numbers_are_read_whatever_holds_them(how):
    hold, error = HELD[how]
    seen = gh.view(net(), [hold(t) for t in gradient(net())], input_shape=SHAPE)
    (claim,) = gh.attack("linear_input")(seen)
    assert float((claim.inputs - IMAGES[:1]).abs().max()) < error


WRONG = {
    "whole numbers": (lambda t: (t * 100).to(torch.int8), "undo the quantisation"),
    "yes and no": (lambda t: t > 0, "undo the quantisation"),
    "no values": (lambda t: t.to("meta"), "meta device"),
    "objects": (lambda t: t.numpy().astype(object), "arrays of numbers"),
    "examples apart": (lambda t: t[None].expand(4, *t.shape), "(4, 16, 64), not (16, 64)"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_is_no_update_is_refused_at_once(how):
    hold, words = WRONG[how]
    with pytest.raises(BadValue) as caught:
        gh.view(net(), [hold(t) for t in gradient(net())], input_shape=SHAPE)
    assert words in str(caught.value)


def test_forms_of_the_whole():
    network = net()
    named = {name: t for (name, _), t in zip(network.named_parameters(), gradient(network), strict=True)}
    for update, words in (
        (list(named.items()), "dict(update)"),
        (iter(named.values()), "an object of type dict_valueiterator"),
        (torch.cat([t.flatten() for t in named.values()]), "an object of type Tensor"),
        ([*named.values(), torch.zeros(1), torch.zeros(1)], "6 tensors"),
    ):
        with pytest.raises(BadValue) as caught:
            gh.view(network, update, input_shape=SHAPE)
        assert words in str(caught.value)
    with pytest.raises(BadValue, match="weights on the meta device"):
        gh.view(net().to("meta"), named, input_shape=SHAPE)
    positions = {f"arr_{place}": t.numpy() for place, t in enumerate(named.values())}  # numpy.savez(*arrays)
    (update,) = gh.view(network, positions, input_shape=SHAPE).rounds[0].updates.values()
    assert all(torch.equal(update.tensors[name], t) for name, t in named.items())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


def test_both_names_of_a_tied_weight_are_taken_and_two_values_are_not():
    network = Tied()
    named = dict(zip(dict(network.named_parameters()), gradient(network), strict=True))
    named["second.weight"] = named["first.weight"]
    (update,) = gh.view(network, named, input_shape=SHAPE).rounds[0].updates.values()
    assert "second.weight" not in update.tensors
    del named["first.weight"]
    gh.view(network, named, input_shape=SHAPE)
    with pytest.raises(BadValue, match="which are one weight"):
        gh.view(network, {**named, "first.weight": named["second.weight"] * 2}, input_shape=SHAPE)


@pytest.mark.parametrize("as_list", [False, True])
def test_a_whole_state_carries_running_statistics_and_the_mode_they_prove(as_list, caplog):
    network = net(batch_norm=True).eval()
    before = {name: t.clone() for name, t in network.state_dict().items()}
    trained = net(batch_norm=True).train()
    stepper = torch.optim.SGD(trained.parameters(), lr=0.1)
    F.cross_entropy(trained(IMAGES), LABELS).backward()
    stepper.step()
    after = trained.state_dict()
    delta = {name: t - before[name] for name, t in after.items()}
    given = [t.numpy() for t in delta.values()] if as_list else delta
    with caplog.at_level(logging.WARNING):
        seen = gh.view(network, given, input_shape=SHAPE, examples=4, sends="delta")
    (update,) = seen.rounds[0].updates.values()
    assert torch.allclose(update.buffers["2.running_mean"], after["2.running_mean"], atol=1e-6)
    assert seen.terms.training.mode == "training"
    assert "running statistics" in caplog.text
    assert gh.explain(seen, examples=(IMAGES, LABELS))[0].reproduced
    stated = gh.view(net(batch_norm=True).train(), after, input_shape=SHAPE, examples=4, sends="parameters")
    (update,) = stated.rounds[0].updates.values()
    assert torch.allclose(update.buffers["2.running_var"], after["2.running_var"], atol=1e-6)


@pytest.mark.parametrize("labels", [LABELS.int(), LABELS.to(torch.uint8), LABELS.numpy(), [*LABELS.numpy()]])
def test_labels_of_any_whole_type_are_classes(labels):
    network = net()
    seen = gh.view(network, gradient(network, 4), input_shape=SHAPE, examples=4, labels=labels)
    assert torch.equal(seen.grants.labels[0, 0], LABELS)
    (claim,) = gh.attack("inverting_gradients", search={"iterations": 3, "restarts": 1})(seen)
    assert claim.inputs.shape == IMAGES.shape


@pytest.mark.parametrize("labels", [LABELS.float(), F.one_hot(LABELS, 4), ["cat"] * 4, 7, LABELS > 0])
def test_labels_that_are_no_classes_are_refused(labels):
    network = net()
    with pytest.raises(BadValue):
        gh.view(network, gradient(network, 4), input_shape=SHAPE, examples=4, labels=labels)


@pytest.mark.parametrize(
    "auxiliary",
    [
        (IMAGES.numpy(), LABELS.numpy()),
        (IMAGES.double(), LABELS.int()),
        (IMAGES.half(), LABELS.tolist()),
        ((IMAGES > 0.5).long(), LABELS),
    ],
)
def test_auxiliary_examples_are_taken_in_any_type_and_used(auxiliary):
    network = net()
    seen = gh.view(network, gradient(network), input_shape=SHAPE, auxiliary=auxiliary)
    small = {"training": {"steps": 2}, "search": {"evaluations": 10, "population": 5}, "latent": 4}
    claim, *_ = gh.attack("ggl", **small)(seen)
    assert claim.inputs.shape == (1, *SHAPE)


@pytest.mark.parametrize(
    "auxiliary",
    [
        (IMAGES, LABELS + 7),
        (IMAGES, LABELS.float()),
        (IMAGES, LABELS[:2]),
        torch.utils.data.TensorDataset(IMAGES, LABELS),
        (IMAGES, ["cat"] * 4),
    ],
)
def test_auxiliary_examples_of_no_class_are_refused(auxiliary):
    network = net()
    with pytest.raises(BadValue):
        gh.view(network, gradient(network), input_shape=SHAPE, auxiliary=auxiliary)


@pytest.mark.parametrize("called", [{"device": "gpu"}, {"device": "meta"}, {"seed": -1}, {"seed": 1.5}])
def test_a_call_that_no_attack_can_have_is_refused(called):
    network = net()
    seen = gh.view(network, gradient(network), input_shape=SHAPE)
    with pytest.raises(BadValue):
        gh.attack("linear_input")(seen, **called)
    with pytest.raises(BadValue, match="needs  a view"):
        gh.attack("linear_input")(network)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 4)

    def forward(self, x):
        features = torch.tanh(self.body(x.flatten(1)))
        return self.head(features + 0.1 * torch.randn_like(features))


@pytest.mark.parametrize(("draws", "network"), [(True, Noisy()), (False, net())])
def test_a_view_says_that_a_network_draws_by_its_own_code(draws, network, caplog):
    with caplog.at_level(logging.WARNING):
        gh.view(network, gradient(network), input_shape=SHAPE)
    assert ("draws at random" in caplog.text) is draws


def test_a_normalisation_is_read_from_arrays_and_logits_from_functions_only():
    adapted = gh.adapt(net(), normalize=(np.array([0.5]), np.array([0.25])))
    assert torch.equal(adapted(IMAGES), net()((IMAGES - 0.5) / 0.25))
    with pytest.raises(GlasshouseError, match=r"lambda output: output\['logits'\]"):
        gh.adapt(net(), logits="logits")

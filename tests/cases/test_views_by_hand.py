"""What is said to ``gh.view`` beside an update: misspelt, of another size, under a wrapper's names."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import BadValue
from glasshouse.settings import Optimizer


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4))


INPUTS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 3, 1])


def gradient(network):
    loss = F.cross_entropy(network(INPUTS), LABELS)
    return {
        name: slope
        for (name, _), slope in zip(
            network.named_parameters(), torch.autograd.grad(loss, list(network.parameters())), strict=True
        )
    }


def view(update=None, **said):
    network = net()
    how = {"input_shape": (1, 8, 8), "examples": 4, **said}
    return gh.view(network, gradient(network) if update is None else update, **how)


WRONG = {
    "sends": ({"sends": "weights"}, "one of gradient, delta, parameters"),
    "examples": ({"examples": 0}, "examples >= 1"),
    "half an example": ({"examples": 4.5}, "examples as an int"),
    "batch_size": ({"batch_size": 0}, "batch_size >= 1"),
    "learning_rate": ({"sends": "delta", "learning_rate": 0.0}, "learning_rate > 0"),
    "a batch": ({"input_shape": (4, 1, 8, 8)}, "leave the batch out"),
    "no channels": ({"input_shape": (8, 8)}, "say the channels"),
    "optimizer": ({"optimizer": "adam"}, "settings.Optimizer"),
    "training": ({"training": {"mode": "training"}}, "settings.Training"),
    "too many labels": ({"labels": [0] * 9}, "labels of the 4 examples"),
    "no such label": ({"labels": [9, 0, 0, 0]}, "from 0 to 3"),
    "other examples": ({"auxiliary": (torch.rand(5, 3, 8, 8), LABELS)}, "resize and scale"),
    "no examples": ({"auxiliary": (INPUTS[:0], LABELS[:0])}, "a label each"),
    "no numbers": ({"auxiliary": (INPUTS * torch.nan, LABELS)}, "from nan"),
    "other range": ({"auxiliary": (INPUTS * 255, LABELS)}, "from 0 to 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_client_can_have_is_refused(name):
    said, words = WRONG[name]
    with pytest.raises(BadValue) as caught:
        view(**said)
    assert words in str(caught.value)


def test_a_wrappers_names_are_taken_off():
    plain = gradient(net())
    wrapped = {f"module.{name}": slope for name, slope in plain.items()}
    (update,) = view(wrapped).rounds[0].updates.values()
    assert all(torch.equal(update.tensors[name], slope) for name, slope in plain.items())


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (torch.optim.Adam, Optimizer(name="adam")),
        (torch.optim.AdamW, Optimizer(name="adamw", weight_decay=0.01)),
    ],
)
def test_steps_of_adam_are_reproduced_by_the_clients_own_examples(kind, told):
    network = net()
    received = {name: p.detach().clone() for name, p in network.named_parameters()}
    stepper = kind(network.parameters(), lr=0.1)
    for _ in range(2):
        stepper.zero_grad()
        F.cross_entropy(network(INPUTS), LABELS).backward()
        stepper.step()
    delta = {name: p.detach() - received[name] for name, p in network.named_parameters()}
    seen = view(delta, sends="delta", local_epochs=2, learning_rate=0.1, optimizer=told)
    best = gh.explain(seen, examples=(INPUTS, LABELS))[0]
    assert best.words == "cross-entropy"
    assert best.reproduced


@pytest.mark.parametrize("given", [nn.Linear, {}])
def test_adapt_takes_networks_only(given):
    with pytest.raises(BadValue, match="a network of PyTorch"):
        gh.adapt(given)


def test_a_normalisation_has_a_mean_and_a_deviation():
    with pytest.raises(BadValue, match="mean, standard deviation"):
        gh.adapt(net(), normalize=0.5)


@pytest.mark.parametrize("seed", range(5))
def test_new_parameters_say_what_their_change_and_the_gradient_say(seed):
    """They were read as if they were the change, so that a random label came out, and no picture."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    picture, label = torch.rand(1, 1, 8, 8), torch.tensor([seed])
    slopes = torch.autograd.grad(F.cross_entropy(network(picture), label), list(network.parameters()))
    moved = [p.detach() - 0.1 * slope for p, slope in zip(network.parameters(), slopes, strict=True)]
    sent = {"gradient": slopes, "delta": [-0.1 * slope for slope in slopes], "parameters": moved}
    for kind, update in sent.items():
        seen = gh.view(network, update, input_shape=(1, 8, 8), sends=kind)
        assert gh.attack("label_inference")(seen)[0].counts.argmax() == seed, kind
        (claim,) = gh.attack("linear_input")(seen)
        assert torch.allclose(claim.inputs, picture, atol=1e-4), kind


class HeadFirst(nn.Module):
    """Its last layer is registered before the others, and another one is never used."""

    def __init__(self):
        super().__init__()
        self.last, self.body, self.unused = nn.Linear(10, 10), nn.Linear(64, 10), nn.Linear(10, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.body(x.flatten(1))))


@pytest.mark.parametrize("seed", range(5))
def test_the_head_is_the_layer_that_computes_the_logits(seed):
    torch.manual_seed(seed)
    network, picture, label = HeadFirst(), torch.rand(1, 1, 8, 8), torch.tensor([seed])
    named = {name: p for name, p in network.named_parameters() if "unused" not in name}
    slopes = torch.autograd.grad(F.cross_entropy(network(picture), label), list(named.values()))
    seen = gh.view(network, dict(zip(named, slopes, strict=True)), input_shape=(1, 8, 8))
    assert gh.attack("label_inference")(seen)[0].counts.argmax() == seed

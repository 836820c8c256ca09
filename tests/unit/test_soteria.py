"""Soteria against one backward pass per feature; where it must refuse."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.base import smallest
from glasshouse.federation.defenses.soteria import Soteria, defended_layer, feature_scores
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Update

RNG = Rng.root(0)


@pytest.fixture
def model() -> nn.Module:
    """Twenty features: more than one backward pass serves, and no multiple of it. Trained statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 20, 3),
            nn.BatchNorm2d(20),
            nn.ReLU(),
            nn.AvgPool2d(6),
            nn.Flatten(),
            nn.Linear(20, 3),
        )
        model.train()(torch.rand(64, 1, 8, 8))
    return model.eval()


@pytest.fixture
def batch() -> Batch:
    inputs = torch.rand(3, 1, 8, 8, generator=RNG.torch())
    return Batch(inputs=inputs, labels=torch.tensor([0, 2, 1]))


def gradient(model: nn.Module, batch: Batch) -> Update:
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(
        F.cross_entropy(model(batch.inputs), batch.labels), list(model.parameters())
    )
    tensors = dict(zip(names, gradients, strict=True))
    return Update(round=1, client=2, kind="gradient", tensors=tensors, examples=len(batch))


class Tied(nn.Module):
    """One convolution before two norms, then the same norm twice: neither may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 20, 6)
        self.norms = nn.ModuleList(nn.BatchNorm2d(20) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return torch.relu(self.norms[0](y) + self.norms[1](self.norms[1](y)))


class Branching(nn.Module):
    """Its ``forward`` looks at the values, so that it cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Counting(nn.Module):
    """Its ``forward`` asks for a length, which a symbol does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), 1, 8, 8)


class Own(nn.Linear):
    """A user's linear layer."""


def slow(model: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
    """The definition: one backward pass per feature and example."""
    scores = torch.zeros(20)
    for i in range(len(inputs)):
        x = inputs[i : i + 1].clone().requires_grad_(True)
        for f, r in enumerate(model[:-1](x)[0]):
            (slope,) = torch.autograd.grad(r, x, retain_graph=True)
            scores[f] += slope.norm() / (r.detach().abs() + 1e-10) / len(inputs)
    return scores


@pytest.mark.parametrize("size", [1, 3])
def test_scores_are_those_of_the_definition(model, batch, size):
    expected = slow(model, batch.inputs[:size])
    tensor = feature_scores(model, "5", batch.inputs[:size])
    torch.testing.assert_close(tensor.float(), expected, rtol=1e-4, atol=0)
    assert torch.equal(smallest(tensor, 0.8), smallest(expected, 0.8))


@pytest.mark.parametrize("first", [Tied, Branching, Counting])
def test_scores_are_those_of_the_definition_where_nothing_can_be_folded(model, batch, first):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rest = list(model)[3:] if first is Tied else list(model)
        rest[-3:] = [nn.AvgPool2d(3 if first is Tied else 6), nn.Flatten(), nn.Linear(20, 3)]
        model = nn.Sequential(first(), *rest)
        model.train()(torch.rand(64, 1, 8, 8))
    tensor = feature_scores(model.eval(), f"{len(model) - 1}", batch.inputs)
    torch.testing.assert_close(tensor.float(), slow(model, batch.inputs), rtol=1e-4, atol=0)


def test_zeroes_the_columns_of_the_least_scores_and_nothing_else(model, batch):
    update = gradient(model, batch)
    sent = Soteria(share=0.8).gradient(update, batch, model, rng=RNG).tensors
    hidden = smallest(slow(model, batch.inputs), 0.8)
    assert int(hidden.sum()) == 16
    assert not sent["5.weight"][:, hidden].any()
    assert torch.equal(sent["5.weight"][:, ~hidden], update.tensors["5.weight"][:, ~hidden])
    assert all(torch.equal(sent[name], t) for name, t in update.tensors.items() if name != "5.weight")


def test_hides_no_or_all_columns_at_the_ends_of_the_range(model, batch):
    update = gradient(model, batch)
    assert torch.equal(
        Soteria(share=0.0).gradient(update, batch, model, rng=RNG).tensors["5.weight"],
        update.tensors["5.weight"],
    )
    assert not Soteria(share=1.0).gradient(update, batch, model, rng=RNG).tensors["5.weight"].any()


def test_scores_do_not_depend_on_the_mode_of_the_model(model, batch):
    evaluated = feature_scores(model, "5", batch.inputs)
    assert torch.equal(feature_scores(model.train(), "5", batch.inputs), evaluated)


def test_an_empty_step_is_left_as_it_is(model, batch):
    update = gradient(model, batch)
    empty = batch.pick(torch.tensor([], dtype=torch.int64))
    assert Soteria(share=0.8).gradient(update, empty, model, rng=RNG) is update


def test_defends_a_named_layer():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    assert defended_layer(model) == "3"
    assert defended_layer(model, "1") == "1"
    with pytest.raises(Inapplicable) as caught:
        defended_layer(model, "0")
    assert (caught.value.needs, caught.value.got) == ("a linear layer '0'", "1, 3")


def test_defends_a_subclass_of_a_linear_layer():
    model = nn.Sequential(nn.Conv2d(1, 20, 8), nn.Flatten(), Own(20, 3)).eval()
    x = torch.rand(1, 1, 8, 8, generator=RNG.torch())
    result = feature_scores(model, "2", x).float()
    torch.testing.assert_close(result, slow(model, x), rtol=1e-4, atol=0)


def test_refuses_a_model_without_a_linear_layer():
    with pytest.raises(Inapplicable, match="needs  a model with a linear layer"):
        defended_layer(nn.Conv2d(1, 1, 3))


def test_refuses_an_update_without_the_defended_layer(model, batch):
    update = gradient(model, batch)
    part = Update(round=1, client=2, kind="delta", tensors={"5.bias": update.tensors["5.bias"]}, examples=3)
    with pytest.raises(Inapplicable) as caught:
        Soteria(share=0.5).gradient(part, batch, model, rng=RNG)
    assert caught.value.needs == "'5.weight' in the update"
    assert caught.value.got == "round 1, client 2: 5.bias"


def test_refuses_new_parameters(model, batch):
    update = Update(round=1, client=2, kind="parameters", tensors=dict(model.named_parameters()), examples=3)
    with pytest.raises(Inapplicable, match="kind parameters"):
        Soteria(share=0.5).gradient(update, batch, model, rng=RNG)


def test_a_perturbed_loss_is_refused_where_it_is_not_all_that_the_client_sends(model, batch):
    """A clip before it, or a step's own terms, would be lost when the gradient is computed anew."""
    update = gradient(model, batch)
    shorter = dataclasses.replace(update, tensors={name: t / 2 for name, t in update.tensors.items()})
    for sent in (shorter, dataclasses.replace(update, kind="delta")):
        with pytest.raises(Inapplicable, match=r"a (gradient|delta) that differs"):
            Soteria(share=0.5, loss="perturbed").gradient(sent, batch, model, rng=RNG)
    for name, t in gradient(model, batch).tensors.items():  # the model is as it was
        torch.testing.assert_close(t, update.tensors[name])
    hidden = Soteria(share=0.5, loss="perturbed").gradient(update, batch, model, rng=RNG)
    assert int((hidden.tensors["5.weight"] == 0).all(0).sum()) == 10
    assert not torch.equal(hidden.tensors["0.weight"], update.tensors["0.weight"])

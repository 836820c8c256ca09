"""A candidate matched in pieces: the same distance and slope as whole, and refused where that is not so."""

import logging

import pytest
import torch
from torch import nn

from glasshouse.attacks.parts.matching import distance as matching
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.matching.split import Pieces, Split, joined_by, mixed_by
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadValue
from glasshouse.settings import Training
from glasshouse.testing.toys import toy


def wide(model):
    return model.double().requires_grad_(False)


def network():
    """Convolutions, batch norm in evaluation mode and a linear layer, in float64."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 36, 5)]
    model = nn.Sequential(*layers)
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2.0)
    return wide(model.eval())


def slopes(pieces, inputs, targets, wanted):
    """The gradient, and its derivative along ``wanted`` by inputs and, if real, targets."""
    x = inputs.clone().requires_grad_()
    y = targets.clone().requires_grad_(targets.is_floating_point())
    update = pieces.gradient(x, y)
    value = sum((update[n] * w).sum() + update[n].square().sum() for n, w in wanted.items())
    return update, torch.autograd.grad(value, [x, y] if y.requires_grad else [x])


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("soft", [False, True])
def test_pieces_of_any_size_have_the_gradient_and_the_slopes_of_the_whole_batch(size, soft):
    model, rng = network(), torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 3, 8, 8, generator=rng, dtype=torch.float64)
    targets = torch.arange(8) % 5
    if soft:
        targets = torch.rand(8, 5, generator=rng, dtype=torch.float64).softmax(1)
    parameters = dict(model.named_parameters())
    wanted = {n: torch.randn(p.shape, generator=rng, dtype=torch.float64) for n, p in parameters.items()}
    whole = slopes(Pieces(model, parameters, size=8), inputs, targets, wanted)
    mine = slopes(Pieces(model, parameters, size=size), inputs, targets, wanted)
    for name in parameters:
        torch.testing.assert_close(mine[0][name], whole[0][name], rtol=1e-9, atol=1e-12)
    for one, other in zip(mine[1], whole[1], strict=True):
        assert float(other.abs().max()) > 1e-6
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_whole_batch_in_one_piece_is_what_autograd_says():
    model = network()
    inputs = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parameters = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    loss = nn.functional.cross_entropy(torch.func.functional_call(model, parameters, inputs), torch.arange(4))
    true = torch.autograd.grad(loss, list(parameters.values()))
    update = Pieces(model, parameters, size=3).gradient(inputs, torch.arange(4))
    for one, other in zip(update.values(), true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "squared"])
@pytest.mark.parametrize("adaptive", [False, Adaptation(clip=0.05)])
def test_a_split_search_has_the_losses_and_slopes_of_one_that_is_not(distance, adaptive, monkeypatch, caplog):
    client = replica(toy(examples=8, model="convnet", arguments={"width": 2}).view(), subject="a test")
    rng = torch.Generator().manual_seed(3)
    start, labels = torch.randn(2, 8, *client.shape, generator=rng), torch.arange(8).repeat(2, 1) % 3

    def found():
        points = start.clone().requires_grad_()
        values = objective(client, distance=distance, adaptive=adaptive)(points, labels)
        return values.detach(), torch.autograd.grad(values.sum(), points)[0]

    whole = found()
    assert not caplog.records
    monkeypatch.setattr(matching, "LARGE", 0)
    same = found()  # measured, and found to fit: the very same numbers
    assert all(torch.equal(one, other) for one, other in zip(same, whole, strict=True))
    monkeypatch.setattr(matching, "room", lambda device: 1)
    with caplog.at_level(logging.INFO):
        split = found()
    assert "matched 1 at a time" in caplog.text
    torch.testing.assert_close(split[0], whole[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(split[1], whole[1], rtol=1e-3, atol=1e-3 * float(whole[1].abs().max()))


def test_victims_that_share_a_search_are_split_each_against_its_own_update():
    model = network()
    parameters = dict(model.named_parameters())
    inputs = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    labels = torch.arange(4).repeat(2, 1)
    whole = Pieces(model, parameters, size=4)
    targets = [{n: g.detach() for n, g in whole.gradient(x, labels[0]).items()} for x in inputs]
    split = Split(model, parameters, targets, [{}, {}], size=3)
    matched = split(inputs, labels, create_graph=False)
    assert float(matched.gap.abs().max()) < 1e-20
    crossed = split(inputs, labels, create_graph=False, victims=(1, 1))
    assert float(crossed.gap.sum(0)[0]) > 1e-6
    assert float(crossed.gap.sum(0)[1]) < 1e-20


def test_a_batch_norm_that_uses_its_batch_is_refused_by_name(monkeypatch, caplog):
    model = network()
    model[1].train()
    assert joined_by(model) == "'1' (BatchNorm2d) normalises with the statistics of the batch"
    with pytest.raises(BadValue, match=r"'1' \(BatchNorm2d\)"):
        Split(model, dict(model.named_parameters()), [{}], [{}], size=2)
    made = toy(examples=4, training=Training(mode="training"), model="convnet", arguments={"width": 2})
    client = replica(made.view(), subject="a test")
    monkeypatch.setattr(matching, "LARGE", 0)
    monkeypatch.setattr(matching, "room", lambda device: 1)
    points = torch.randn(1, 4, *client.shape, generator=torch.Generator().manual_seed(5))
    with caplog.at_level(logging.INFO):
        whole = objective(client, distance="cosine")(points, torch.arange(4)[None] % 3, create_graph=False)
    assert whole.isfinite().all()
    assert "matched whole" in caplog.text
    assert "(BatchNorm2d) normalises with the statistics of the batch" in caplog.text


class Centred(nn.Module):
    """Takes the mean of its batch off, as no layer that is known by name does."""

    def forward(self, inputs):
        return inputs - inputs.mean(0, keepdim=True)


def test_statistics_of_the_batch_by_hand_are_found_by_running_the_network():
    inputs, labels = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(6)), torch.arange(4)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    mixing = nn.Sequential(nn.Flatten(), Centred(), nn.Linear(192, 5))
    assert joined_by(mixing) == ""
    assert "layer '1' (Centred)" in mixed_by(mixing, inputs, labels)
    assert mixed_by(plain, inputs, labels) == ""
    assert mixed_by(plain, inputs, torch.rand(4, 5).softmax(1)) == ""

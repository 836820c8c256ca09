"""What a client is told of its own sentences in an update, before it sends it."""

import pytest
import torch

from glasshouse.data.sources import load
from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.guard.sentences import preflight_sentences
from glasshouse.interfaces import mean_loss
from glasshouse.models.build import build
from glasshouse.wire import Architecture

SOURCE = load("sentences")


def model_of(**arguments):
    return build(
        Architecture(
            name="small_gpt",
            input_shape=SOURCE.input_shape,
            classes=4,
            vocabulary=SOURCE.vocabulary,
            arguments={"width": 64, **arguments},
        )
    ).eval()


def gradient(model, batch):
    parameters = LocalTraining(kind="gradient", batch_size=1).parameters(model)
    return dict(
        zip(parameters, torch.autograd.grad(mean_loss(model, batch), parameters.values()), strict=True)
    )


def batch(count, first=0):
    return SOURCE.splits["train"].batch(torch.arange(first, first + count))


@pytest.mark.parametrize("count", [1, 4])
def test_own_sentences_stand_in_a_gradient_and_others_do_not(count):
    model = model_of()
    sent = gradient(model, batch(count))
    seen = preflight_sentences(sent, model, batch(count).inputs)
    assert seen.standing == tuple(range(count))
    assert seen.rank == seen.tokens < seen.width == 64
    assert f"all of your {count} sentences stand" in seen.summary
    strangers = preflight_sentences(sent, model, batch(count, 50).inputs)
    assert strangers.standing == ()


def test_a_batch_that_fills_the_span_hides_them_and_its_size_was_said_before():
    model = model_of()
    few = preflight_sentences(gradient(model, batch(2)), model, batch(2).inputs)
    assert 3 <= few.full_at <= 8
    many = batch(3 * few.full_at)
    full = preflight_sentences(gradient(model, many), model, many.inputs)
    assert full.rank == full.width
    assert full.standing == ()
    assert "leaves no room" in full.summary


def test_noise_hides_them():
    model, one = model_of(), batch(1)
    draws = torch.Generator().manual_seed(0)
    sent = {n: g + torch.randn(g.shape, generator=draws) for n, g in gradient(model, one).items()}
    assert preflight_sentences(sent, model, one.inputs).standing == ()


def test_an_update_without_that_layer_says_so():
    model, one = model_of(), batch(1)
    seen = preflight_sentences({}, model, one.inputs)
    assert seen.rows == 0
    assert "nothing was looked for" in seen.summary


def test_what_are_no_sentences_is_refused():
    model = model_of()
    with pytest.raises(BadValue, match="tokens"):
        preflight_sentences({}, model, torch.full((1, 4), 10_000))

"""What a client is told of its own sentences in an update, before it sends it."""

import pytest
import torch

from glasshouse.data.sources import load
from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import Memory, preflight
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.pulls import pulls_of
from glasshouse.guard.sentences import preflight_sentences
from glasshouse.interfaces import mean_loss
from glasshouse.models.build import build
from glasshouse.wire import Architecture

SOURCE = load("sentences")


def model_of(**arguments):
    return build(
        Architecture(
            name="small_gpt",
            inputs=SOURCE.inputs,
            task=SOURCE.task,
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


def test_preflight_reads_sentences_where_the_model_does():
    model, four = model_of(), batch(4)
    seen = preflight(gradient(model, four), model, four.inputs, four.labels, kind="gradient")
    assert seen.controlled
    assert seen.standing("input") == (0, 1, 2, 3)
    assert {leak.layer for leak in seen.leaks} == {"body.layers.0.qkv"}
    assert "rank" in seen.summary
    assert f"{seen.sentences.full_at} sentences like yours in one update" in seen.summary
    assert (seen.unseen, seen.seen) == ((), 1.0)


def test_batches_that_are_accumulated_count_like_one():
    model = model_of()
    full_at = preflight(gradient(model, batch(2)), model, batch(2).inputs, batch(2).labels).sentences.full_at
    parts = [batch(2, first) for first in range(0, 2 * full_at, 2)]
    total = {}
    for part in parts:
        for name, g in gradient(model, part).items():
            total[name] = total.get(name, 0) + g
    inputs = torch.cat([part.inputs for part in parts])
    labels = torch.cat([part.labels for part in parts])
    seen = preflight(total, model, inputs, labels, kind="gradient")
    assert seen.sentences.rank == seen.sentences.width
    assert seen.standing("input") == ()
    assert seen.controlled


def test_a_sentence_as_long_as_the_layer_is_wide_leaves_nothing_to_say():
    model, one = model_of(width=8), batch(1)
    seen = preflight(gradient(model, one), model, one.inputs, one.labels, kind="gradient")
    assert not seen.controlled
    assert "Nothing can be said" in seen.summary


def test_more_sentences_hide_them_and_nothing_else_is_tried():
    model, few, many = model_of(), batch(2), batch(60, 2)
    update = gradient(model, few)
    closed = mitigate(update, model, (few.inputs, few.labels), kind="gradient")
    assert closed.update is None
    assert closed.trials == ()
    grown = mitigate(
        update,
        model,
        (few.inputs, few.labels),
        kind="gradient",
        memory=Memory(others=(many.inputs, many.labels)),
    )
    assert [trial.remedy for trial in grown.trials] == ["grow the batch"]
    assert grown.trials[0].standing == 0


def test_a_received_model_is_judged_on_sentences_and_all_of_it_is_looked_at():
    model, some = model_of(), batch(24)
    own = Own(inputs=some.inputs, targets=some.labels)
    pulls = pulls_of(model, own)
    assert not pulls.unseen
    assert pulls.seen == 1

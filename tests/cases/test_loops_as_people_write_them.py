"""What ``gh.explain`` says of a test client's loop: leftover batches, untold optimizers, factors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadValue
from glasshouse.settings import Training

SHAPE = (1, 8, 8)
IMAGES = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 3, 1, 2])


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4))


def loop(*, size=5, every=1, last=False, optimizer=torch.optim.SGD, clip=None, mean=False, passes=1, **how):
    """The change by a loop that divides each batch's loss, and steps after ``every`` batches."""
    network = net()
    model = copy.deepcopy(network)
    stepper = optimizer(model.parameters(), lr=0.1, **how)
    batches = torch.arange(5).split(size)
    for _ in range(passes):
        stepper.zero_grad()
        for number, rows in enumerate(batches, start=1):
            alone = mean and number > len(batches) // every * every
            parts = len(batches) % every if alone else every
            (F.cross_entropy(model(IMAGES[rows]), LABELS[rows]) / parts).backward()
            if number % every == 0 or (last and number == len(batches)):
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                stepper.step()
                stepper.zero_grad()
    return network, [(p - q).detach() for p, q in zip(model.parameters(), network.parameters(), strict=True)]


LEFT = {
    "mean": {"last": True, "mean": True},
    "share": {"last": True},
    "dropped": {},
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("leftover", LEFT)
def test_what_a_loop_does_with_batches_that_are_left_over_is_a_term(leftover, size):
    network, delta = loop(size=size, every=2, **LEFT[leftover])
    view = {"input_shape": SHAPE, "examples": 5, "batch_size": size, "sends": "delta"}
    seen = gh.view(network, delta, **view, training=Training(accumulate=2, leftover=leftover))
    best = gh.explain(seen, examples=(IMAGES, LABELS))[0]
    assert (best.words, best.reproduced) == ("cross-entropy", True)
    # The attack takes the steps that the client took, and no others.
    client = replica(seen, subject="test")
    used = client.images
    assert used == (4 if leftover == "dropped" else 5)
    measure = objective(client, distance="squared")
    at_truth = float(measure(IMAGES[None, :used], LABELS[None, :used]).detach())
    assert at_truth < 1e-5 * measure.target_square
    # Another way is named, where nobody said which one it was.
    untold = gh.view(network, delta, **view, training=Training(accumulate=2))
    if leftover != "mean":
        assert f"training.leftover: {leftover} fits" in gh.explain(untold, examples=(IMAGES, LABELS))[0].words


def test_a_leftover_without_accumulation_is_refused():
    with pytest.raises(BadValue, match="accumulate above 1"):
        Training(leftover="share")


UNTOLD = {
    "momentum: 0.9 fits": {"momentum": 0.9, "passes": 2},
    "optimizer: adam fits": {"optimizer": torch.optim.Adam, "passes": 2},
    "weight_decay: 0.001 fits": {"weight_decay": 0.001, "passes": 2},
    "training.clip_norm: 0.1 fits": {"clip": 0.1, "passes": 2},
}


@pytest.mark.parametrize("words", UNTOLD)
def test_terms_that_nobody_stated_are_tried_and_attacked_under(words):
    how = UNTOLD[words]
    network, delta = loop(**how)
    seen = gh.view(network, delta, input_shape=SHAPE, examples=5, sends="delta", local_epochs=how["passes"])
    best = gh.explain(seen, examples=(IMAGES, LABELS))[0]
    assert best.words == words
    assert best.stated
    again = gh.explain(best.view, examples=(IMAGES, LABELS))[0]
    assert again.words.startswith("cross-entropy")  # clipped, a sum is a mean
    assert again.reproduced


@pytest.mark.parametrize("factor", [65536.0, 5.0, 0.02])
@pytest.mark.parametrize("sends", ["gradient", "delta"])
def test_a_factor_that_nobody_took_off_is_named(factor, sends):
    network, delta = loop()
    sent = [t * (factor if sends == "delta" else -10 * factor) for t in delta]
    seen = gh.view(network, sent, input_shape=SHAPE, examples=5, sends=sends)
    (best,) = [one for one in gh.explain(seen, examples=(IMAGES, LABELS)) if one.reproduced]
    if factor == 5:  # a sum over the five examples
        assert best.words == "cross-entropy, summed over the batch"
    else:
        assert best.words.startswith(f"cross-entropy, times {factor:g}")
        assert not best.stated


def test_examples_that_are_not_finite_or_ignored_are_refused():
    network, delta = loop()
    seen = gh.view(network, delta, input_shape=SHAPE, examples=5, sends="delta")
    with pytest.raises(BadValue, match="finite examples"):
        gh.explain(seen, examples=(IMAGES * torch.nan, LABELS))
    with pytest.raises(BadValue, match="leave out what the loss ignores"):
        gh.explain(seen, examples=(IMAGES, torch.tensor([0, -100, 3, 1, 2])))

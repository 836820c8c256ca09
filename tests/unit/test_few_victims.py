"""One victim, and few: what their numbers can decide, and which null a share is compared with."""

import dataclasses

import numpy as np
import pytest
import torch

from glasshouse.audit.scoring.gains import gain_of, p_of, value_of
from glasshouse.audit.scoring.nulls import NullBook
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.errors import Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.reconstruction import Identification, Mse, Psnr
from glasshouse.metrics.recovery import RateBlind
from glasshouse.modalities.image import Image
from glasshouse.rng import Rng
from glasshouse.wire import Batch


def scored(values, null) -> ScoredMetric:
    return ScoredMetric(
        values=tuple(map(np.array, values)),
        nulls=tuple(map(np.array, null)),
        victims=tuple(map(str, range(len(values)))),
        baseline="mean auxiliary image",
    )


def auxiliary(count: int) -> Batch:
    draws = torch.Generator().manual_seed(0)
    return Batch(inputs=torch.rand((count, 1, 8, 8), generator=draws), labels=torch.arange(count) % 4)


def test_of_one_victim_only_the_range_is_known():
    """So that the verdict on the victim itself is reported; the mean decides nothing."""
    one = scored([[30.0]], [[12.0]])
    value, gain = value_of(one, Psnr(), rng=Rng.root(0)), gain_of(one, Psnr(), rng=Rng.root(0))
    assert (value.low, value.value, value.high, value.n) == (0.0, 30.0, 100.0, 1)
    assert (gain.low, gain.value, gain.high) == (-12.0, 18.0, 88.0)
    assert p_of(one, Psnr(), rng=Rng.root(0)) == 1.0
    batch = scored([[1.0, 1.0, 0.0]], [[0.0, 0.0, 0.0]])
    assert not gain_of(batch, RateBlind(), rng=Rng.root(0)).above_zero


def test_of_one_victim_an_error_without_an_upper_limit_says_nothing():
    with pytest.raises(Undefined):
        value_of(scored([[1.0]], [[0.0]]), Mse(), rng=Rng.root(0))


@pytest.mark.parametrize(
    ("n", "most", "leaks"), [(2, 0.07, True), (3, 0.07, True), (4, 0.3, True), (4, 0.45, False)]
)
def test_few_victims_are_compared_with_the_most_that_the_null_can_get(n, most, leaks):
    """The paired test finds nothing below five victims, whatever the attack does."""
    every = dataclasses.replace(scored([[1.0]] * n, [[0.0]] * n), null_most=most)
    gain, p = gain_of(every, RateBlind(), rng=Rng.root(0)), p_of(every, RateBlind(), rng=Rng.root(0))
    assert p == pytest.approx(most**n)
    assert gain.above_zero == (p < 0.025) == leaks
    assert gain.value == 1.0
    plain = scored([[1.0]] * n, [[0.0]] * n)
    assert not gain_of(plain, RateBlind(), rng=Rng.root(0)).above_zero


def test_what_the_null_got_on_the_victims_counts_where_it_is_more():
    every = dataclasses.replace(scored([[1.0]] * 4, [[1.0], [1.0], [0.0], [0.0]]), null_most=0.05)
    assert p_of(every, RateBlind(), rng=Rng.root(0)) == pytest.approx(0.5**4)


def book(known, context=None):
    modality = Image(size=(1, 8, 8))
    return NullBook(modality=modality, auxiliary=known, context=context or ScoreContext(), rng=Rng.root(0))


def test_luck_on_pseudo_victims_does_not_replace_a_known_chance():
    """Nobody is identified by a guess; of 40 pseudo-victims a few are by luck, more than 1 in 100."""
    context = ScoreContext(distractors=torch.rand((99, 1, 8, 8), generator=torch.Generator().manual_seed(1)))
    one = book(auxiliary(400), context)
    names = [one.choose(Identification(), 1, "domain", Rng.root(seed)) for seed in range(20)]
    assert names == ["chance"] * 20


def test_a_null_above_chance_replaces_it():
    """All auxiliary images of a class are alike: a mean image of the class is nearer than any other image."""
    four = torch.rand((4, 1, 8, 8), generator=torch.Generator().manual_seed(2)).repeat(100, 1, 1, 1)
    alike = four + 0.01 * torch.rand((400, 1, 8, 8), generator=torch.Generator().manual_seed(3))
    known = Batch(inputs=alike, labels=torch.arange(400) % 4)
    one, rng = book(known), Rng.root(0)
    sure = one.choose(RateBlind(), 1, "domain", rng)
    assert sure in ("random auxiliary picture", "mean picture of a guessed class")
    most = one.most(RateBlind(), sure, 1, rng)
    assert most is not None
    assert 0.25 < most < 0.5
    grey = book(auxiliary(400)).most(RateBlind(), "grey picture", 1, rng)
    assert grey == pytest.approx(1 - 0.025 ** (1 / 100))
    assert one.most(Mse(), "grey picture", 1, rng) is None

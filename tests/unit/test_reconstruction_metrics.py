"""Scores of reconstructions: known answers, slow twins, and what an attack must not gain by."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.reconstruction import (
    Identification,
    Mse,
    MseR,
    Perceptual,
    Psnr,
    Ssim,
)
from glasshouse.metrics.recovery import RateBlind, RatePaper

PLAIN = ScoreContext()
DISTANCES = [Mse(), Psnr(), Ssim()]


def images(count: int, seed: int = 0, side: int = 8) -> torch.Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(seed))


def off_by(x: torch.Tensor, db: float) -> torch.Tensor:
    """Every pixel wrong by the same amount, so that the PSNR is ``db``."""
    return x.double() + 10 ** (-db / 20)


@pytest.mark.parametrize("metric", [*DISTANCES, RateBlind(), RatePaper()])
def test_the_order_of_reconstructions_does_not_matter(metric):
    truth = images(4)
    claimed = off_by(truth, 25)
    shuffled = metric.score(claimed[[2, 0, 3, 1]], truth, context=PLAIN)
    assert shuffled.shape == (4,)
    np.testing.assert_allclose(shuffled, metric.score(claimed, truth, context=PLAIN))


def test_known_answers():
    truth = images(3)
    claimed = off_by(truth, 20)
    np.testing.assert_allclose(Psnr().score(claimed, truth, context=PLAIN), 20.0)
    np.testing.assert_allclose(Mse().score(claimed, truth, context=PLAIN), 0.01)
    np.testing.assert_allclose(Ssim().score(truth, truth, context=PLAIN), 1.0)
    wide = ScoreContext(image_range=(-1.0, 1.0))
    np.testing.assert_allclose(Psnr().score(claimed, truth, context=wide), 20 + 20 * math.log10(2))


@pytest.mark.parametrize(("metric", "better"), [(Mse(), -1), (Psnr(), 1), (Ssim(), 1)])
def test_declared_direction_is_the_true_one(metric, better):
    truth = images(2)
    good, bad = (metric.score(off_by(truth, db), truth, context=PLAIN).mean() for db in (30, 10))
    assert (good > bad) == (better > 0) == metric.higher_leaks


@pytest.mark.parametrize("metric", DISTANCES)
def test_a_missing_reconstruction_scores_like_grey(metric):
    truth = images(3)
    few = metric.score(truth[:2], truth, context=PLAIN)
    filled = metric.score(torch.cat((truth[:2], torch.full((1, 1, 8, 8), 0.5))), truth, context=PLAIN)
    np.testing.assert_allclose(few, filled)
    assert metric.score(truth[:0], truth, context=PLAIN).shape == (3,)


def test_grey_is_the_middle_of_the_declared_range():
    truth = torch.zeros(1, 1, 8, 8)
    context = ScoreContext(image_range=(-1.0, 1.0))
    assert Mse().score(truth[:0], truth, context=context).tolist() == [0.0]
    assert Mse().score(truth[:0], truth, context=PLAIN).tolist() == [0.25]


def test_more_candidates_than_originals_leave_the_worst_out():
    truth = images(2)
    claimed = torch.cat((images(3, seed=9), off_by(truth, 40)))
    np.testing.assert_allclose(Psnr().score(claimed, truth, context=PLAIN), 40.0)


def test_one_good_image_counts_once_when_blind_and_for_all_in_the_papers_way():
    truth = images(1).expand(3, -1, -1, -1) + torch.linspace(0, 0.01, 3).reshape(3, 1, 1, 1)
    claimed = torch.cat((truth[:1], 1 - truth[1:].round()))
    assert RateBlind().score(claimed, truth, context=PLAIN).sum() == 1
    assert RatePaper().score(claimed, truth, context=PLAIN).sum() == 3


@pytest.mark.parametrize("metric", [RateBlind(), RatePaper()])
def test_threshold_is_above_not_at(metric):
    truth = images(1)
    assert metric.score(off_by(truth, 18.01), truth, context=PLAIN).tolist() == [1.0]
    assert metric.score(off_by(truth, 17.99), truth, context=PLAIN).tolist() == [0.0]
    exact = type(metric)(threshold=100.0)
    assert exact.score(truth, truth, context=PLAIN).tolist() == [0.0]


@pytest.mark.parametrize("metric", [RateBlind(), RatePaper()])
def test_silence_recovers_nothing_even_where_the_truth_is_grey(metric):
    truth = torch.full((2, 1, 8, 8), 0.5)
    assert metric.score(truth[:0], truth, context=PLAIN).tolist() == [0.0, 0.0]


@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 6), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_identification_agrees_with_looking_at_every_image(originals, candidates, others, seed):
    random = np.random.default_rng(seed)
    draw = lambda n: torch.from_numpy(random.integers(0, 3, (n, 1, 2, 2))).float()  # noqa: E731  ties are the hard case
    truth, claimed, distractors = draw(originals), draw(candidates), draw(others)
    hits = Identification().score(claimed, truth, context=ScoreContext(distractors=distractors))
    apart = [[float((c - t).square().sum()) for c in claimed] for t in truth]
    possible = set()
    for way in itertools.permutations([*range(candidates), *[None] * originals], originals):
        if sum(j is None for j in way) != max(originals - candidates, 0):
            continue
        cost = sum(apart[i][j] for i, j in enumerate(way) if j is not None)
        result = tuple(
            float(
                j is not None
                and all(apart[i][j] < float((claimed[j] - d).square().sum()) for d in distractors)
            )
            for i, j in enumerate(way)
        )
        possible.add((cost, result))
    cheapest = min(cost for cost, _ in possible)
    assert (cheapest, tuple(hits)) in possible


def test_a_tie_does_not_identify():
    truth = torch.zeros(1, 1, 2, 2)
    context = ScoreContext(distractors=torch.cat((torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))))
    assert Identification().score(truth, truth, context=context).tolist() == [0.0]


def test_chance_of_identification_is_one_in_m_and_noise_reaches_it():
    context = ScoreContext(distractors=images(3, seed=1))
    assert Identification().chance(context) == 0.25
    hits = [
        Identification()
        .score(
            images(1, seed=100 + i),
            images(1, seed=5000 + i),
            context=ScoreContext(distractors=images(3, seed=9000 + i)),
        )
        .item()
        for i in range(400)
    ]
    assert np.mean(hits) == pytest.approx(0.25, abs=0.07)


def test_mse_r_compares_features_of_the_paired_images():
    truth = images(3)
    items = []

    def features(x: torch.Tensor) -> torch.Tensor:
        items.append(len(x))
        return x.flatten(1)[:, :2] * 10

    context = ScoreContext(features=features)
    claimed = off_by(truth, 20)[[1, 2, 0]]
    np.testing.assert_allclose(MseR().score(claimed, truth, context=context), 1.0, rtol=1e-5)
    assert items == [3, 3]


def test_perceptual_is_the_distance_of_unit_channel_vectors_averaged_over_layers():
    """Two layers; worked out position by position."""
    truth, claimed = torch.rand(2, 2, 3, 4, 4, generator=torch.Generator().manual_seed(5))
    layers = lambda x: (x, x.mean(dim=(2, 3), keepdim=True) - 0.3)  # noqa: E731
    values = Perceptual().score(claimed, truth, context=ScoreContext(perceptual=layers))
    pairing = min(
        ([0, 1], [1, 0]),
        key=lambda p: sum(float((claimed[j] - truth[i]).square().sum()) for i, j in enumerate(p)),
    )
    for i, j in enumerate(pairing):
        each = []
        for a, b in zip(layers(claimed[j : j + 1]), layers(truth[i : i + 1]), strict=True):
            spots = [
                float(
                    (a[0, :, r, c] / a[0, :, r, c].norm() - b[0, :, r, c] / b[0, :, r, c].norm())
                    .square()
                    .sum()
                )
                for r in range(a.shape[2])
                for c in range(a.shape[3])
            ]
            each.append(np.mean(spots))
        assert values[i] == pytest.approx(np.mean(each), rel=1e-4)


def test_perceptual_does_not_care_for_contrast_and_survives_dead_channels():
    truth = images(2)
    layers = lambda x: (x.expand(-1, 3, -1, -1),)  # noqa: E731
    context = ScoreContext(perceptual=layers)
    assert Perceptual().score(truth * 0.5, truth, context=context).tolist() == pytest.approx(
        [0.0, 0.0], abs=1e-9
    )
    assert np.isfinite(Perceptual().score(torch.zeros_like(truth), truth, context=context)).all()


@pytest.mark.parametrize(
    ("metric", "word"),
    [(Identification(), "distractors"), (MseR(), "features"), (Perceptual(), "perceptual")],
)
def test_what_the_context_lacks_makes_the_number_missing(metric, word):
    with pytest.raises(Undefined, match=f"as '{word}' of the score context"):
        metric.score(images(1), images(1), context=PLAIN)
    assert metric.chance(PLAIN) is None


ALL = [*DISTANCES, RateBlind(), RatePaper(), Identification(), MseR(), Perceptual()]
FULL = ScoreContext(distractors=images(2, seed=7), features=lambda x: x.flatten(1), perceptual=lambda x: (x,))


@pytest.mark.parametrize("metric", ALL)
def test_refuses_a_claim_that_is_no_image(metric):
    broken = images(2)
    broken[1, 0, 0, 0] = math.nan
    with pytest.raises(BadValue, match="1 values not finite"):
        metric.score(broken, images(2), context=FULL)
    with pytest.raises(BadValue, match="images of one size"):
        metric.score(images(2, side=9), images(2), context=FULL)
    with pytest.raises(BadValue, match="at least one original"):
        metric.score(images(2), images(0), context=FULL)


@pytest.mark.parametrize(("metric", "field"), [(MseR(), "features"), (Perceptual(), "perceptual")])
def test_refuses_features_that_are_not_finite(metric, field):
    def broken(x: torch.Tensor) -> object:
        bad = torch.full((len(x), 2), math.nan)
        return (bad,) if field == "perceptual" else bad

    with pytest.raises(BadValue, match="finite features of 1 images"):
        metric.score(images(1), images(1), context=ScoreContext(**{field: broken}))


def test_context_refuses_an_empty_range_and_a_prior_that_is_none():
    with pytest.raises(BadValue, match="low < high"):
        ScoreContext(image_range=(1.0, 1.0))
    with pytest.raises(BadValue, match="needs  prior"):
        ScoreContext(prior=0.0)

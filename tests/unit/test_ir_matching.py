"""Inverting representations: by pixels and by generators, each image by itself."""

import pytest
import torch
from reproduce.maui_bench import by_pixels

from glasshouse.attacks.parts.readout.linear_tail import freeze_features
from glasshouse.attacks.parts.search.deep_image_prior import Generators, Search, by_generator
from glasshouse.attacks.parts.search.features import Distance
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

MODEL = Architecture.of("maui_cnn", (1, 8, 8), 10, {"width": 8, "hidden": 16})


@pytest.fixture(scope="module")
def features():
    return freeze_features(MODEL, state(build(MODEL, rng=Rng.root(0))), subject="a test")


def images(n, side=8):
    return torch.rand((n, 1, side, side), generator=torch.Generator().manual_seed(n))


def test_pixels_come_back_from_features():
    mix = torch.randn((64, 256), generator=torch.Generator().manual_seed(0)) / 8

    def wide(inputs):
        return torch.relu((inputs.flatten(1) - 0.5) @ mix)

    x = images(4)
    inverted = by_pixels(wide, wide(x), (1, 8, 8), distance=Distance(tv=0.0), rng=Rng.root(1))
    assert float((inverted.images - x).square().mean()) < 1e-3
    assert inverted.losses.shape == (4,)
    assert float(inverted.images.min()) >= 0
    assert float(inverted.images.max()) <= 1


def test_images_do_not_see_each_other(features):
    """One more in the chunk changes none of the others, whatever it is."""
    goals = features.of(images(3))
    few, more = (
        by_pixels(features, part, (1, 8, 8), distance=Distance(), iterations=20, rng=Rng.root(1)).images
        for part in (goals[:2], torch.cat([goals[:2], goals[2:] * 50]))
    )
    torch.testing.assert_close(few, more[:2], atol=1e-3, rtol=0)


def test_generators_share_nothing():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        both = Generators(2, 1)
    seeds = torch.randn((2, 1, 8, 8), generator=torch.Generator().manual_seed(0)).requires_grad_()
    (slope,) = torch.autograd.grad(both(seeds)[0].sum(), seeds)
    assert bool(slope[0].any())
    assert not bool(slope[1].any())


def test_generators_come_near(features):
    x = images(2)
    goals = features.of(x)
    how = Search(iterations=60)
    inverted = by_generator(features, goals, (1, 8, 8), distance=Distance(tv=0.0), how=how, rng=Rng.root(1))
    grey = Distance(tv=0.0)(features, torch.full_like(x, 0.5), goals)
    assert bool((inverted.losses < grey).all())


def test_a_generator_that_begins_at_an_image_paints_it_before_it_matches(features):
    """Untrained features say little, so that the few steps of matching leave a smooth image where it is."""
    ramp = torch.linspace(0.1, 0.9, 8).expand(2, 1, 8, 8).contiguous()
    how = Search(iterations=1, painting=200)
    begun, unbegun = (
        by_generator(
            features, features.of(ramp), (1, 8, 8), distance=Distance(), how=how, rng=Rng.root(1), start=start
        ).images
        for start in (ramp, None)
    )
    assert float((begun - ramp).square().mean()) < 0.2 * float((unbegun - ramp).square().mean())


def test_generators_refuse_odd_sides(features):
    with pytest.raises(Inapplicable, match="multiples of 4"):
        by_generator(
            features, torch.zeros(1, 8), (1, 9, 9), distance=Distance(), how=Search(), rng=Rng.root(0)
        )


def test_the_distance_is_checked():
    with pytest.raises(BadValue, match="alpha <= 1"):
        Distance(alpha=2.0)

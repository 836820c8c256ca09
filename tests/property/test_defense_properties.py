"""Each defence against its definition: an obviously right twin, a moment, or an invariant."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glasshouse.federation.defenses.base import smallest
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.clip_layers import ClipLayers
from glasshouse.federation.defenses.clip_values import ClipValues
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.federation.defenses.laplace_noise import LaplaceNoise
from glasshouse.federation.defenses.prune import Prune
from glasshouse.federation.defenses.quantize import Quantize
from glasshouse.federation.defenses.sign import Sign
from glasshouse.rng import Rng
from glasshouse.tensors import norm
from glasshouse.wire import Update

RNG = Rng.root(3)
N = 200_000
floats = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
vectors = arrays(np.float32, st.integers(1, 40), elements=floats).map(torch.from_numpy)


def update(**tensors: torch.Tensor) -> Update:
    return Update(round=2, client=5, kind="gradient", tensors=tensors, examples=1)


def noise_of(defense) -> torch.Tensor:
    clean = torch.full((N,), 2.0, dtype=torch.float64)
    return defense.update(update(w=clean), rng=RNG).tensors["w"] - clean


@pytest.mark.parametrize(
    ("defense", "std", "fourth"),
    [(GaussianNoise(std=0.3), 0.3, 3.0), (LaplaceNoise(scale=0.3), 0.3 * math.sqrt(2), 6.0)],
)
def test_noise_has_the_stated_moments(defense, std, fourth):
    """Mean, standard deviation and kurtosis (3 for a normal, 6 for a Laplace), within 5 standard errors."""
    noise = noise_of(defense)
    assert abs(noise.mean()) < 5 * std / math.sqrt(N)
    assert noise.std() == pytest.approx(std, rel=5 * math.sqrt((fourth - 1) / 4 / N))
    assert (noise**4).mean() / std**4 == pytest.approx(fourth, rel=0.1)


@pytest.mark.parametrize("defense", [GaussianNoise(std=1.0), LaplaceNoise(scale=1.0), Quantize(bits=2)])
def test_tensors_get_independent_noise_whatever_their_order(defense):
    a, b = torch.linspace(-1, 1, 50), torch.linspace(-1, 1, 50)
    one = defense.update(update(a=a, b=b), rng=RNG).tensors
    two = defense.update(update(b=b, a=a), rng=RNG).tensors
    assert torch.equal(one["a"], two["a"])
    assert not torch.equal(one["a"], one["b"])


@given(vectors, vectors, st.floats(0.01, 50))
def test_clip_is_the_projection_onto_a_ball(a, b, radius):
    sent = Clip(norm=radius).update(update(a=a, b=b), rng=RNG).tensors
    whole, before = torch.cat([sent["a"], sent["b"]]).double(), torch.cat([a, b]).double()
    factor = min(1.0, radius / max(float(before.norm()), 1e-30))
    torch.testing.assert_close(whole, before * factor, rtol=1e-5, atol=1e-6)
    assert norm(sent) <= min(radius, norm({"a": a, "b": b})) * (1 + 1e-5)


@given(vectors, vectors, st.floats(0.01, 50))
def test_clip_layers_is_clip_on_each_tensor(a, b, radius):
    sent = ClipLayers(norm=radius).update(update(a=a, b=b), rng=RNG).tensors
    for name, t in {"a": a, "b": b}.items():
        alone = Clip(norm=radius).update(update(t=t), rng=RNG).tensors["t"]
        torch.testing.assert_close(sent[name], alone, rtol=1e-6, atol=0)


@given(vectors, st.floats(0.01, 50))
def test_clip_values_bounds_each_and_keeps_the_others(t, bound):
    sent = ClipValues(bound=bound).update(update(t=t), rng=RNG).tensors["t"]
    inside = t.abs() <= bound
    assert torch.equal(sent[inside], t[inside])
    torch.testing.assert_close(sent[~inside], t[~inside].sign() * bound, rtol=1e-6, atol=0)


@given(
    arrays(np.float32, st.integers(1, 60), elements=st.integers(-3, 3).map(float)).map(torch.from_numpy),
    st.sampled_from([0.0, 0.1, 0.29, 0.5, 0.9, 0.99]),
)
def test_pruning_agrees_with_sorting(t, share):
    """Small integers: ties are the hard case. Python's sort is stable, so the first of equals go first."""
    order = sorted(range(len(t)), key=lambda i: abs(float(t[i])))
    expected = t.clone()
    for i in order[: math.floor(share * len(t) + 1e-9)]:
        expected[i] = 0.0
    assert torch.equal(Prune(share=share).update(update(t=t), rng=RNG).tensors["t"], expected)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.29, 0.9])
def test_pruned_share_is_exact_in_every_tensor(share):
    tensors = {"w": torch.randn(10, 10, generator=RNG.torch()), "b": torch.randn(200, generator=RNG.torch())}
    sent = Prune(share=share).update(update(**tensors), rng=RNG).tensors
    assert int((sent["w"] == 0).sum()) == round(share * 100)
    assert int((sent["b"] == 0).sum()) == round(share * 200)


@given(vectors, st.floats(0, 1))
def test_smallest_marks_nothing_larger_than_what_it_leaves(t, share):
    mask = smallest(t, share)
    assert int(mask.sum()) == math.floor(share * len(t) + 1e-9)
    if mask.any() and not mask.all():
        assert t[mask].max() <= t[~mask].min()


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_quantising_is_unbiased(bits):
    """The mean over draws is the entry, within 5 standard errors of a Bernoulli over one level."""
    values = torch.tensor([-1.0, -0.7, -0.01, 0.0, 0.2, 0.55, 1.0])
    draws = 20_000
    sent = Quantize(bits=bits).update(update(t=values.repeat(draws, 1)), rng=RNG).tensors["t"]
    step = 1 / (2 ** (bits - 1) - 1)
    assert (sent.double().mean(0) - values).abs().max() < 5 * step / 2 / math.sqrt(draws)


@given(vectors, st.integers(2, 16))
def test_quantised_entries_are_on_the_grid_and_near(t, bits):
    sent = Quantize(bits=bits).update(update(t=t), rng=RNG).tensors["t"]
    levels, largest = 2 ** (bits - 1) - 1, float(t.abs().max())
    if largest > 0:
        grid = sent.double() / largest * levels
        torch.testing.assert_close(grid, grid.round(), rtol=0, atol=1e-2)
    assert (sent - t).abs().max() <= largest / levels * (1 + 1e-5)


@given(vectors)
@settings(max_examples=50)
def test_sign_keeps_signs_and_the_mean_magnitude(t):
    sent = Sign().update(update(t=t), rng=RNG).tensors["t"]
    assert torch.equal(sent.sign(), t.sign() * (t.abs().mean() > 0))
    nonzero = sent[sent != 0].abs()
    torch.testing.assert_close(nonzero, t.abs().mean().expand_as(nonzero))

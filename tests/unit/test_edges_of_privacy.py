"""Edges of bounds, guesses and marks at which a change of one line would turn a number."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from glasshouse.errors import BadValue
from glasshouse.privacy.bound import Release, attack_ceiling
from glasshouse.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, gaussian_share
from glasshouse.privacy.marks import MOST_BITS, grid_bits, noise_of, rounding_of, scattered_zeros, zero_sums
from glasshouse.privacy.one_run import Guesses, count_guesses, one_run_epsilon, one_run_p_value
from glasshouse.privacy.sure_guesses import weighted_run_epsilon

ONE_STEP = attack_ceiling([Release(noise_multiplier=1.0)], unit="update")


@settings(max_examples=30)
@given(mu=st.floats(0.02, 40.0), delta=st.floats(1e-12, 0.95))
def test_epsilon_of_gaussian_noise_is_the_smallest_whose_delta_is_small_enough(mu, delta):
    epsilon = gaussian_epsilon(mu, delta=delta)
    if epsilon == 0:
        assert gaussian_delta(0.0, mu=mu) <= delta
    else:
        assert gaussian_delta(epsilon, mu=mu) == pytest.approx(delta, rel=1e-4)


@settings(max_examples=20)
@given(mu=st.floats(0.05, 20.0), epsilon=st.floats(0.1, 20.0))
def test_mu_of_a_budget_is_that_of_the_noise_that_has_it(mu, epsilon):
    delta = gaussian_delta(epsilon, mu=mu)
    if 1e-12 < delta < 0.99:
        assert gaussian_mu(epsilon, delta=delta) == pytest.approx(mu, rel=1e-4)


def test_noise_without_end_needs_no_epsilon_and_helps_no_guess():
    assert gaussian_epsilon(0.0, delta=1e-5) == 0.0
    assert gaussian_share(0.3, mu=0.0) == pytest.approx(0.3)
    assert gaussian_share(0.0, mu=1.0) == 0.0
    assert gaussian_share(1.0, mu=1.0) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian_epsilon(1.0, delta=0.0),
        lambda: gaussian_mu(1.0, delta=0.0),
        lambda: gaussian_mu(-0.1, delta=0.1),
        lambda: weighted_run_epsilon(
            Guesses(canaries=200, guesses=32, correct=29),
            Guesses(canaries=200, guesses=12, correct=12),
            delta=0.0,
        ),
    ],
)
def test_no_gaussian_noise_has_a_delta_of_zero_or_an_epsilon_below(call):
    with pytest.raises(BadValue):
        call()


def test_half_of_the_guesses_say_out_unless_it_is_said_how_many():
    """All canaries are in: what is guessed out is wrong."""
    scores, coins = np.arange(10.0), np.ones(10, dtype=bool)

    def right(**told):
        return count_guesses(scores, coins, guesses=6, rng=np.random.default_rng(0), **told).correct

    assert (right(), right(out=0), right(out=2), right(out=6)) == (3, 6, 4, 0)


def test_a_delta_that_is_tiny_changes_no_p_value_and_a_large_one_rejects_nothing():
    counts = Guesses(canaries=100, guesses=20, correct=19)
    exact = one_run_p_value(counts, epsilon=1.0, delta=0.0)
    assert exact < one_run_p_value(counts, epsilon=1.0, delta=1e-9) < exact * 1.001
    assert one_run_p_value(counts, epsilon=1.0, delta=0.5) == 1.0
    assert one_run_p_value(Guesses(canaries=9, guesses=4, correct=0), epsilon=0.0, delta=0.5) == 1.0


def test_a_run_at_delta_zero_shows_the_lower_limit_of_clopper_and_pearson():
    counts = Guesses(canaries=500, guesses=50, correct=45)
    shown = one_run_epsilon(counts, delta=0.0, level=0.9).epsilon
    chance = 1 / (1 + math.exp(-shown))
    assert one_run_p_value(counts, epsilon=shown, delta=0.0) == pytest.approx(0.1, abs=1e-3)
    assert 0.5 < chance < 0.9


@pytest.mark.parametrize("higher_leaks", [True, False])
def test_a_mean_is_bounded_from_both_ends_of_its_range(higher_leaks):
    worst, best = (-1.0, 3.0) if higher_leaks else (3.0, -1.0)
    ends = {"low": -1.0, "high": 3.0, "higher_leaks": higher_leaks}
    assert ONE_STEP.mean(worst, **ends).value == pytest.approx(worst, abs=1e-3)
    assert ONE_STEP.mean(best, **ends).value == pytest.approx(best, abs=1e-6)
    middle = ONE_STEP.mean(1.0, **ends).value
    assert middle == pytest.approx(1.0 + (4 if higher_leaks else -4) * (norm.cdf(1.0) - 0.5), abs=0.01)
    for outside in (-1.1, 3.1):
        with pytest.raises(BadValue):
            ONE_STEP.mean(outside, **ends)
    with pytest.raises(BadValue):
        ONE_STEP.mean(0.0, low=-math.inf, high=3.0, higher_leaks=higher_leaks)


def test_the_area_is_that_of_gaussian_noise_and_never_below_it():
    exact = norm.cdf(1 / math.sqrt(2))
    assert exact <= ONE_STEP.auc() <= exact + 1e-3


def test_steps_compose_and_each_release_counts():
    several = attack_ceiling([Release(noise_multiplier=2.0, steps=4)], unit="update")
    twice = attack_ceiling([Release(noise_multiplier=math.sqrt(2))] * 2, unit="update")
    for other in (several, twice):  # all are 1-GDP
        assert other.share(0.1).value == pytest.approx(gaussian_share(0.1, mu=1.0), abs=2e-3)


def test_half_precision_is_seen_in_fifty_entries_and_in_fewer_not():
    half = torch.full((50,), 1 / 3).half().float()
    assert rounding_of({"w": half}) == 2**-11
    assert rounding_of({"w": half[:49]}) == 2**-24
    assert rounding_of({"w": half[:25], "v": half[:25], "n": torch.ones(9, dtype=torch.int64)}) == 2**-11
    assert rounding_of({"w": torch.cat([half[:49], torch.zeros(50)])}) == 2**-24  # zeros say nothing
    assert rounding_of({"w": torch.cat([half, torch.tensor([1 / 3])])}) == 2**-24


def test_zeros_count_among_rows_and_columns_that_are_alive():
    """One of six, of three rows (one dead) and four columns (one dead)."""
    pruned = torch.tensor([[1.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 5.0]])
    assert scattered_zeros(pruned) == pytest.approx(1 / 6)
    assert scattered_zeros(torch.tensor([0.0, 1.0, 1.0, 0.0])) == pytest.approx(0.5)
    assert scattered_zeros(torch.zeros(3, 3)) == 0.0


def test_noise_is_what_rounding_does_not_explain():
    """Columns of a last layer's gradient sum to zero over the classes."""
    honest = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert zero_sums(honest).abs().max() < 1e-9
    noisy = honest + torch.tensor([[0.0, 0.01], [0.0, 0.01]])
    assert noise_of(noisy, rounding=0.1) == 0.0
    assert noise_of(noisy) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("bits", [2, 4, 8, MOST_BITS])
def test_a_grid_has_its_number_of_bits_and_half_a_step_is_none(bits):
    levels = 2 ** (bits - 1) - 1
    steps = torch.linspace(-levels, levels, 200).double().round()
    assert grid_bits({"w": steps}) == (1 if bits == 2 else bits)
    off = steps.clone()
    off[7] += 0.5
    assert grid_bits({"w": off}) in ({None, bits + 1} if bits < MOST_BITS else {None})


@pytest.mark.parametrize(("scale", "rounding", "bits"), [(1e3, 0.1, 3), (1.0, 1e-4, 3), (1e-3, 1e-3, None)])
def test_a_grid_is_seen_where_its_steps_are_larger_than_rounding_and_nowhere_else(scale, rounding, bits):
    steps = torch.tensor([1.0, 2.0, 3.0, -3.0]).repeat(16).double()
    off = steps + torch.linspace(-1, 1, 64).double() * rounding / scale
    assert grid_bits({"w": scale * off}, rounding=rounding) == bits

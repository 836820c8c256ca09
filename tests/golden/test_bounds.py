"""Bounds on any attack and ε from one run, against closed forms and formulas written a second time."""

import math

import numpy as np
import pytest
from reproduce.one_run import simulate_share
from scipy.integrate import quad
from scipy.stats import beta, binom, norm

from glasshouse.privacy.bound import Release, attack_ceiling
from glasshouse.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, gaussian_share
from glasshouse.privacy.one_run import (
    Guesses,
    gaussian_run_epsilon,
    gaussian_run_rejects,
    one_run_epsilon,
    one_run_p_value,
)

CHANCES = [1e-4, 0.01, 0.1, 0.5, 0.9]


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (0.3, 1), (2.0, 100), (4.0, 50)])
@pytest.mark.parametrize("unit", ["example", "update"])
def test_bound_of_full_batches_is_the_closed_form(noise, steps, unit):
    ceiling = attack_ceiling([Release(noise_multiplier=noise, steps=steps)], unit=unit)
    for chance in CHANCES:
        expected = norm.cdf(norm.ppf(chance) + math.sqrt(steps) / noise)
        assert ceiling.share(chance).value == pytest.approx(expected, abs=1e-3)
        assert gaussian_share(chance, mu=math.sqrt(steps) / noise) == pytest.approx(expected, abs=1e-12)


def test_several_kinds_of_releases_compose():
    releases = [Release(noise_multiplier=2.0, steps=9), Release(noise_multiplier=3.0, steps=16)]
    expected = norm.cdf(norm.ppf(0.01) + math.sqrt(9 / 4 + 16 / 9))
    assert attack_ceiling(releases, unit="update").share(0.01).value == pytest.approx(expected, abs=1e-3)


def test_largest_auc_is_the_closed_form():
    ceiling = attack_ceiling([Release(noise_multiplier=1.0)], unit="update")
    assert ceiling.auc() == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=1e-3)


def test_sampled_release_of_the_specification():
    """q = .1, σ = 1, T = 50, κ = .01: .0832 by dp-accounting, .0835 by the source's simulation."""
    release = Release(noise_multiplier=1.0, steps=50, rate=0.1)
    assert attack_ceiling([release], unit="example").share(0.01).value == pytest.approx(0.0832, abs=5e-5)


@pytest.mark.parametrize(("noise", "steps", "rate"), [(1.0, 50, 0.1), (0.7, 20, 0.3), (0.5, 10, 0.05)])
def test_sampled_bound_agrees_with_simulation(noise, steps, rate):
    release = Release(noise_multiplier=noise, steps=steps, rate=rate)
    ceiling, rng = attack_ceiling([release], unit="example"), np.random.default_rng(1)
    for chance in (0.01, 0.1):
        simulated = simulate_share(release, chance, draws=50_000, rng=rng)
        assert abs(ceiling.share(chance).value - simulated.value) < 4 * simulated.error
    simulated = simulate_share(release, 0.5, draws=50_000, rng=rng)
    assert ceiling.share(0.5).value > simulated.value - 4 * simulated.error


def test_one_sampled_step_in_closed_form():
    """With and without are normal mixtures; {x > t} is the best test, and its two probabilities are known."""
    noise, rate, threshold = 0.8, 0.2, 1.5
    chance = norm.sf(threshold / noise)
    expected = (1 - rate) * chance + rate * norm.sf((threshold - 1) / noise)
    ceiling = attack_ceiling([Release(noise_multiplier=noise, rate=rate)], unit="example")
    assert ceiling.share(chance).value == pytest.approx(expected, abs=1e-4)


def hockey_stick(epsilon: float, mu: float) -> float:
    """δ as the integral that defines it."""
    start = epsilon / mu + mu / 2  # where the ratio of the densities is e^ε
    delta, _ = quad(lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), start, start + 40)
    return delta


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.5), (1.0, 1.0), (-1.0, 1.0), (8.0, 1.7), (4.0, 4.0)])
def test_gaussian_delta_is_the_integral(epsilon, mu):
    assert gaussian_delta(epsilon, mu=mu) == pytest.approx(hockey_stick(epsilon, mu), abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_gaussian_epsilon_and_mu_are_inverses(epsilon):
    assert gaussian_epsilon(gaussian_mu(epsilon, delta=1e-5), delta=1e-5) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("guesses", "correct"), [(100, 100), (100, 90), (1000, 600), (10, 10)])
def test_without_delta_it_is_clopper_and_pearson(guesses, correct):
    low = beta.ppf(0.05, correct, guesses - correct + 1)
    bound = one_run_epsilon(Guesses(canaries=1000, guesses=guesses, correct=correct), delta=0.0)
    assert bound.epsilon == pytest.approx(math.log(low / (1 - low)), abs=1e-6)


def test_a_hundred_of_a_hundred():
    bound = one_run_epsilon(Guesses(canaries=1000, guesses=100, correct=100), delta=0.0)
    right = 0.05 ** (1 / 100)
    assert bound.epsilon == pytest.approx(math.log(right / (1 - right)), abs=1e-9)
    assert bound.epsilon == pytest.approx(3.49, abs=0.005)


def written_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The formula of the specification, sum by sum."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(binom.pmf(k, r, q) for k in range(v, r + 1))
    means = [sum(binom.pmf(v - j, r, q) for j in range(1, i + 1)) / i for i in range(1, v + 1)]
    return min(1.0, tail + 2 * m * delta * max(means))


@pytest.mark.parametrize(("correct", "epsilon"), [(70, 0.5), (90, 1.5), (99, 3.0), (55, 0.0)])
def test_p_value_is_the_formula(correct, epsilon):
    counts = Guesses(canaries=1000, guesses=100, correct=correct)
    expected = written_p_value(1000, 100, correct, epsilon, 1e-5)
    assert one_run_p_value(counts, epsilon=epsilon, delta=1e-5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("canaries", [1, 10, 1000])
def test_one_guess_by_hand(canaries):
    """One guess among m coins, right with probability 0.7: 0.7 / m <= Φ(Φ⁻¹(0.3 / m) + μ)."""
    counts = Guesses(canaries=canaries, guesses=1, correct=1)
    edge = norm.ppf(0.7 / canaries) - norm.ppf(0.3 / canaries)
    assert gaussian_run_rejects(counts, mu=edge - 1e-6, level=0.3)
    assert not gaussian_run_rejects(counts, mu=edge + 1e-6, level=0.3)


def test_two_canaries_against_all_distributions():
    """The recursion against a search over all probabilities of 0, 1 and 2 right guesses of 2."""
    mu, grid = 0.8, np.linspace(0, 1, 401)
    p2, p1 = np.meshgrid(grid, grid)
    p0 = 1 - p1 - p2
    inside = p0 >= 0
    two = p2 <= norm.cdf(norm.ppf(np.clip(p1 / 2, 0, 1)) + mu) + 1e-12
    one_or_two = p2 + p1 / 2 <= norm.cdf(norm.ppf(np.clip(p1 / 2 + p0, 0, 1)) + mu) + 1e-12
    most = float(p2[inside & two & one_or_two].max())
    counts = Guesses(canaries=2, guesses=2, correct=2)
    assert gaussian_run_rejects(counts, mu=mu, level=1 - most - 0.01)
    assert not gaussian_run_rejects(counts, mu=mu, level=1 - most + 0.01)


def test_gaussian_curve_is_tighter_than_one_point_of_it():
    for correct in (70, 89, 99):
        counts = Guesses(canaries=1000, guesses=100, correct=correct)
        loose, tight = one_run_epsilon(counts, delta=1e-5), gaussian_run_epsilon(counts, delta=1e-5)
        assert 0 < loose.epsilon < tight.epsilon

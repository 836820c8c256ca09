"""Bounds and one-run audits: directions, monotonicity, refusals, and how often a bound is wrong."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.one_run import GUESSES, audit_runs, simulate_release, simulate_share

from glasshouse.audit.simulation.epsilon import numbers_of_guesses
from glasshouse.errors import BadValue
from glasshouse.privacy.bound import Ceiling, Release, attack_ceiling
from glasshouse.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, gaussian_share
from glasshouse.privacy.one_run import (
    Guesses,
    count_guesses,
    gaussian_run_epsilon,
    gaussian_run_rejects,
    one_run_epsilon,
    one_run_p_value,
)
from glasshouse.privacy.sure_guesses import numbers_of_sure_guesses, weighted_run_epsilon, weighted_tail


@pytest.fixture(scope="module")
def ceiling() -> Ceiling:
    return attack_ceiling([Release(noise_multiplier=1.0)], unit="example")


def test_bound_is_above_chance_and_rises_with_it(ceiling):
    bounds = [ceiling.share(k).value for k in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert bounds == sorted(bounds)
    assert all(b >= k for b, k in zip(bounds, (0.0, 0.01, 0.1, 0.5, 1.0), strict=True))
    assert bounds[-1] == pytest.approx(1.0)


def test_bound_says_which_line_it_is(ceiling):
    bound = ceiling.share(0.01)
    assert np.exp(bound.epsilon) * 0.01 + bound.delta == pytest.approx(bound.value)
    assert gaussian_delta(bound.epsilon, mu=1.0) == pytest.approx(bound.delta, abs=1e-5)


def test_errors_mirror_scores(ceiling):
    up = ceiling.mean(0.1, low=0.0, high=1.0, higher_leaks=True).value
    down = ceiling.mean(0.9, low=0.0, high=1.0, higher_leaks=False).value
    assert up == pytest.approx(1 - down)
    assert up == pytest.approx(ceiling.share(0.1).value)


def test_mean_is_in_the_metric_s_unit(ceiling):
    bound = ceiling.mean(-0.8, low=-1.0, high=1.0, higher_leaks=True)
    assert bound.value == pytest.approx(2 * ceiling.share(0.1).value - 1)


def test_no_noise_promises_nothing():
    ceiling = attack_ceiling([Release(noise_multiplier=0.0), Release(noise_multiplier=9.0)], unit="update")
    assert ceiling.share(0.01).value == 1.0
    assert ceiling.mean(0.9, low=0.0, high=1.0, higher_leaks=False).value == pytest.approx(0.0, abs=1e-12)
    assert ceiling.auc() == 1.0


def test_sampling_lowers_the_bound():
    full, sampled = (
        attack_ceiling([Release(noise_multiplier=2.0, steps=10, rate=q)], unit="example").share(0.01).value
        for q in (1.0, 0.2)
    )
    assert 0.01 < sampled < full


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.share(1.1), "needs  chance"),
        (lambda c: c.share(float("nan")), "needs  chance"),
        (lambda c: c.mean(0.5, low=0.0, high=float("inf"), higher_leaks=True), "finite low"),
        (lambda c: c.mean(2.0, low=0.0, high=1.0, higher_leaks=True), "finite low"),
        (lambda c: attack_ceiling([], unit="example"), "at least one release"),
        (lambda c: Release(noise_multiplier=-1.0), "noise_multiplier >= 0"),
        (lambda c: Release(noise_multiplier=1.0, rate=0.0), "needs  rate"),
        (lambda c: Release(noise_multiplier=1.0, steps=0), "steps >= 1"),
        (
            lambda c: simulate_share(
                Release(noise_multiplier=1.0), 1e-4, draws=1000, rng=np.random.default_rng(0)
            ),
            "100 draws",
        ),
        (lambda c: gaussian_share(0.5, mu=-1.0), "needs  mu"),
        (lambda c: gaussian_epsilon(1.0, delta=0.0), "needs  delta"),
        (lambda c: gaussian_mu(-1.0, delta=1e-5), "epsilon >= 0"),
        (lambda c: Guesses(canaries=5, guesses=6, correct=1), "correct <= guesses"),
        (lambda c: one_run_epsilon(Guesses(canaries=9, guesses=9, correct=9), delta=1.0), "needs  delta"),
        (lambda c: one_run_epsilon(Guesses(canaries=9, guesses=9, correct=9), delta=0.0, level=1.0), "level"),
        (
            lambda c: one_run_p_value(Guesses(canaries=9, guesses=9, correct=9), epsilon=-1, delta=0),
            "epsilon",
        ),
        (lambda c: gaussian_run_rejects(Guesses(canaries=9, guesses=9, correct=9), mu=-1.0), "mu >= 0"),
    ],
)
def test_refusals(ceiling, call, words):
    with pytest.raises(BadValue, match=words):
        call(ceiling)


@pytest.mark.parametrize("guesses", [0, 3, 6])
def test_refuses_a_number_of_guesses_that_has_no_halves(guesses):
    with pytest.raises(BadValue, match="even number"):
        count_guesses(np.zeros(4), np.zeros(4, bool), guesses=guesses, rng=np.random.default_rng(0))


def test_refuses_scores_that_are_not_finite():
    with pytest.raises(BadValue, match="every score finite"):
        count_guesses(np.array([np.nan, 0]), np.array([True, False]), guesses=2, rng=np.random.default_rng(0))


def test_order_of_tied_canaries_tells_nothing():
    """Canaries listed with the included ones last: with equal scores half of the guesses are right."""
    coins = np.arange(1000) >= 500
    rng = np.random.default_rng(0)
    right = [count_guesses(np.zeros(1000), coins, guesses=100, rng=rng).correct for _ in range(50)]
    assert 45 < np.mean(right) < 55


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 199), st.sampled_from([200, 1000]), st.sampled_from([0.0, 1e-5]))
def test_one_more_right_guess_never_lowers_the_bound(correct, canaries, delta):
    fewer, more = (Guesses(canaries=canaries, guesses=200, correct=v) for v in (correct, correct + 1))
    assert one_run_epsilon(fewer, delta=delta).epsilon <= one_run_epsilon(more, delta=delta).epsilon + 1e-9
    assert (
        gaussian_run_epsilon(fewer, delta=1e-5).epsilon
        <= gaussian_run_epsilon(more, delta=1e-5).epsilon + 1e-9
    )


def test_scores_that_tell_all_are_all_right():
    coins = np.random.default_rng(0).random(1000) < 0.5
    counts = count_guesses(coins.astype(float), coins, guesses=100, rng=np.random.default_rng(1))
    assert counts == Guesses(canaries=1000, guesses=100, correct=100)


def test_canaries_that_were_never_drawn_mislead_guesses_of_out_alone():
    """A tenth of those that are in never were in a batch: they look like those that are out."""
    rng = np.random.default_rng(0)
    coins = rng.random(1000) < 0.5
    scores = (coins & (rng.random(1000) < 0.9)).astype(float)
    r, out = numbers_of_guesses(1000)[1]
    only, none = numbers_of_guesses(1000, seen=0.9)[1]
    both = count_guesses(scores, coins, guesses=r, out=out, rng=rng)
    inside = count_guesses(scores, coins, guesses=only, out=none, rng=rng)
    assert both.correct < both.guesses
    assert inside == Guesses(canaries=1000, guesses=402, correct=402)
    assert one_run_epsilon(inside, delta=1e-5).epsilon > 4 > one_run_epsilon(both, delta=1e-5).epsilon


def test_guesses_of_in_alone_are_as_valid():
    """Each coin is shown wrongly as often as ε = 2 allows: 300 runs, of which 5 % may be above it."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        coins = rng.random(200) < 0.5
        shown = coins ^ (rng.random(200) > 1 / (1 + np.exp(-2.0)))
        counts = count_guesses(shown.astype(float), coins, guesses=60, out=0, rng=rng)
        wrong += one_run_epsilon(counts, delta=0.0).epsilon > 2.0
    assert 0 < wrong <= 15 + 3 * 15**0.5


def test_guessing_at_random_shows_nothing():
    counts = Guesses(canaries=1000, guesses=100, correct=50)
    assert one_run_epsilon(counts, delta=1e-5).epsilon == 0.0
    assert gaussian_run_epsilon(counts, delta=1e-5).epsilon == 0.0


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_bounds_hold_in_a_few_runs(epsilon):
    """20 runs: more than 5 wrong ones have a probability below 1 in 1,000 where 5 % are allowed."""
    runs = audit_runs(epsilon, runs=20, guesses=GUESSES, seed=1)
    assert int((runs.any_guarantee > epsilon).sum()) <= 5
    assert int((runs.gaussian > epsilon).sum()) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_bounds_hold_and_tell_something(epsilon):
    runs = audit_runs(epsilon, runs=300, guesses=GUESSES, seed=2)
    assert (runs.any_guarantee > epsilon).mean() <= 0.05
    assert (runs.gaussian > epsilon).mean() <= 0.05
    if epsilon >= 4:
        assert np.median(runs.any_guarantee) >= 0.35 * epsilon
        assert np.median(runs.gaussian) >= 0.57 * epsilon  # the surest counted twice: 0.6


def test_needs_no_torch():
    code = (
        "import sys, glasshouse.privacy.one_run, glasshouse.privacy.bound; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def pair(canaries: int, guesses: int, correct: int, sure: int, right: int) -> tuple[Guesses, Guesses]:
    every = Guesses(canaries=canaries, guesses=guesses, correct=correct)
    return every, Guesses(canaries=canaries, guesses=sure, correct=right)


def totals(mu: float, canaries: int, runs: int) -> list[tuple[Guesses, Guesses]]:
    """Counts of releases, smallest total first."""
    rng, out = np.random.default_rng(7), []
    for _ in range(runs):
        scores, coins = simulate_release(mu, canaries, rng)
        every, sure = numbers_of_sure_guesses(canaries)
        out.append(tuple(count_guesses(scores, coins, guesses=r, rng=rng) for r in (every, sure)))
    return sorted(out, key=lambda p: p[0].correct + p[1].correct)  # type: ignore[return-value]


def test_one_sure_guess_is_as_good_as_none():
    plain = gaussian_run_epsilon(Guesses(canaries=400, guesses=40, correct=36), delta=1e-5).epsilon
    weighted = weighted_run_epsilon(*pair(400, 40, 36, 1, 1), delta=1e-5).epsilon
    assert weighted == pytest.approx(plain, rel=0.04)


def test_a_larger_total_shows_more_and_a_larger_mu_allows_more():
    assert weighted_tail(*pair(200, 32, 29, 12, 12), mu=0.9) < weighted_tail(
        *pair(200, 32, 28, 12, 11), mu=0.9
    )
    assert weighted_tail(*pair(200, 32, 29, 12, 12), mu=0.9) < weighted_tail(
        *pair(200, 32, 29, 12, 12), mu=1.1
    )
    assert weighted_run_epsilon(*pair(200, 32, 16, 12, 6), delta=1e-5).epsilon == 0.0


@pytest.mark.parametrize("luck", [0.05, 0.3, 1.0])
def test_no_lucky_mechanism_passes_for_a_worse_one(luck):
    """Shows the coins under noise in a share of its runs and nothing else: the curve allows for that."""
    shown = gaussian_mu(4.0, delta=1e-5)
    logs = np.linspace(0, 8, 81)
    excess = [luck * gaussian_delta(e, mu=shown) for e in logs]
    mu = next(
        mu
        for mu in np.arange(0.2, shown + 0.02, 0.01)
        if all(gaussian_delta(e, mu=mu) >= x for e, x in zip(logs, excess, strict=True))
    )
    counts = totals(shown, 400, 200)
    for place in (20, 100, 180):  # 90, 50 and 10 % of the lucky runs have this total or more
        assert weighted_tail(*counts[place], mu=mu) >= luck * (200 - place) / 200 - 0.02


def test_sure_guesses_are_a_part_of_all():
    for wrong in (pair(200, 12, 12, 32, 29), pair(200, 32, 12, 12, 12)[::-1], pair(200, 32, 31, 12, 10)):
        with pytest.raises(BadValue, match="part of all guesses"):
            weighted_run_epsilon(*wrong, delta=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_surest_guesses_twice_hold_and_show_more(epsilon):
    mu = gaussian_mu(epsilon, delta=1e-5)
    counts = totals(mu, 1000, 300)
    assert weighted_tail(*counts[-16], mu=mu) > 0.05  # at most 15 of 300 bounds are above the true ε
    if epsilon >= 4:
        assert weighted_run_epsilon(*counts[149], delta=1e-5).epsilon >= 0.6 * epsilon

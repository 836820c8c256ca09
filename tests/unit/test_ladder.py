"""The ladder of null adversaries, and the best guess of a bound."""

import numpy as np
import pytest

from glasshouse.errors import BadValue
from glasshouse.metrics.statistics.ladder import best_guess, climb, highest_rung
from glasshouse.rng import Rng

RNG = Rng.root(0)
RANDOM = np.random.default_rng(0)
LOW, MIDDLE, HIGH = (level + RANDOM.normal(size=12) for level in (0, 10, 20))


def test_states_the_highest_rung_beaten():
    nulls = {"nothing": {"grey": LOW}, "domain": {"mean": LOW + 1}, "label": {"class mean": MIDDLE}}
    assert highest_rung(HIGH, nulls, rng=RNG).rung == "label"
    assert highest_rung(MIDDLE + RANDOM.normal(size=12), nulls, rng=RNG).rung == "domain"
    assert highest_rung(LOW - 5, nulls, rng=RNG) is None


def test_every_null_of_a_rung_must_be_beaten():
    nulls = {"domain": {"mean": LOW, "nearest": HIGH + 1}}
    (step,) = climb(HIGH, nulls, rng=RNG)
    assert (step.null, step.beaten) == ("nearest", False)


def test_no_rung_is_beaten_above_one_that_is_not():
    nulls = {"domain": {"mean": HIGH}, "label": {"class mean": LOW}}
    steps = climb(MIDDLE, nulls, rng=RNG)
    assert [step.beaten for step in steps] == [False, False]
    assert steps[1].p < 0.025


def test_errors_are_beaten_from_below():
    nulls = {"domain": {"mean": HIGH}}
    assert highest_rung(LOW, nulls, rng=RNG, higher_leaks=False).rung == "domain"
    assert highest_rung(LOW, nulls, rng=RNG) is None


def test_shares_use_tests_of_shares():
    (step,) = climb([1] * 12, {"domain": {"mean": [0.0] * 12}}, rng=RNG, share=True)
    assert step.beaten
    assert step.gain.low > 0.5
    (step,) = climb([1, 0, 0] * 4, {"domain": {"mean": [0.3] * 12}}, rng=RNG, share=True)
    assert not step.beaten


def test_the_best_guess_counts_with_its_uncertainty():
    guesses = {"domain": {"mean": LOW / 10}, "exchange": {"the claims on others": LOW / 10 + 0.4}}
    kappa = best_guess(guesses, low=-1, high=1, rng=RNG)
    assert (kappa.rung, kappa.name) == ("exchange", "the claims on others")
    assert kappa.value == pytest.approx(float((LOW / 10).mean()) + 0.4)
    assert kappa.value < kappa.limit <= 1


def test_the_best_guess_of_an_error_is_the_smallest():
    kappa = best_guess(
        {"domain": {"mean": HIGH, "grey": MIDDLE}}, low=0, high=30, rng=RNG, higher_leaks=False
    )
    assert kappa.name == "grey"
    assert 0 <= kappa.limit < kappa.value


def test_a_chance_level_is_its_own_limit():
    kappa = best_guess({"nothing": {"chance": [0.01] * 8}}, low=0, high=1, rng=RNG)
    assert kappa.limit == kappa.value == pytest.approx(0.01)


def test_none_of_twelve_guesses_is_not_never():
    kappa = best_guess({"domain": {"row": [0.0] * 12}}, low=0, high=1, rng=RNG, share=True)
    assert kappa.value == 0
    assert kappa.limit == pytest.approx(1 - 0.025 ** (1 / 12))


def test_refuses_scores_outside_the_range():
    with pytest.raises(BadValue, match="each in"):
        best_guess({"domain": {"mean": [2.0, 0.0]}}, low=0, high=1, rng=RNG)
    with pytest.raises(BadValue, match="at least one null"):
        best_guess({}, low=0, high=1, rng=RNG)

"""Many p-values at once: Holm against its definition, ranks against a simulation, refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.statistics.multiplicity import holm
from glasshouse.metrics.statistics.rank import FEWEST, Rank, rank_of, rank_p_value

some_p_values = st.lists(st.integers(0, 20).map(lambda i: i / 20), max_size=6)


def slow_holm(p_values: list[float]) -> list[float]:
    """The closed test: a hypothesis falls when every set of hypotheses around it does, each by Bonferroni."""
    every = range(len(p_values))
    sets = [s for size in every for s in itertools.combinations(every, size + 1)]
    return [min(1.0, max(len(s) * min(p_values[j] for j in s) for s in sets if i in s)) for i in every]


@given(some_p_values)
@settings(max_examples=100, deadline=None)
def test_holm_is_the_closed_test_of_bonferroni(p_values):
    assert holm(p_values) == pytest.approx(slow_holm(p_values))


@given(some_p_values, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_holm_does_not_depend_on_the_order(p_values, random):
    order = random.sample(range(len(p_values)), len(p_values))
    assert holm([p_values[i] for i in order]) == pytest.approx(holm(p_values)[order])


def test_holm_of_independent_guesses_is_wrong_at_most_five_times_in_a_hundred():
    random = np.random.default_rng(0)
    wrong = np.mean([(holm(random.random(30)) < 0.05).any() for _ in range(2000)])
    assert 0.035 <= wrong <= 0.065  # 5 %, ± 3 standard errors


@pytest.mark.parametrize("bad", [[0.1, -0.1], [0.1, 1.1], [float("nan")], [[0.1]]])
def test_holm_refuses_what_is_no_p_value(bad):
    with pytest.raises(BadValue, match=r"each in \[0, 1\]"):
        holm(bad)


@pytest.mark.parametrize("higher_leaks", [True, False])
def test_a_claim_without_information_takes_every_rank_as_often(higher_leaks):
    """The victim and the strangers are alike; with few distinct scores, ties cost the attack."""
    random, below = np.random.default_rng(1), {"continuous": 0, "ties": 0}
    for _ in range(2000):
        scores = random.normal(size=1 + FEWEST)
        below["continuous"] += rank_of(scores[0], scores[1:], higher_leaks=higher_leaks).p <= 0.05
        coarse = scores.round()
        below["ties"] += rank_of(coarse[0], coarse[1:], higher_leaks=higher_leaks).p <= 0.05
    assert 0.035 <= below["continuous"] / 2000 <= 0.065
    assert below["ties"] / 2000 <= 0.065


def test_false_verdicts_over_the_victims_of_a_cell_stay_below_five_in_a_hundred():
    random, wrong = np.random.default_rng(2), 0
    for _ in range(1000):
        p_values = [rank_of(x[0], x[1:]).p for x in random.normal(size=(8, 1 + FEWEST))]
        wrong += bool((holm(p_values) < 0.05).any())
    assert wrong / 1000 <= 0.07  # 5 %, + 3 standard errors


def test_a_recovered_victim_is_seen_among_eight():
    p_values = [rank_p_value(0, FEWEST), *[rank_p_value(100, FEWEST)] * 7]
    assert holm(p_values)[0] == pytest.approx(0.04)


def test_the_rank_counts_ties_against_the_attack():
    assert rank_of(3.0, [1.0, 3.0, 4.0]) == Rank(rank=2, compared=3)
    assert rank_of(3.0, [1.0, 3.0, 4.0], higher_leaks=False) == Rank(rank=2, compared=3)
    assert rank_of(5.0, [1.0, 3.0, 4.0]).rank == 0


def test_too_few_strangers_are_refused():
    with pytest.raises(Undefined, match="at least 199") as caught:
        rank_p_value(0, 198)
    assert caught.value.got == "198"
    with pytest.raises(BadValue, match="rank"):
        rank_p_value(200, 199)
    with pytest.raises(BadValue, match="finite"):
        rank_of(float("nan"), [1.0])

"""The share of victims that come out: its exact upper end, and its comparison with a margin."""

import pytest
import scipy

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.statistics.share_out import equivalence, most_that_come_out, victims_needed


@pytest.mark.parametrize("n", [1, 3, 8, 20, 50])
def test_none_of_n_has_the_closed_form(n):
    assert most_that_come_out(0, n) == pytest.approx(1 - 0.025 ** (1 / n))


def test_some_of_n_is_the_exact_binomial_end():
    expected = scipy.stats.binomtest(2, 20).proportion_ci(0.95, method="exact").high
    assert most_that_come_out(2, 20) == pytest.approx(expected)


def test_victims_too_alike_count_as_one():
    assert most_that_come_out(0, 6, [0, 0, 1, 1, 2, 2]) == most_that_come_out(0, 3)


@pytest.mark.parametrize(("margin", "n"), [(0.1, 36), (0.2, 17), (0.5, 6)])
def test_needed_victims_are_the_fewest_that_suffice(margin, n):
    assert victims_needed(margin) == n
    assert equivalence(0, n, margin=margin).state == "below"
    assert equivalence(0, n - 1, margin=margin).state == "open"


def test_margins_are_missed_in_at_most_a_fortieth_of_audits():
    """Over all outcomes of n victims, of whom exactly the margin comes out: exact, nothing is drawn."""
    for n in (3, 8, 20, 50, 200):
        chance = scipy.stats.binom(n, 0.1)
        states = [equivalence(k, n, margin=0.1).state for k in range(n + 1)]
        for state in ("below", "above"):
            assert sum(chance.pmf(k) for k in range(n + 1) if states[k] == state) <= 0.025


def test_refuses_impossible_counts():
    with pytest.raises(Undefined):
        most_that_come_out(0, 0)
    with pytest.raises(BadValue):
        most_that_come_out(4, 3)
    with pytest.raises(BadValue, match="margin"):
        equivalence(0, 5, margin=1.0)
    with pytest.raises(BadValue, match="the cluster of each of 3 victims"):
        most_that_come_out(0, 3, [0, 1])


def test_an_equivalence_holds_all_that_it_rests_on():
    result = equivalence(3, 30, margin=0.2, clusters=[*range(28), 27, 27])
    interval = scipy.stats.binomtest(3, 28).proportion_ci(0.95, method="exact")
    assert (result.share, result.n, result.margin, result.needed) == (3 / 28, 28, 0.2, 17)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert equivalence(0, 30, level=0.9).high < equivalence(0, 30).high

"""permutation_test over all pairs: against scipy, its interval, strata, and victims that are too alike."""

import itertools

import numpy as np
import pytest
import scipy

from glasshouse.errors import BadValue
from glasshouse.metrics.statistics.exchange import group_alike, merge_alike, permutation_test
from glasshouse.rng import Rng

RNG = Rng.root(0)


def slow_p_value(scores):
    """The definition: the share of all orders whose sum is at least that of the true one."""
    n = len(scores)
    sums = [sum(scores[i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(n))]
    return np.mean(np.array(sums) >= np.trace(scores) - 1e-9)


@pytest.mark.parametrize("n", [5, 6, 7])
def test_agrees_with_all_orders(n):
    scores = np.random.default_rng(n).normal(size=(n, n)) + 0.5 * np.eye(n)
    test = permutation_test(scores, rng=RNG)
    assert test.exact
    assert test.p == pytest.approx(slow_p_value(scores))


def test_agrees_with_scipy_on_products():
    """For s_ij = a_i b_j the statistic is the inner product, scipy's permutation test of a correlation."""
    random = np.random.default_rng(3)
    a, b = random.normal(size=7), random.normal(size=7)
    test = permutation_test(np.outer(a, b), rng=RNG)
    expected = scipy.stats.permutation_test(
        (a,), lambda x: np.dot(x, b), permutation_type="pairings", alternative="greater", n_resamples=np.inf
    )
    assert test.p == pytest.approx(expected.pvalue)


def test_power_is_that_of_the_full_permutation():
    """Victims that differ by 3 dB and a gain of 1.5 dB at n = 8 (three other victims found .09)."""
    random, found = np.random.default_rng(5), 0
    for number in range(100):
        scores = 3 * random.normal(size=8) + 0.7 * random.normal(size=(8, 8)) + 1.5 * np.eye(8)
        found += permutation_test(scores, rng=Rng.root(number), draws=999).p < 0.025
    assert found >= 91


def test_ends_are_where_the_test_stops_rejecting():
    scores = np.random.default_rng(2).normal(size=(6, 6)) + 2 * np.eye(6)
    test = permutation_test(scores, rng=RNG)
    for shift, rejected in ((test.low - 1e-6, True), (test.low + 1e-6, False)):
        assert (permutation_test(scores - shift * np.eye(6), rng=RNG).p < 0.025) == rejected
    assert test.low <= test.gain <= test.high


def test_the_upper_end_mirrors_the_lower_one():
    scores = np.random.default_rng(2).normal(size=(6, 6)) + np.eye(6)
    test, mirrored = (permutation_test(sign * scores, rng=RNG) for sign in (1, -1))
    assert (test.low, test.high) == pytest.approx((-mirrored.high, -mirrored.low))


def test_interval_covers_the_gain():
    random, covered = np.random.default_rng(8), 0
    for number in range(200):
        scores = random.normal(size=10) + random.normal(size=(10, 10)) + 0.8 * np.eye(10)
        test = permutation_test(scores, rng=Rng.root(number), draws=999)
        covered += test.low <= 0.8 <= test.high
    assert covered >= 186


def test_strata_keep_what_a_label_tells():
    """Claims that know only the label match their victim as well as any other of that label."""
    labels = np.repeat([0, 1], 5)
    scores = (labels[:, None] == labels) * 10.0 + np.random.default_rng(1).normal(size=(10, 10))
    assert permutation_test(scores, rng=RNG).p < 0.025
    assert permutation_test(scores, labels, rng=RNG).p > 0.025


def test_a_claim_alone_in_its_stratum_says_nothing():
    scores = 10.0 * np.eye(6)
    test = permutation_test(scores, [0, 0, 0, 0, 0, 1], rng=RNG)
    assert test.n == 5
    assert test.p == pytest.approx(1 / 120)
    assert permutation_test(scores, range(6), rng=RNG) is None


def test_few_claims_draw_victims_independently():
    assert permutation_test(10 * np.eye(3), rng=RNG) is None
    test = permutation_test(10 * np.eye(4), rng=RNG)
    assert test.p == pytest.approx(1 / 4**4)
    assert 0 < test.low <= test.gain == 10 <= test.high


def test_equal_scores_have_no_gain():
    test = permutation_test(np.full((6, 6), 0.1), rng=RNG)
    assert (test.gain, test.low, test.p) == (pytest.approx(0), pytest.approx(0), 1.0)


def test_refuses_what_is_not_a_square_of_numbers():
    with pytest.raises(BadValue, match="one finite number for each pair"):
        permutation_test(np.zeros((3, 4)), rng=RNG)
    with pytest.raises(BadValue, match="1 not finite"):
        permutation_test([[np.nan]], rng=RNG)
    with pytest.raises(BadValue, match="a stratum for each of 2 claims"):
        permutation_test(np.zeros((2, 2)), [0], rng=RNG)


def test_groups_are_chains_of_near_duplicates():
    x = np.array([0.0, 5.0, 0.9, 1.8, 5.5])
    assert group_alike(abs(x[:, None] - x), near=1.0).tolist() == [0, 1, 0, 0, 1]
    assert group_alike(abs(x[:, None] - x), near=0.0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BadValue, match="symmetric distances"):
        group_alike([[0.0, 1.0], [2.0, 0.0]], near=1.0)


def test_merged_duplicates_regain_their_power():
    """Each of five victims is held by two clients: another's claim is as good, until both are one."""
    groups = np.repeat(np.arange(5), 2)
    scores = 100.0 * (groups[:, None] == groups)
    merged = merge_alike(scores, groups)
    assert permutation_test(merged, rng=RNG).p < 0.025
    assert merged.tolist() == (100 * np.eye(5)).tolist()

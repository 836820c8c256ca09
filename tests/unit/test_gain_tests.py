"""p-values of gains: they agree with intervals, slow twins and exact tests; copies add nothing."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from glasshouse.audit.scoring.gains import gain_of, p_of, value_of
from glasshouse.audit.scoring.score import COIN, ClientSample, ScoredMetric, join_parts
from glasshouse.metrics.clients import F1, Auc, Precision, Recall, TprAtFpr
from glasshouse.metrics.statistics.interval import gain_p_value, paired_gain
from glasshouse.metrics.statistics.permutation import EXCHANGES, compare_with_guesses, exchange_truth
from glasshouse.metrics.statistics.shares import (
    paired_share_gain,
    paired_share_p_value,
    share_gain,
    share_interval,
    share_p_value,
)
from glasshouse.rng import Rng

RNG = Rng.root(0)
LOOP = (F1(), Precision(), Recall(), Auc(), TprAtFpr(fpr=0.2))


def agree(low: float, p: float) -> bool:
    return (low > 0) == (p < 0.025)


@given(st.lists(st.integers(-9, 30).map(float), min_size=2, max_size=25))
@settings(max_examples=100, deadline=None)
def test_a_gain_is_above_zero_just_where_its_p_value_is_small(values):
    null = np.zeros(len(values))
    for higher in (True, False):
        gain = paired_gain(values, null, rng=RNG, higher_leaks=higher)
        assert agree(gain.low, gain_p_value(values, null, higher_leaks=higher))


def slow_low(x: np.ndarray) -> float:
    """The lowest mean that Johnson's corrected t does not reject, by search instead of by formula."""
    n = len(x)
    skew = min(0.0, stats.skew(x)) * min(n / 10, 2)
    quantile = stats.t.ppf(0.975, n - 1)

    def excess(mean: float) -> float:
        t = (x.mean() - mean) / stats.sem(x)
        return t + skew / (6 * math.sqrt(n)) * (1 + 2 * quantile**2) - quantile

    return float(optimize.brentq(excess, x.mean() - 1e4, x.mean() + 1))


@pytest.mark.parametrize("n", [3, 4, 8, 20, 60])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_lower_end_allows_for_a_long_tail_below(n, sign):
    x = sign * np.random.default_rng(n).lognormal(0, 1, n)
    interval = paired_gain(x, np.zeros(n), rng=RNG)
    assert interval.low == pytest.approx(slow_low(x))
    t = x.mean() - stats.t.ppf(0.975, n - 1) * stats.sem(x)
    assert (interval.low < t - 1e-9) == (stats.skew(x) < 0)


def test_gains_that_are_all_alike_count_as_coins():
    for n, sure in ((2, False), (5, False), (6, True)):
        interval = paired_gain(np.full(n, 0.7), np.full(n, 0.4), rng=RNG)
        assert (interval.low > 0) == sure
        assert gain_p_value(np.full(n, 0.7), np.full(n, 0.4)) == 2.0**-n
    assert gain_p_value(np.zeros(8), np.zeros(8)) == 1.0


@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.1, 0.5]), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_gains_of_shares_and_their_p_values_agree(seed, chance, images):
    random = np.random.default_rng(seed)
    hits = (random.random((6, images)) < random.random((6, 1))).astype(float).ravel()
    null = (random.random(6 * images) < 0.2).astype(float)
    groups = np.repeat(np.arange(6), images)
    assert agree(share_gain(hits, chance, groups).low, share_p_value(hits, chance, groups))
    for other in (null, np.full(len(null), 0.15)):
        assert agree(paired_share_gain(hits, other, groups).low, paired_share_p_value(hits, other, groups))


@pytest.mark.parametrize(("hits", "n", "chance"), [(4, 4, 0.01), (4, 20, 0.03), (1, 3, 0.5), (0, 5, 0.1)])
def test_a_share_against_chance_is_the_binomial_test(hits, n, chance):
    outcomes = [1] * hits + [0] * (n - hits)
    exact = stats.binomtest(hits, n, chance, alternative="greater").pvalue
    assert share_p_value(outcomes, chance) == pytest.approx(exact)
    assert share_gain(outcomes, chance).low == share_interval(outcomes).low - chance


def test_a_chance_of_zero_is_beaten_by_one_hit():
    assert share_p_value([1, 0, 0], 0.0) == 0.0
    assert share_gain([1, 0, 0], 0.0).low > 0


def test_victims_alone_are_enough_where_their_images_agree():
    """Four images each, all alike: the exact interval of the victims."""
    hits, groups = np.repeat([1, 1, 0, 1, 0, 1], 4), np.repeat(np.arange(6), 4)
    assert share_gain(hits, 0.1, groups).low >= share_interval([1, 1, 0, 1, 0, 1]).low - 0.1 - 1e-12


def test_a_strong_averaged_null_is_no_certainty():
    """All of 40 where a guess misses some now and then: that happens by luck once in thirteen times."""
    hits, null = np.ones(40), np.full(40, 0.9)
    null[:12] = 1.0
    assert paired_share_gain(hits, null).low == 0.0
    slow = np.prod((hits + 10 * null) / 11)  # every coin must fall on its hit
    assert paired_share_p_value(hits, null) == pytest.approx(slow)


def some_clients(seed: int, n: int = 14) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(0, 4, n).astype(float), np.arange(n) < 5


@pytest.mark.parametrize("metric", LOOP)
def test_values_over_many_truths_are_the_metric_on_each(metric):
    claimed, truth = some_clients(0)
    if metric.reads == "decisions":
        claimed = (claimed > 1).astype(float)
    truths = exchange_truth(np.arange(14.0), truth, np.zeros(14, dtype=np.int64), rng=RNG)[0][::50]
    assert len(truths) > 30
    assert metric.values(claimed, truths) == pytest.approx([metric.pool(claimed, t).value for t in truths])


@pytest.mark.parametrize("listed", [0, 5000])
def test_the_truth_is_exchanged_within_runs_alone(monkeypatch, listed):
    runs = np.repeat([0, 1], 6)
    truth = np.array([1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], dtype=bool)
    monkeypatch.setattr("glasshouse.metrics.statistics.permutation.LISTED", listed)
    result, weights = exchange_truth(np.arange(12.0), truth, runs, rng=RNG)
    assert weights.sum() == pytest.approx(1)
    assert (result[:, :6].sum(1) == 2).all()
    assert (result[:, 6:].sum(1) == 1).all()
    assert np.abs(weights @ result[:, 6:] - 1 / 6).max() < 0.02
    assert len(result) == (math.comb(6, 2) * 6 if listed else 10000)


def one_run(metric, claimed: np.ndarray, truth: np.ndarray, run: str = "0") -> ScoredMetric:
    del metric
    return ScoredMetric(clients=(ClientSample(run=run, scores=claimed, truth=truth),), baseline=COIN)


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_the_p_value_of_the_auc_is_mann_and_whitneys(monkeypatch, shift):
    random = np.random.default_rng(3)
    truth = np.arange(12) < 5
    scores = random.normal(size=12) + shift * truth
    exact = stats.mannwhitneyu(scores[truth], scores[~truth], alternative="greater", method="exact").pvalue
    sample = one_run(Auc(), scores, truth)
    assert p_of(sample, Auc(), rng=RNG) == pytest.approx(exact)
    monkeypatch.setattr("glasshouse.metrics.statistics.permutation.LISTED", 0)
    error = math.sqrt(exact * (1 - exact) / EXCHANGES)
    assert p_of(sample, Auc(), rng=RNG) == pytest.approx(exact, abs=4 * error + 1 / EXCHANGES)


@pytest.mark.parametrize("metric", [F1(), Precision(), Recall()])
def test_the_p_value_of_decisions_is_fishers(metric):
    truth, called = np.arange(20) < 6, np.isin(np.arange(20), [0, 1, 2, 3, 10, 11]).astype(float)
    exact = stats.hypergeom.sf(3, 20, 6, 6)
    result = p_of(one_run(metric, called, truth), metric, rng=RNG)
    assert result == pytest.approx(exact)


@pytest.mark.parametrize("metric", LOOP)
@pytest.mark.parametrize("seed", range(6))
def test_a_gain_over_clients_is_above_zero_just_where_its_p_value_is_small(metric, seed):
    claimed, truth = some_clients(seed)
    claimed = claimed + (seed % 3) * truth
    if metric.reads == "decisions":
        claimed = (claimed > 2).astype(float)
        claimed[0] = 1.0
    sample = one_run(metric, claimed, truth)
    gain = gain_of(sample, metric, rng=RNG)
    assert agree(gain.low, p_of(sample, metric, rng=RNG))
    assert gain.low <= gain.value <= gain.high


@pytest.mark.parametrize("metric", LOOP)
def test_a_client_scored_again_is_no_further_client(metric):
    claimed, truth = some_clients(5, n=20)
    if metric.reads == "decisions":
        claimed = (claimed > 1).astype(float)
    once = one_run(metric, claimed, truth)
    again = join_parts([once] * 20)
    assert len(again.clients) == 1
    assert again.clients[0].claims == 20
    assert value_of(again, metric, rng=RNG) == value_of(once, metric, rng=RNG)
    assert gain_of(again, metric, rng=RNG) == gain_of(once, metric, rng=RNG)
    assert p_of(again, metric, rng=RNG) == p_of(once, metric, rng=RNG)


def test_claims_of_one_run_are_averaged_and_of_two_runs_kept_apart():
    truth = np.array([True, False])
    first, second = np.array([0.9, 0.1]), np.array([0.1, 0.1])
    third = np.array([0.2, 0.4])
    total = join_parts([one_run(None, scores, truth) for scores in (first, second, third)])
    assert total.clients[0].scores == pytest.approx([0.4, 0.2])
    assert total.pool_clients(decisions=True)[0].tolist() == [0.0, 0.0]
    apart = join_parts([total, one_run(None, first, truth, run="1")])
    assert len(apart.clients) == 2
    assert apart.pool_clients(decisions=False)[2].tolist() == [0, 0, 1, 1]


def test_detectors_that_work_by_luck_for_a_whole_run_are_no_leak_from_four_runs_on():
    """Three runs rank all members high, two rank them low: much more than clients alone would do by luck."""
    truth = np.arange(12) < 4
    ranks = np.arange(12) / 100
    total = join_parts(
        [one_run(Auc(), truth * (1.0 if run < 3 else -1.0) + ranks, truth, run=str(run)) for run in range(5)]
    )
    assert len(total.clients) == 5
    assert p_of(total, Auc(), rng=RNG) > 0.1
    assert gain_of(total, Auc(), rng=RNG).low < 0
    claimed, member, runs = total.pool_clients(decisions=False)

    def values(chosen, truths):
        return Auc().values(claimed[chosen], truths[:, chosen])

    one = np.zeros(60, dtype=np.int64)
    alone = compare_with_guesses(values, claimed, member, one, chance=0.5, rng=RNG)
    assert alone.p < p_of(total, Auc(), rng=RNG)
    without = [float(values(runs != r, member[None])[0]) for r in range(5)]
    error = math.sqrt(4 / 5 * np.sum((np.array(without) - np.mean(without)) ** 2))
    t = (float(values(runs >= 0, member[None])[0]) - 0.5) / error
    tail = integrate.quad(lambda x: stats.t.pdf(x, 4), t, np.inf)[0]
    assert p_of(total, Auc(), rng=RNG) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("claimed", [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 0.0, 1.0, 0.0, 0.0], [2.0] * 5])
def test_listed_exchanges_are_all_of_them(claimed):
    """Summed by what they give to equal claims, against every choice of 2 members among 5."""
    x, truth = np.array(claimed), np.array([True, True, False, False, False])
    result, weights = exchange_truth(x, truth, np.zeros(5, dtype=np.int64), rng=RNG)
    pairs = list(itertools.combinations(range(5), 2))
    slow = {}
    for pair in pairs:
        key = tuple(sorted(x[list(pair)]))
        slow[key] = slow.get(key, 0) + 1 / len(pairs)
    assert {tuple(sorted(x[t])): w for t, w in zip(result, weights, strict=True)} == pytest.approx(slow)


def test_decisions_of_several_runs_are_a_sum_of_hypergeometric_numbers(monkeypatch):
    """Beside the variance between runs, which is tested elsewhere."""
    monkeypatch.setattr(
        "glasshouse.metrics.statistics.permutation._error_over_runs", lambda values, truth, runs: (0.0, 3)
    )
    random = np.random.default_rng(8)
    truth, runs = np.tile(np.arange(9) < 3, 3), np.repeat([0, 1, 2], 9)
    called = (random.random(27) < 0.3) | (truth & (random.random(27) < 0.7))
    total = np.ones(1)
    for run in range(3):
        pmf = stats.hypergeom(9, 3, int(called[runs == run].sum())).pmf(np.arange(10))
        total = np.convolve(total, pmf)
    sample = join_parts(
        [one_run(F1(), called[runs == run] * 1.0, truth[runs == run], run=str(run)) for run in range(3)]
    )
    exact = float(total[int((called & truth).sum()) :].sum())
    assert p_of(sample, Recall(), rng=RNG) == pytest.approx(exact)

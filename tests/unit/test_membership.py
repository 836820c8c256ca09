"""Numbers over clients: slow definitions, intervals against closed forms, refusals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from glasshouse.audit.scoring.gains import gain_of
from glasshouse.audit.scoring.score import COIN, ClientSample, ScoredMetric
from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.clients import F1, Precision, Recall
from glasshouse.metrics.membership import auc, f1, precision, recall, tpr_at_fpr
from glasshouse.metrics.statistics.shares import proportion_interval, share_interval
from glasshouse.rng import Rng


@st.composite
def clients(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    member = np.array(draw(st.lists(st.booleans(), min_size=8, max_size=30)))
    member[0], member[1:6] = True, False
    scores = draw(st.lists(st.integers(-3, 3), min_size=len(member), max_size=len(member)))
    return np.array(scores, dtype=float), member  # few distinct scores: ties are the hard case


def slow_tpr(scores: np.ndarray, member: np.ndarray, fpr: float) -> float:
    """Members caught one by one, each by its conformal p-value among the others."""
    others = scores[~member]
    p_values = [(1 + sum(others >= score)) / (1 + len(others)) for score in scores[member]]
    return float(np.mean([p <= fpr + 1e-9 for p in p_values]))


def slow_auc(scores: np.ndarray, member: np.ndarray) -> float:
    pairs = [(a > b) + (a == b) / 2 for a in scores[member] for b in scores[~member]]
    return sum(pairs) / len(pairs)


@given(clients(), st.sampled_from([0.2, 0.29, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
def test_tpr_is_the_best_rate_that_keeps_the_promise(sample, fpr):
    scores, member = sample
    assert tpr_at_fpr(scores, member, fpr=fpr).value == slow_tpr(scores, member, fpr)


@given(clients())
@settings(max_examples=60, deadline=None)
def test_auc_counts_pairs_and_ties_half(sample):
    scores, member = sample
    interval = auc(scores, member)
    assert interval.value == pytest.approx(slow_auc(scores, member))
    mirrored = auc(-scores, member)
    assert mirrored.value == pytest.approx(1 - interval.value)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - interval.high, 1 - interval.low), abs=1e-6)


@given(clients(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_only_the_order_of_scores_matters(sample, random):
    scores, member = sample
    order = np.array(random.sample(range(len(scores)), len(scores)))
    for function in (auc, lambda s, m: tpr_at_fpr(s, m, fpr=0.2)):
        assert function(np.exp(scores), member) == function(scores, member)
        assert function(scores[order], member[order]) == function(scores, member)


def test_29_percent_of_100_people_are_29():
    """0.29 * 100 is 28.999999999999996."""
    scores = np.array([70.5, *range(99)])  # and the stranger is the hundredth
    assert tpr_at_fpr(scores, np.arange(100) == 0, fpr=0.29).value == 1.0


def test_interval_of_the_tpr_is_exact_over_members():
    scores, member = np.array([1.0] * 7 + [0.0] * 13), np.arange(20) < 10
    interval = tpr_at_fpr(scores, member, fpr=0.1)
    exact = proportion_interval(7, 10)
    assert (interval.low, interval.high, interval.n) == (exact.low, exact.high, 10)


@given(st.integers(0, 10**6), st.integers(4, 40))
@settings(max_examples=60, deadline=None)
def test_f1_precision_recall_are_their_definitions(seed, n):
    random = np.random.default_rng(seed)
    member, called = random.random((2, n)) < 0.5
    member[0] = called[0] = True
    tp, fp, fn = (member & called).sum(), (~member & called).sum(), (member & ~called).sum()
    p, r = precision(called, member), recall(called.astype(float), member)
    assert (p.value, r.value) == (tp / (tp + fp), tp / (tp + fn))
    assert f1(called, member).value == pytest.approx(2 * p.value * r.value / (p.value + r.value))
    exact = proportion_interval(int(tp), int(tp + fp))
    assert (p.low, p.high, p.n) == (exact.low, exact.high, tp + fp)
    exact = proportion_interval(int(tp), int(tp + fn))
    assert (r.low, r.high, r.n) == (exact.low, exact.high, tp + fn)


def test_interval_of_f1_is_the_mapped_exact_interval():
    member, called = np.arange(20) < 8, (np.arange(20) >= 2) & (np.arange(20) < 11)
    exact = proportion_interval(6, 11)  # 6 caught, 2 missed, 3 wrongly called
    interval = f1(called, member)
    assert (interval.low, interval.high) == pytest.approx(
        (2 * exact.low / (1 + exact.low), 2 * exact.high / (1 + exact.high))
    )
    assert interval.value == pytest.approx(12 / 17)


def test_perfect_attacks_keep_their_doubt():
    member = np.arange(20) < 5
    assert f1(member, member).low < 0.7
    assert 0.6 < auc(member.astype(float), member).low < 0.95
    assert auc(1.0 - member, member).high > 0.05


def test_interval_of_the_auc_solves_newcombes_equation():
    random = np.random.default_rng(0)
    member = np.arange(50) < 8
    scores = random.normal(0, 1, 50) + member
    interval = auc(scores, member, level=0.9)
    m, n = 8, 42
    star = (m + n) / 2 - 1
    for theta in (interval.low, interval.high):
        variance = (
            theta
            * (1 - theta)
            * (1 + star * (1 - theta) / (2 - theta) + star * theta / (1 + theta))
            / (m * n)
        )
        assert abs(interval.value - theta) == pytest.approx(
            stats.norm.ppf(0.95) * math.sqrt(variance), rel=1e-6
        )
    assert interval.low < interval.value < interval.high


def test_runs_that_succeed_or_fail_as_a_whole_widen_every_interval():
    runs = np.repeat(np.arange(6), 20)
    member = np.tile(np.arange(20) < 6, 6)
    works = runs % 2 == 0
    random = np.random.default_rng(1)
    scores = np.where(works & member, 5.0, 0.0) + random.normal(0, 1, 120)
    called = np.where(works, member, ~member & (np.arange(120) % 2 == 0))
    pairs = [(auc, scores), (f1, called), (recall, called), (precision, called)]
    for function, claimed in pairs:
        alone, together = function(claimed, member), function(claimed, member, runs=runs)
        assert together.value == alone.value
        assert together.high - together.low > 1.2 * (alone.high - alone.low)


def slow_effect(scores: np.ndarray, member: np.ndarray, runs: np.ndarray) -> float:
    """Variance of the AUC between runs over that between clients (Obuchowski 1997), client by client."""
    value, inside, outside = slow_auc(scores, member), scores[member], scores[~member]

    def part(i: int) -> float:
        if member[i]:
            return (np.mean((scores[i] > outside) + (scores[i] == outside) / 2) - value) / len(inside)
        return (np.mean((inside > scores[i]) + (inside == scores[i]) / 2) - value) / len(outside)

    def variance(groups: np.ndarray) -> float:
        names = sorted(set(groups))
        sums = [sum(part(i) for i in range(len(scores)) if groups[i] == g) for g in names]
        return len(names) / (len(names) - 1) * sum(s**2 for s in sums)

    return variance(runs) / variance(np.arange(len(scores)))


@pytest.mark.parametrize("shift", [0.0, 4.0])
def test_the_auc_over_runs_has_fewer_clients_by_the_design_effect(shift):
    """``shift``: runs differ in how well the attack works, or they do not (and then nothing shrinks)."""
    random = np.random.default_rng(4)
    runs, member = np.repeat(np.arange(5), 8), np.tile(np.arange(8) < 3, 5)
    scores = random.normal(0, 1, 40) + member * shift * (runs % 2 - 0.5)
    effect = max(1.0, slow_effect(scores, member, runs))
    assert (effect > 1.2) == (shift > 0)
    interval = auc(scores, member, runs=runs)
    m, n = 15 / effect, 25 / effect
    star = (m + n) / 2 - 1
    for theta in (interval.low, interval.high):
        variance = (
            theta
            * (1 - theta)
            * (1 + star * (1 - theta) / (2 - theta) + star * theta / (1 + theta))
            / (m * n)
        )
        assert abs(interval.value - theta) == pytest.approx(
            stats.norm.ppf(0.975) * math.sqrt(variance), rel=1e-6
        )


def test_runs_that_are_alike_leave_the_auc_as_it_is():
    runs, member = np.repeat(np.arange(10), 10), np.tile(np.arange(10) < 5, 10)
    scores = np.random.default_rng(2).permutation(np.tile(np.arange(10.0), 10))
    alone, together = auc(scores, member), auc(scores, member, runs=runs)
    assert together.high - together.low < 1.6 * (alone.high - alone.low)


@pytest.mark.parametrize("function", [auc, f1, precision, recall])
def test_a_single_run_is_like_no_runs(function):
    member = np.arange(12) < 5
    claimed = (np.arange(12) % 2).astype(float)
    assert function(claimed, member, runs=np.full(12, 3)) == function(claimed, member)


def test_shares_over_runs_are_clustered_shares():
    runs, member = np.repeat(np.arange(4), 6), np.tile(np.arange(6) < 3, 4)
    called = np.random.default_rng(3).random(24) < 0.5
    assert recall(called, member, runs=runs) == share_interval(called[member], runs[member])
    assert precision(called, member, runs=runs) == share_interval(member[called], runs[called])


NOBODY, SOMEBODY = np.zeros(6, dtype=bool), np.arange(6) < 2


@pytest.mark.parametrize(
    ("call", "needs"),
    [
        (lambda: precision(NOBODY, SOMEBODY), "a client called a member"),
        (lambda: recall(SOMEBODY, NOBODY), "a member"),
        (lambda: f1(NOBODY, NOBODY), "a member or a client called one"),
        (lambda: auc(np.arange(6.0), NOBODY), "at least 1 member and 1 non-member"),
        (lambda: auc(np.arange(6.0), ~NOBODY), "at least 1 member and 1 non-member"),
        (lambda: tpr_at_fpr(np.arange(6.0), SOMEBODY, fpr=0.001), "at least 1 member, and 999 non-members"),
        (lambda: tpr_at_fpr(np.arange(6.0), NOBODY, fpr=0.5), "at least 1 member"),
    ],
)
def test_says_what_is_undefined(call, needs):
    with pytest.raises(Undefined, match=needs):
        call()


def test_nobody_called_is_an_f1_of_zero_and_no_missing_number():
    assert f1(NOBODY, SOMEBODY).value == 0.0
    assert f1(NOBODY, SOMEBODY).high > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: auc(np.array([1.0, math.nan]), np.array([True, False])), "1 not finite"),
        (lambda: auc(np.arange(3.0), SOMEBODY), "one truth"),
        (lambda: auc(np.arange(6.0), SOMEBODY.astype(int)), "bool"),
        (lambda: f1(np.full(6, 0.7), SOMEBODY), "decisions of 0 or 1"),
        (lambda: tpr_at_fpr(np.arange(6.0), SOMEBODY, fpr=0.0), "needs  fpr"),
        (lambda: tpr_at_fpr(np.arange(6.0), SOMEBODY, fpr=1.5), "needs  fpr"),
        (lambda: auc(np.arange(6.0), SOMEBODY, level=0.0), "needs  level"),
    ],
)
def test_refuses_what_is_no_score_and_no_truth(call, words):
    with pytest.raises(BadValue, match=words):
        call()


def test_a_coin_may_call_as_many_as_the_claim_did():
    """Calling everybody finds everybody, and is no finding."""
    everybody = ScoreContext(prior=0.1, called=1.0)
    assert Recall().chance(everybody) == 1.0
    assert F1().chance(everybody) == pytest.approx(2 * 0.1 / 1.1)
    assert Precision().chance(everybody) == 0.1
    few = ScoreContext(prior=0.1, called=0.05)
    assert (Recall().chance(few), F1().chance(few)) == (0.05, 0.1)
    truth = np.arange(50) < 5
    scored = ScoredMetric(clients=(ClientSample(run="0", scores=np.ones(50), truth=truth),), baseline=COIN)
    assert gain_of(scored, Recall(), rng=Rng.root(0)).high <= 0

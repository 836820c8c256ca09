"""Intervals: closed forms, what must hold for every input, and where there is none."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.statistics import interval
from glasshouse.metrics.statistics.interval import Interval, mean_interval, paired_gain, with_unseen
from glasshouse.metrics.statistics.shares import (
    paired_share_gain,
    proportion_bounds,
    proportion_interval,
    share_interval,
)
from glasshouse.rng import Rng

RNG = Rng.root(0)
numbers = st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=12)


def ends(found: Interval) -> tuple[float, float]:
    return found.low, found.high


@given(numbers)
@settings(max_examples=40, deadline=None)
def test_mean_moves_scales_and_mirrors_with_the_data(values):
    x = np.array(values)
    base = mean_interval(x, rng=RNG)
    assert base.value == pytest.approx(x.mean())
    assert base.n == len(x)
    moved = mean_interval(3 * x + 100, rng=RNG)
    assert ends(moved) == pytest.approx((3 * base.low + 100, 3 * base.high + 100))
    wider = mean_interval(x, rng=RNG, level=0.99)
    assert wider.low <= base.low
    assert base.high <= wider.high


def test_mean_is_never_shorter_than_students_t_nor_than_the_bootstrap():
    even = np.array([1.0, 2.0, 4.0, 5.0])
    t = stats.t.interval(0.95, 3, loc=3, scale=even.std(ddof=1) / 2)
    assert ends(mean_interval(even, rng=RNG)) == pytest.approx(t)
    tail = np.array([*range(19), 100.0])  # a long right tail: the bootstrap reaches further up than t
    t = stats.t.interval(0.95, 19, loc=tail.mean(), scale=tail.std(ddof=1) / math.sqrt(20))
    draws = RNG.child("bootstrap").numpy().integers(0, 20, (interval.RESAMPLES, 20))
    reach = stats.t.ppf(0.975, 19) * math.sqrt(20 / 19)  # Hesterberg's expansion
    bootstrap = np.quantile(tail[draws].mean(1), stats.norm.cdf(reach))
    result = mean_interval(tail, rng=RNG)
    assert result.low == pytest.approx(t[0])
    assert result.high == pytest.approx(bootstrap)
    assert bootstrap > t[1]
    mirrored = mean_interval(-tail, rng=RNG)
    assert ends(mirrored) == pytest.approx((-result.high, -result.low))


def test_mean_repeats_with_its_stream_and_leaves_global_randomness_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002  looking, not drawing
    tail = [*range(19), 100.0]
    assert mean_interval(tail, rng=RNG) == mean_interval(tail, rng=RNG)
    assert mean_interval(tail, rng=RNG) != mean_interval(tail, rng=Rng.root(1))
    assert (before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_equal_numbers_give_width_zero_and_say_so():
    assert ends(mean_interval([0.1] * 7, rng=RNG)) == (0.1, 0.1)
    assert "width 0" in str(mean_interval.__doc__)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_one_victim_has_no_interval(values):
    with pytest.raises(Undefined, match="at least 2 victims") as caught:
        mean_interval(values, rng=RNG)
    assert caught.value.got == str(len(values))


def test_refuses_what_is_no_number_and_no_level():
    with pytest.raises(BadValue, match="1 not finite"):
        mean_interval([1.0, math.nan], rng=RNG)
    with pytest.raises(BadValue, match="needs  level"):
        mean_interval([1.0, 2.0], rng=RNG, level=95)


def test_gain_is_paired_by_victim_and_signed_for_the_attack():
    values, null = np.array([20.0, 31.0, 12.0]), np.array([10.0, 20.0, 3.0])
    gain = paired_gain(values, null, rng=RNG)
    assert gain == mean_interval(values - null, rng=RNG)
    assert gain.value == 10.0
    assert gain.above_zero  # unpaired, a spread of ±10 would hide it
    assert paired_gain(null, values, rng=RNG, higher_leaks=False) == gain
    with pytest.raises(BadValue, match="on the same victims"):
        paired_gain([1.0, 2.0], [1.0], rng=RNG)


@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.sampled_from([0.8, 0.95]),
)
@settings(max_examples=60, deadline=None)
def test_exact_interval_is_where_the_binomial_tails_reach_alpha(counts, level):
    """Clopper & Pearson's definition, checked at the ends, not their beta quantiles."""
    hits, n = counts
    result, tail = proportion_interval(hits, n, level=level), (1 - level) / 2
    assert result.value == hits / n
    assert (
        result.low == 0
        if hits == 0
        else stats.binom.sf(hits - 1, n, result.low) == pytest.approx(tail, rel=1e-6)
    )
    assert (
        result.high == 1
        if hits == n
        else stats.binom.cdf(hits, n, result.high) == pytest.approx(tail, rel=1e-6)
    )
    least, most = proportion_bounds(hits, n, level=level)
    assert hits == 0 or stats.binom.sf(hits - 1, n, least) == pytest.approx(1 - level, rel=1e-6)
    assert hits == n or stats.binom.cdf(hits, n, most) == pytest.approx(1 - level, rel=1e-6)


def test_refuses_shares_of_nothing_and_more_than_all():
    with pytest.raises(Undefined, match="at least 1 outcome"):
        proportion_interval(0, 0)
    with pytest.raises(BadValue, match="0 <= hits <= n") as caught:
        proportion_interval(3, 2)
    assert caught.value.got == "3 of 2"


@given(st.lists(st.booleans(), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_one_outcome_per_victim_is_the_exact_interval(hits):
    assert share_interval(hits) == proportion_interval(sum(hits), len(hits))


def test_averaged_outcomes_are_not_cut_to_whole_ones():
    assert share_interval([0.5, 0.25, 1.0, 0.0]).value == 0.4375


def slow_share(hits: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Korn & Graubard 1998, step by step: variance over clusters, effective n, exact ends."""
    n, share, names = len(hits), hits.mean(), sorted(set(groups))
    k = len(names)
    sums = [sum(hits[groups == g] - share) for g in names]
    variance = k / (k - 1) * sum(s**2 for s in sums) / n**2
    effective = share * (1 - share) / variance * (stats.t.ppf(0.975, n - 1) / stats.t.ppf(0.975, k - 1)) ** 2
    effective = min(effective, n)
    low = stats.beta.ppf(0.025, share * effective, effective - share * effective + 1)
    return low, stats.beta.ppf(0.975, share * effective + 1, effective - share * effective)


def slow_gain(difference: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The docstring of paired_share_gain as a list of weighted victims."""
    names, n = sorted(set(groups)), len(difference)
    k = len(names)
    sizes = [(groups == g).sum() * k / n for g in names]
    means = [difference[groups == g].mean() for g in names]
    between = sum((s * (m - difference.mean())) ** 2 for s, m in zip(sizes, means, strict=True)) / k
    weight = min(1.0, max(between / difference.var(), k / n))
    centre = sum(s * m for s, m in zip(sizes, means, strict=True)) / (k + 2 * weight)
    spread = sum((s * (m - centre)) ** 2 for s, m in zip(sizes, means, strict=True))
    spread += weight * ((0 - centre) ** 2 + (1 - centre) ** 2 / 2 + (-1 - centre) ** 2 / 2)
    reach = stats.t.ppf(0.975, k - 1) * math.sqrt(spread) / (k + 2 * weight)
    return max(-1, centre - reach), min(1, centre + reach)


@pytest.mark.parametrize("rho", [0.01, 0.5, 5.0])
@pytest.mark.parametrize("victims", [5, 12])
def test_clustered_intervals_agree_with_their_slow_twins(rho, victims):
    """Victims of 1 to 6 images; small rho: images of a victim succeed together."""
    random = np.random.default_rng(victims)
    groups = np.repeat(np.arange(victims), random.integers(1, 7, victims))
    luck = random.beta(rho, rho, (2, victims))
    hits, null = ((random.random(len(groups)) < luck[i][groups]).astype(float) for i in (0, 1))
    assert ends(share_interval(hits, groups)) == pytest.approx(slow_share(hits, groups))
    assert ends(paired_share_gain(hits, null, groups)) == pytest.approx(slow_gain(hits - null, groups))


def test_images_that_agree_within_each_victim_count_as_the_victims():
    """Ten images each, all alike within a victim: close to the exact interval of the victims alone."""
    victims = np.array([1, 0, 0, 1, 1, 0, 1, 1, 0, 1])
    alone = proportion_interval(int(victims.sum()), 10)
    interval = share_interval(np.repeat(victims, 10), np.repeat(np.arange(10), 10))
    assert interval.n == 10
    assert interval.value == alone.value
    assert interval.low <= alone.low + 0.02
    assert interval.high >= alone.high - 0.02


def test_images_that_succeed_independently_count_nearly_as_images():
    random = np.random.default_rng(0)
    hits = random.random(400) < 0.4
    interval = share_interval(hits, np.repeat(np.arange(40), 10))
    alone = proportion_interval(int(hits.sum()), 400)
    assert interval.high - interval.low == pytest.approx(alone.high - alone.low, rel=0.25)


def test_victims_more_alike_than_chance_gain_no_outcomes():
    """One hit in three images of every victim: no variance between victims, but still only 18 outcomes."""
    interval = share_interval([1, 0, 0] * 6, np.repeat(np.arange(6), 3))
    assert ends(interval) == pytest.approx(ends(proportion_interval(6, 18)))


@pytest.mark.parametrize("hit", [0.0, 1.0])
def test_a_share_without_variance_still_has_width(hit):
    interval = share_interval([hit] * 80, np.repeat(np.arange(20), 4))
    assert ends(interval) == pytest.approx(ends(proportion_interval(int(20 * hit), 20)))


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_names_and_order_of_victims_do_not_matter(seed):
    random = np.random.default_rng(seed)
    hits, null = random.integers(0, 2, (2, 24)).astype(float)
    groups = random.integers(0, 5, 24)
    groups[:2] = [0, 1]
    order = random.permutation(24)
    assert ends(share_interval(hits[order], 7 - groups[order])) == pytest.approx(
        ends(share_interval(hits, groups))
    )
    gain = paired_share_gain(hits, null, groups)
    assert ends(paired_share_gain(hits[order], null[order], 7 - groups[order])) == pytest.approx(ends(gain))
    mirrored = paired_share_gain(null, hits, groups)
    assert ends(mirrored) == pytest.approx((-gain.high, -gain.low))
    assert gain.value == pytest.approx(hits.mean() - null.mean())


def test_gain_of_shares_is_agresti_and_mins_interval_with_students_quantile():
    """One image per victim: half an observation in each of the four cells of the paired table."""
    hits = np.array([1] * 7 + [0] * 2 + [1] * 4 + [0] * 7)
    null = np.array([0] * 7 + [1] * 2 + [1] * 4 + [0] * 7)
    b, c, n = 7.5, 2.5, 22
    centre = (b - c) / n
    error = math.sqrt((b + c) - (b - c) ** 2 / n) / n
    reach = stats.t.ppf(0.975, 19) * error
    interval = paired_share_gain(hits, null)
    assert ends(interval) == pytest.approx((centre - reach, centre + reach))
    assert (interval.value, interval.n) == (0.25, 20)


def test_gain_of_shares_has_width_where_nothing_differs():
    interval = paired_share_gain([1] * 20, [1] * 20)
    assert interval.low < -0.05
    assert interval.high > 0.05
    assert paired_share_gain([1] * 20, [0] * 20).high == 1.0


def test_clustered_images_make_a_gain_less_sure():
    hits, null = np.array([1, 1, 1, 0] * 5), np.array([0, 0, 1, 0] * 5)
    together = np.sort(np.arange(20) % 5)
    spread = paired_share_gain(
        hits[np.argsort(np.arange(20) % 4)], null[np.argsort(np.arange(20) % 4)], together
    )
    mixed = paired_share_gain(hits, null, together)
    assert spread.high - spread.low > mixed.high - mixed.low


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: share_interval([1.5, 0.0]), "each in"),
        (lambda: share_interval([math.nan, 0.0]), "each in"),
        (lambda: share_interval([1, 0], [1]), "one cluster per outcome"),
        (lambda: paired_share_gain([1, 0], [1, 0, 1]), "of one length"),
        (lambda: paired_share_gain([1, 0], [1, 0], [1, 2, 3]), "one cluster per outcome"),
        (lambda: share_interval([1, 0], level=2), "needs  level"),
    ],
)
def test_refuses_outcomes_that_do_not_fit(call, words):
    with pytest.raises(BadValue, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: share_interval([]), "at least 1 outcome"),
        (lambda: share_interval([1, 0], [3, 3]), "at least 2 victims"),
        (lambda: paired_share_gain([1], [0]), "at least 2 victims"),
    ],
)
def test_says_what_is_undefined(call, words):
    with pytest.raises(Undefined, match=words):
        call()


def test_an_interval_must_hold_its_value():
    with pytest.raises(BadValue, match="low <= value <= high"):
        Interval(value=2.0, low=0.0, high=1.0, n=3, level=0.95)
    with pytest.raises(BadValue, match="low <= value <= high"):
        Interval(value=math.nan, low=0.0, high=1.0, n=3, level=0.95)


def test_shifting_and_negating():
    interval = Interval(value=0.5, low=0.25, high=1.0, n=4, level=0.9)
    assert ends(interval.minus(0.25)) == (0.0, 0.75)
    assert not interval.minus(0.25).above_zero
    assert interval.above_zero
    assert interval.negated() == Interval(value=-0.5, low=-1.0, high=-0.25, n=4, level=0.9)


@pytest.mark.parametrize("n", [3, 8, 20, 50])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.34])
def test_an_interval_with_the_unseen_holds_where_some_come_out_whole(n, share, monkeypatch):
    """The spread of the victims alone misses the mean in up to two of three samples."""
    monkeypatch.setattr(interval, "RESAMPLES", 100)
    random, root = np.random.default_rng(7), Rng.root(7)
    true, held = share * 100 + (1 - share) * 10, 0
    for i in range(600):
        values = np.where(random.random(n) < share, 100.0, random.normal(10, 2, n))
        seen = mean_interval(values, rng=root.child(str(i)))
        all_of = with_unseen(seen, values, most=100.0)
        below = with_unseen(seen.negated(), -values, most=-100.0, upper=False)
        assert below.low == pytest.approx(-all_of.high)
        held += all_of.low <= true <= all_of.high
    assert held >= 0.93 * 600


def test_of_a_metric_without_an_end_nothing_is_known_of_the_unseen():
    seen = Interval(value=1.0, low=0.0, high=2.0, n=4, level=0.95)
    assert with_unseen(seen, [0.5, 1.0, 1.0, 1.5], most=math.inf) is seen


def test_an_interval_with_unseen_ends_where_scores_end():
    seen = Interval(value=0.75, low=0.59, high=0.91, n=4, level=0.95)
    assert with_unseen(seen, [0.7, 0.75, 0.75, 0.8], most=1.0).high == 1.0

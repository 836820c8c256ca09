"""Intervals that are printed hold for victims like those tried, whatever a test about these alone finds."""

import numpy as np
import pytest
from tests.verdicts.bench import bench, textured

from glasshouse.audit.scoring.gains import gain_of, rung_with_unseen
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.metrics.reconstruction import Mse, Psnr
from glasshouse.results.records import Exchange
from glasshouse.rng import Rng


def scored(values, nulls) -> ScoredMetric:
    return ScoredMetric(
        values=tuple(np.array([one]) for one in values), nulls=tuple(np.array([one]) for one in nulls)
    )


def test_who_came_out_by_luck_is_in_the_interval_over_others_and_not_in_its_test():
    """3 of 20 come out whole: no order of claims does as well, and another 20 might show nobody."""
    random = np.random.default_rng(8)
    one = bench(20, random)
    one.claims = textured(20, random)
    one.claims[:3] = one.private.inputs[:3]
    found = one.finding().exchange
    assert found.is_beaten
    assert found.gain_low < 0 < found.gain < found.gain_high


@pytest.mark.parametrize("n", [8, 40])
def test_the_spread_of_twins_is_that_of_a_draw_of_victims_who_are_twins_themselves(n):
    """The jackknife takes out each victim as victim and as everybody's twin."""
    examples = np.random.default_rng(n).normal(size=n)
    distances = (examples[:, None] - examples) ** 2
    twins = distances.sum(1) / (n - 1)
    without = [np.delete(np.delete(distances, i, 0), i, 1).sum() / ((n - 1) * (n - 2)) for i in range(n)]
    jackknife = np.sqrt((n - 1) * np.var(without))
    twice = scored(np.zeros(n), twins).counted_twice()
    nulls = np.concatenate(twice.nulls)
    assert nulls.mean() == pytest.approx(twins.mean())
    assert nulls.std(ddof=1) / np.sqrt(n) == pytest.approx(jackknife, rel=0.15)


def test_the_rung_of_twins_is_as_wide_as_its_victims_make_it():
    one = bench(8, np.random.default_rng(2), metrics=("mse",))
    one.claims = one.auxiliary.inputs.mean(0).expand_as(one.private.inputs)
    finding = one.finding()
    twin = next(rung for rung in finding.ladder if rung.knows == "twin")
    of_victims = one.scores().numbers["mse"]
    alone = gain_of(of_victims.against("twin"), Mse(), rng=Rng.root(0))
    assert twin.gain == pytest.approx(alone.value)
    assert twin.gain_high - twin.gain_low > 1.2 * (alone.high - alone.low)


def test_a_rung_that_is_not_beaten_allows_for_victims_who_leak_less_than_any_tried():
    same = scored([10.0, 10.5, 11.0, 10.2], [10.1, 10.4, 11.1, 10.1])
    gain = gain_of(same, Psnr(), rng=Rng.root(0))
    assert gain.low < 0
    wide = rung_with_unseen(gain, same, Psnr())
    assert wide.low < gain.low - 1  # at most 0.6 of such victims would fail, each by up to 10 dB
    assert wide.high > gain.high


def test_the_lower_end_of_a_rung_that_is_beaten_is_that_of_its_test():
    better = scored([20.0, 20.5, 21.0, 20.2], [10.1, 10.4, 11.1, 10.1])
    gain = gain_of(better, Psnr(), rng=Rng.root(0))
    assert rung_with_unseen(gain, better, Psnr()).low == gain.low > 0


def test_an_error_without_an_upper_limit_has_no_worst_victim():
    same = scored([1.0, 1.1, 0.9], [1.0, 1.0, 1.0])
    gain = gain_of(same, Mse(), rng=Rng.root(0))
    assert rung_with_unseen(gain, same, Mse()).low == gain.low


@pytest.mark.parametrize(
    ("low", "beaten", "is_beaten"),
    [(0.1, None, True), (0.0, None, False), (-0.1, None, False), (-0.1, True, True), (0.1, False, False)],
)
def test_the_exchange_of_an_earlier_release_is_beaten_by_its_interval(low, beaten, is_beaten):
    old = Exchange(value=0.5, gain=0.2, gain_low=low, gain_high=0.4, n=8, beaten=beaten)
    assert old.is_beaten is is_beaten

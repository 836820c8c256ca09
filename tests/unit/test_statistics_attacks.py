"""Attacks on statistics against people and curves that are known."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from glasshouse.attacks.statistics import kaplan_meier
from glasshouse.attacks.statistics.differencing import difference, positives_of_auc, two_values
from glasshouse.attacks.statistics.kaplan_meier import count_chains, other_site
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Statistic, Statistics, Survival


@pytest.mark.parametrize(
    ("count", "name", "exact"), [(100, "sum", True), (10_000, "sum", True), (100, "mean", True)]
)
def test_a_person_who_joins_is_the_difference(count, name, exact):
    """Rounded to 4 decimals, as NVIDIA FLARE's statistics are."""
    draws = np.random.default_rng(0)
    people = np.round(draws.normal(50, 10, (count + 1, 3)), 1)
    numbers = []
    for number, rows in enumerate((people[:-1], people)):
        numbers.append(Statistic(name="count", value=len(rows), round=number))
        for column in range(3):
            value = rows[:, column].sum() / (len(rows) if name == "mean" else 1)
            numbers.append(
                Statistic(name=name, value=round(value, 4), column=str(column), round=number, digits=4)
            )
    found = difference(Statistics(numbers=tuple(numbers)), site=0, before=0, after=1)
    assert found.people == 1
    for column in range(3):
        true = people[-1, column]
        assert abs(found.sums[str(column)] - true) <= found.errors[str(column)] + 1e-9
        assert round(found.sums[str(column)], 1) == pytest.approx(true) or not exact


def test_two_people_are_both_read():
    assert two_values(63.4 + 71.2, 63.4**2 + 71.2**2) == pytest.approx((63.4, 71.2))
    with pytest.raises(Inapplicable):
        two_values(10, 10)


def test_an_auc_leaves_few_numbers_of_positives():
    draws = np.random.default_rng(1)
    for _ in range(20):
        labels = draws.permutation(np.repeat([0, 1], [75, 25]))
        scores = draws.random(100) + 0.5 * labels
        possible = positives_of_auc(roc_auc_score(labels, scores), 100)
        assert 25 in possible
        assert len(possible) <= 40


def cohort(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    lives, leaves = np.ceil(365 * draws.weibull(1.2, n)), np.ceil(365 * draws.uniform(0.3, 2, n))
    return np.minimum(lives, leaves), (lives <= leaves).astype(int)


def table_of(times: np.ndarray, events: np.ndarray) -> Survival:
    each = np.unique(times)
    died = np.array([int(events[times == t].sum()) for t in each])
    lost = np.array([int((1 - events)[times == t].sum()) for t in each])
    return Survival(times=each, patients=len(times), events=died, censored=lost)


def curve_of(times: np.ndarray, events: np.ndarray, digits: int | None) -> Survival:
    table, left, now, curve = table_of(times, events), len(times), 1.0, []
    for died, lost in zip(table.events, table.censored, strict=True):
        now *= 1 - died / left
        left -= died + lost
        curve.append(now if digits is None else round(now, digits))
    return Survival(times=table.times, patients=len(times), curve=np.array(curve), digits=digits)


def test_the_other_of_two_sites_is_the_total_less_ones_own():
    (a, b), (c, d) = cohort(40, 0), cohort(60, 1)
    total = table_of(np.concatenate([a, c]), np.concatenate([b, d]))
    other, true = other_site(total, table_of(a, b)), table_of(c, d)
    for name in ("times", "events", "censored"):
        np.testing.assert_array_equal(getattr(other, name), getattr(true, name))
    with pytest.raises(Inapplicable):
        other_site(table_of(a, b), total)


def brute(curve: Survival, error: float) -> int:
    """Every sequence of deaths and losses between event times that gives the curve, tried one by one."""
    n, steps = curve.patients, len(curve.times)
    count = 0
    choices = [(d, c) for d in range(1, n + 1) for c in range(n)]
    for chain in itertools.product(choices, repeat=steps):
        for first in range(n):
            left, now, fits = n - first, 1.0, True
            for (died, lost), wanted in zip(chain, curve.curve, strict=True):
                if died > left:
                    fits = False
                    break
                now *= 1 - died / left
                left -= died + lost
                fits = fits and left >= 0 and abs(now - wanted) <= error
            count += fits
    return count


@pytest.mark.parametrize("curve", [[3 / 4, 3 / 8], [2 / 3, 1 / 3], [3 / 4, 1 / 2], [1 / 2, 0.0]])
def test_chains_are_counted_as_by_hand(curve):
    """The last losses are those before the end of follow-up: any number of those left."""
    stated = Survival(times=np.array([1.0, 2.0]), patients=4, curve=np.array(curve))
    wanted = brute(stated, 1e-9)
    if wanted:
        assert count_chains(stated).count == wanted
    else:
        with pytest.raises(Inapplicable):
            count_chains(stated)


@pytest.mark.parametrize("curve", [[0.75, 0.38], [0.7, 0.3], [0.8, 0.5], [0.5, 0.0], [0.67, 0.33]])
@pytest.mark.parametrize("digits", [1, 2])
def test_chains_of_rounded_curves_are_those_whose_own_curve_rounds_to_it(curve, digits):
    """Each value of a chain's own curve is held against the printed one, not each ratio of two."""
    stated = Survival(times=np.array([1.0, 2.0]), patients=6, curve=np.round(curve, digits), digits=digits)
    wanted = brute(stated, 0.5 * 10.0**-digits + 1e-9)
    if wanted:
        found = count_chains(stated)
        assert (found.count, found.exact) == (wanted, True)
    else:
        with pytest.raises(Inapplicable):
            count_chains(stated)


@pytest.mark.parametrize("seed", range(5))
def test_of_too_many_chains_the_count_is_an_upper_end_and_ranges_hold_all(seed, monkeypatch):
    stated = curve_of(*cohort(50, seed), 3)
    exact = count_chains(stated)
    monkeypatch.setattr(kaplan_meier, "MOVES", 50)
    rough = count_chains(stated)
    assert exact.exact
    assert not rough.exact
    assert rough.count >= exact.count
    for name in ("at_risk", "deaths"):
        for outer, inner in zip(getattr(rough, name), getattr(exact, name), strict=True):
            assert outer[0] <= inner[0] <= inner[1] <= outer[1]


@pytest.mark.parametrize("digits", [None, 4, 3, 2])
def test_the_truth_is_among_the_data_sets(digits):
    for seed in range(5):
        times, events = cohort(50, seed)
        found, table = count_chains(curve_of(times, events, digits)), table_of(times, events)
        at_risk = table.patients - np.concatenate([[0], np.cumsum(table.events + table.censored)[:-1]])
        true = {
            float(t): (int(n), int(d)) for t, n, d in zip(table.times, at_risk, table.events, strict=True)
        }
        for time, (low, high), deaths in zip(found.times, found.at_risk, found.deaths, strict=True):
            assert low <= true[time][0] <= high
            assert deaths[0] <= true[time][1] <= deaths[1]
        assert found.count >= 1


def test_a_full_curve_is_nearly_the_patients():
    """A handful of data sets at full precision, and at three digits; at two more than a thousand."""
    counts = {d: [count_chains(curve_of(*cohort(50, s), d)).count for s in range(5)] for d in (None, 3, 2)}
    assert max(counts[None]) <= 60
    assert max(counts[3]) <= 100
    assert min(counts[2]) > 1000

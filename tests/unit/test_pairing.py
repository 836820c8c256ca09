"""Claims compared with their scores on other victims: a slow twin, exactness, what must not reject."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse.audit.scoring.exchange import exchange
from glasshouse.audit.scoring.score import ScoredMetric, join_parts
from glasshouse.errors import BadValue
from glasshouse.metrics.reconstruction import Mse, Psnr
from glasshouse.metrics.statistics import pairing
from glasshouse.metrics.statistics.pairing import compare_with_others
from glasshouse.rng import Rng

RNG = Rng.root(0)


def slow_p(own, others) -> float:
    """The share of all ways to call one score of each claim its own whose mean gain is as large."""
    rows = [[x, *row] for x, row in zip(own, others, strict=True)]

    def gain(chosen) -> float:
        parts = [row[i] - (sum(row) - row[i]) / (len(row) - 1) for row, i in zip(rows, chosen, strict=True)]
        return sum(parts) / len(parts)

    ways = list(itertools.product(*(range(len(row)) for row in rows)))
    return sum(gain(way) >= gain([0] * len(rows)) - 1e-9 for way in ways) / len(ways)


scores = st.integers(-5, 5).map(float)
claims = st.lists(st.tuples(scores, st.lists(scores, min_size=1, max_size=3)), min_size=2, max_size=5)


@given(claims)
def test_agrees_with_the_slow_definition_and_its_lower_end_with_its_p_value(drawn):
    own, others = [x for x, _ in drawn], [row for _, row in drawn]
    test = compare_with_others(own, others, rng=RNG)
    if test is None:
        assert np.prod([1 + len(row) for row in others]) <= 40
        return
    assert test.p == pytest.approx(slow_p(own, others))
    assert (test.low > 0) == (test.p < 0.025)
    if np.isfinite(test.low):  # the lower end is where it stops rejecting
        assert slow_p([x - test.low + 1e-6 for x in own], others) < 0.025
        assert slow_p([x - test.low - 1e-6 for x in own], others) >= 0.025


def test_random_draws_come_near_to_all_of_them(monkeypatch):
    random = np.random.default_rng(1)
    own, others = random.normal(0.8, 1, 6), random.normal(0, 1, (6, 3))
    every = compare_with_others(own, list(others), rng=RNG)
    monkeypatch.setattr(pairing, "LISTED", 0)
    drawn = compare_with_others(own, list(others), rng=RNG)
    assert drawn.p == pytest.approx(every.p, abs=0.005)
    assert drawn.low == pytest.approx(every.low, abs=0.1)


def test_rejects_in_25_of_1000_whatever_the_scores_are():
    """Exact: at n = 4 with three others 6 of 256 ways may be as good, so .0234."""
    random = np.random.default_rng(2)
    for draw in (random.standard_exponential, lambda size: random.lognormal(0, 2, size)):
        for sign in (1, -1):
            claims = sign * draw((500, 4, 4))
            tests = [compare_with_others(c[:, 0], list(c[:, 1:]), rng=RNG) for c in claims]
            assert sum(test.low > 0 for test in tests) <= 500 * 0.0234 + 2 * 3.4  # 2 standard errors


def test_too_few_claims_are_not_tested():
    assert compare_with_others([9.0, 9.0, 9.0], [[1.0, 2.0]] * 3, rng=RNG) is None
    assert compare_with_others([9.0] * 3, [[1.0, 2.0, 3.0]] * 3, rng=RNG).p == 1 / 64
    assert compare_with_others([9.0] * 5, [[1.0]] * 5, rng=RNG) is None
    assert compare_with_others([9.0] * 6, [[1.0]] * 6, rng=RNG).p == 1 / 64


def test_one_claim_for_all_victims_gains_nothing():
    """Rounding alone would lift it: every victim's score is met by as many claims."""
    victims = 0.1 * np.arange(1, 9)
    others = [np.roll(victims, -i)[1:4] for i in range(8)]
    test = compare_with_others(victims, others, rng=RNG)
    assert test.p > 0.4
    assert test.low < 0


@pytest.mark.parametrize(
    ("own", "others"),
    [([1.0, 2.0], [[1.0]]), ([1.0], [[]]), ([np.nan], [[1.0]]), ([1.0], [[np.inf]]), ([], [])],
)
def test_refuses_what_is_no_pair_of_scores(own, others):
    with pytest.raises(BadValue, match="comparison with other victims"):
        compare_with_others(own, others, rng=RNG)


@pytest.mark.parametrize(("metric", "sign"), [(Psnr(), 1), (Mse(), -1)])
def test_an_exchange_of_real_numbers_is_judged_by_pairs_where_they_can_tell(metric, sign):
    own = sign * np.array([5.0, 1.0, 6.0, 2.0, 4.0])
    others = sign * np.array(
        [[4.0, 3.5, 3.0], [0.5, 0.0, -1.0], [5.0, 5.5, 1.0], [1.0, 1.0, 1.0], [3.0, 2.0, 3.5]]
    )
    scored = ScoredMetric(
        values=tuple(own[:, None]),
        nulls=tuple(own[:, None]),
        exchanged=tuple(others[:, :, None]),
        victims=tuple("abcde"),
        baseline="null",
    )
    gain = exchange(scored, metric, rng=RNG)
    test = compare_with_others(sign * own, list(sign * others), rng=RNG)
    assert (gain.p, gain.gain.low) == (test.p, test.low)
    assert gain.p == 4.0**-5
    assert gain.gain.value == pytest.approx(sign * (own - others.mean(1)).mean())


def test_images_of_one_claim_are_averaged_and_claims_about_one_victim_joined():
    parts = [
        ScoredMetric(
            values=(np.full(2, 3.0),),
            nulls=(np.zeros(2),),
            exchanged=(np.outer(levels, np.ones(2)),),
            victims=("a",),
        )
        for levels in ([1.0, 2.0, 3.0], [5.0, 6.0])
    ]
    both = join_parts(parts)
    (joined,) = both.exchanged
    assert joined.tolist() == [[1.0, 1.0, 5.0, 5.0], [2.0, 2.0, 6.0, 6.0]]
    assert both.with_exchange().nulls[0].tolist() == [1.5, 1.5, 5.5, 5.5]

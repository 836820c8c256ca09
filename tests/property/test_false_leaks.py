"""How often the verdict is wrong, by simulation through the public scoring functions (docs/result.md)."""

import pytest
from benchmarks.false_leaks import measure
from benchmarks.false_leaks_families import FAMILIES, Family

WORST_BEFORE = ("AUC, 20 claims on one run", "F1, 20 claims on one run")
BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The study's cheaper resampling, taken back after each test."""
    monkeypatch.setattr("glasshouse.metrics.statistics.interval.RESAMPLES", 50)
    monkeypatch.setattr("glasshouse.metrics.statistics.permutation.EXCHANGES", 999)


def cases(*, exact: bool = False) -> list[tuple[Family, int]]:
    return [(family, n) for family in FAMILIES for n in family.sizes if family.exact or not exact]


@pytest.mark.parametrize("name", WORST_BEFORE)
@pytest.mark.parametrize("n", [8, 20])
def test_claims_filed_again_make_no_leak(name, n):
    """A third of these were called leaks when each claim counted its clients anew."""
    assert measure(BY_NAME[name], n, leaks=False, runs=150).leaks <= 0.07  # 3 %, + 3 standard errors


@pytest.mark.parametrize(("name", "n"), [("share, chance .01", 4), ("share, chance .01", 20)])
def test_a_share_far_above_chance_is_a_leak(name, n):
    """0 % and 17 % were, where the exact test finds 80 % or more."""
    rate = measure(BY_NAME[name], n, leaks=True, runs=100)
    assert rate.exact is not None
    assert rate.exact >= 0.7
    assert rate.leaks == rate.exact


@pytest.mark.parametrize(("name", "n"), [("PSNR, rare failures", 8), ("MSE, skewed errors", 8)])
def test_a_long_tail_makes_no_leak(name, n):
    assert measure(BY_NAME[name], n, leaks=False, runs=200).leaks <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("family", "n"), cases(), ids=lambda x: getattr(x, "name", str(x)))
def test_at_most_three_in_a_hundred_leaks_are_false(family, n):
    """Over 1000 measurements; the Monte Carlo margin is 2 standard errors of a rate of 3 %, so .0108."""
    assert measure(family, n, leaks=False, runs=1000).leaks <= 0.03 + 0.0108


@pytest.mark.slow
@pytest.mark.parametrize(("family", "n"), cases(exact=True), ids=lambda x: getattr(x, "name", str(x)))
def test_the_power_is_within_five_points_of_the_exact_test(family, n):
    """On the same measurements, so the difference has a margin of 1 point only."""
    rate = measure(family, n, leaks=True, runs=500)
    assert rate.exact is not None
    assert rate.leaks >= rate.exact - 0.06

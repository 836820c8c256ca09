"""How often the verdict is wrong, by simulation through the public scoring functions (docs/result.md)."""

import pytest
from tests.simulated.false_headlines import wrong_headlines
from tests.simulated.false_leaks import measure
from tests.simulated.false_leaks_families import FAMILIES, Family
from tests.simulated.false_leaks_tables import columns_of, false_leaks
from tests.simulated.false_victims import KINDS, SIZES, false_rate, power

from glasshouse.data.tables.clinic import clinic

WORST_BEFORE = ("AUC, 20 claims on one run", "F1, 20 claims on one run")
BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The study's cheaper resampling, taken back after each test."""
    monkeypatch.setattr("glasshouse.metrics.statistics.interval.RESAMPLES", 50)
    monkeypatch.setattr("glasshouse.metrics.statistics.permutation.EXCHANGES", 999)
    monkeypatch.setattr("glasshouse.metrics.statistics.pairing.EXCHANGES", 999)


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


@pytest.mark.parametrize(
    ("name", "n"),
    [("PSNR, rare failures", 8), ("MSE, skewed errors", 8), ("MSE, one failure in five", 8)],
)
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


@pytest.mark.parametrize("kind", KINDS)
def test_claims_about_somebody_else_name_a_victim_in_five_of_a_hundred_cells_at_most(kind):
    """Over 100 cells. The slow tests below tell the rate itself."""
    assert false_rate(KINDS[kind], 3, 100) <= 0.05


def test_victims_whose_examples_come_out_are_named_also_where_they_are_many():
    """With 200 held-out examples nobody of twenty could be, whatever came out."""
    assert power(20, 3) == 1.0


def test_a_headline_is_wrong_in_five_of_a_hundred_reports_at_most():
    """Of 75 findings without a leak one names a leak or a victim by luck, nearly always."""
    headline, alone = wrong_headlines(30, victims=3)
    assert headline <= 4 / 30
    assert alone >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victims", SIZES)
def test_a_victim_is_named_wrongly_in_five_of_a_hundred_cells_at_most(kind, victims):
    """Over 1000 cells; the margin is 2 standard errors of 5 %."""
    assert false_rate(KINDS[kind], victims, 1000) <= 0.05 + 0.0138


@pytest.mark.slow
@pytest.mark.parametrize("victims", [0, 3])
def test_a_headline_is_wrong_in_five_of_a_hundred_reports(victims):
    """Over 400 reports; the margin is 2 standard errors of 5 %."""
    headline, alone = wrong_headlines(400, victims=victims)
    assert headline <= 0.05 + 0.0218
    assert alone >= 0.6


@pytest.mark.parametrize("without", ["", "bmi"])
@pytest.mark.parametrize("runs", [6, pytest.param(300, marks=pytest.mark.slow)])
def test_rows_drawn_from_public_ones_are_hardly_ever_a_leak(runs, without):
    """Without its finest column, many rows of the made-up clinic have a twin in most cells."""
    assert false_leaks(*columns_of(clinic(""), without), runs) <= 0.03 * runs

"""Federations of statistics, survival times, Newton sums and histograms: what attacks read of known rows."""

import pytest
import torch
from document_views import Played

from glasshouse.attacks.rows.newton_rows import NewtonRows
from glasshouse.attacks.statistics.follow_up import FollowUp
from glasshouse.attacks.statistics.joined import Differencing
from glasshouse.attacks.statistics.stated_numbers import StatedNumbers
from glasshouse.attacks.tabular import Certainty, CertifiedRows, Facts, Leaves
from glasshouse.attacks.trees.histogram_readout import HistogramReadout
from glasshouse.data.tables.clinic import clinic
from glasshouse.data.tables.cohort import cohort
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.models.build import build, load
from glasshouse.rng import Rng

CLINIC, COHORT = clinic(""), cohort("")
ROOT = Rng.root(0)


def sample(source, count, seed=0):
    rows = source.splits["train"].batch()
    return rows.pick(torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count])


def of(kind, claims):
    return [claim for claim in claims if isinstance(claim, kind)]


@pytest.mark.parametrize("options", [{}, {"asked": "count,mean,bins,labels", "digits": -1}])
def test_who_joined_is_written_down_and_proved(options):
    played = Played(
        CLINIC, sample(CLINIC, 120), "statistics", clients=2, rounds=2, options={"joins": 1, **options}
    )
    claims = Differencing().run(played.view(rounds=(0, 1), client=None), rng=ROOT)
    rows = of(CertifiedRows, claims)
    assert [claim.about.client for claim in rows] == [0, 1]
    stated, wrong = played.held(claims)
    assert stated == 2 + 2 * 9
    assert wrong == 0
    for claim in rows:
        last = played.behind(claim).inputs[-1:]
        assert bool((CLINIC.inputs.distance(claim.inputs, last) == 0).all())


@pytest.mark.parametrize("options", [{"joins": 3}, {"joins": 0}, {"joins": 1, "asked": "count,labels"}])
def test_of_several_or_nobody_no_row_is_claimed(options):
    played = Played(CLINIC, sample(CLINIC, 60), "statistics", rounds=2, options=options)
    claims = Differencing().run(played.view(rounds=(0, 1), client=None), rng=ROOT)
    assert not of(CertifiedRows, claims)


def test_where_people_leave_as_well_nothing_is_proved():
    """One more may be two who came and one who went: the difference is then nobody's row."""
    played = Played(CLINIC, sample(CLINIC, 60), "statistics", rounds=2, options={"joins": 2, "leaves": 1})
    claims = Differencing().run(played.view(rounds=(0, 1), client=None), rng=ROOT)
    assert played.held(claims) == (0, 0)


def test_rounded_means_prove_no_number_that_they_do_not_determine():
    """At 4 decimals a mean of 4,000 rows is known to 0.4 after multiplication: whole numbers stay open."""
    rows = sample(CLINIC, 4000)
    options = {"joins": 1, "asked": "count,mean,bins,labels"}
    played = Played(CLINIC, rows, "statistics", rounds=2, options=options)
    claims = Differencing().run(played.view(rounds=(0, 1), client=None), rng=ROOT)
    assert not of(CertifiedRows, claims)
    assert played.held(claims)[1] == 0


@pytest.mark.parametrize("filters", [False, True])
def test_stated_numbers_are_true(filters):
    played = Played(CLINIC, sample(CLINIC, 60), "statistics", options={"filters": filters})
    stated, wrong = played.held(StatedNumbers().run(played.view(), rng=ROOT))
    assert wrong == 0
    assert stated > (30 if filters else 60)


def test_the_three_filters_leave_sums_as_they_are_and_move_minimum_and_maximum():
    said = {}
    for filters in (False, True):
        played = Played(CLINIC, sample(CLINIC, 60), "statistics", options={"filters": filters})
        document = played.view().rounds[0].updates[0].tensors[NAME]
        numbers = read_document(bytes_of(document))[1].numbers
        said[filters] = {(n.name, n.column): n.value for n in numbers if n.name != "bin"}
    assert said[True]["sum", "bmi"] == said[False]["sum", "bmi"]
    ratio = said[True]["maximum", "bmi"] / said[False]["maximum", "bmi"]
    assert 0.1 <= abs(ratio - 1) <= 0.3


def test_the_sums_of_one_person_are_the_row():
    played = Played(CLINIC, sample(CLINIC, 1), "statistics")
    claims = StatedNumbers().run(played.view(), rng=ROOT)
    assert len(of(CertifiedRows, claims)[0].inputs) == 1
    assert played.held(claims)[1] == 0


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"shape": "raw"}, 60),
        ({"shape": "table"}, 60),
        ({"shape": "table", "unit": 91}, 60),
        ({"shape": "curve"}, 20),
        ({"shape": "curve", "digits": 2}, 0),
    ],
)
def test_follow_up_is_read_or_counted(options, known):
    """Counts of patients by time and outcome add up to all of them, where they are stated."""
    played = Played(COHORT, sample(COHORT, 60), "survival", options=options)
    claims = FollowUp().run(played.view(), rng=ROOT)
    stated, wrong = played.held(claims)
    assert stated > 10
    assert wrong == 0
    facts = of(Facts, claims)[0].facts
    counted = facts[(facts[:, 0] == 0) & (facts[:, 5] >= 0)]
    assert int(counted[:, 1].sum()) >= known


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_rows_of_small_sites_follow_from_a_newton_step(count):
    found = 0
    for seed in range(5):
        played = Played(CLINIC, sample(CLINIC, count, seed), "newton")
        claims = NewtonRows().run(played.view(), rng=ROOT)
        assert played.held(claims)[1] == 0
        found += len(of(CertifiedRows, claims)[0].inputs)
    assert found >= 0.8 * 5 * count


def test_of_a_larger_site_counts_and_sums_follow_and_no_row():
    played = Played(CLINIC, sample(CLINIC, 200), "newton")
    claims = NewtonRows().run(played.view(), rng=ROOT)
    assert not len(of(CertifiedRows, claims)[0].inputs)
    stated, wrong = played.held(claims)
    assert stated > 70
    assert wrong == 0


def test_later_newton_steps_are_refused_and_coefficients_predict():
    played = Played(CLINIC, sample(CLINIC, 400), "newton", rounds=5)
    with pytest.raises(Inapplicable, match="coefficients of 0"):
        NewtonRows().run(played.view(rounds=(1,)), rng=ROOT)
    model = build(played.terms.architecture)
    load(model, played.final)
    with torch.no_grad():
        right = (model(played.batch.inputs).argmax(1) == played.batch.labels).double().mean()
    assert right > 0.7


def test_histograms_are_marginals_and_show_who_stands_alone():
    played = Played(CLINIC, sample(CLINIC, 120), "xgb_histogram", clients=4)
    alone = 0
    for client in range(4):
        claims = HistogramReadout().run(played.view(client=client), rng=ROOT)
        stated, wrong = played.held(claims)
        assert stated > 100
        assert wrong == 0
        boxes = of(Leaves, claims)[0].boxes
        assert int(boxes[:, -2].sum()) == 30  # the boxes share no row and lose none
        alone += int((boxes[:, -2] == 1).sum())
        assert bool((boxes[:, -1] == Certainty.PROVED).all())
    assert alone


def test_boosting_by_histograms_learns():
    played = Played(
        CLINIC, sample(CLINIC, 900), "xgb_histogram", clients=3, rounds=8, options={"max_bin": 16}
    )
    model = build(played.terms.architecture)
    load(model, played.final)
    with torch.no_grad():
        right = (model(played.batch.inputs).argmax(1) == played.batch.labels).double().mean()
    assert right > 0.75
    with pytest.raises(Inapplicable, match="first tree"):
        HistogramReadout().run(played.view(rounds=(2,)), rng=ROOT)


def test_the_sum_of_histograms_grows_the_tree_of_one_site_with_all_rows():
    whole = Played(CLINIC, sample(CLINIC, 90), "xgb_histogram", clients=1)
    shared = Played(CLINIC, sample(CLINIC, 90), "xgb_histogram", clients=3)
    rows = CLINIC.splits["test"].batch().inputs[:200]
    margins = []
    for played in (whole, shared):
        model = build(played.terms.architecture)
        load(model, played.final)
        with torch.no_grad():
            margins.append(model(rows)[:, 1])
    torch.testing.assert_close(*margins)


@pytest.mark.parametrize(
    ("protocol", "options", "match"),
    [
        ("statistics", {"asked": "median"}, "asked"),
        ("statistics", {"joins": 60}, "leave each site somebody"),
        ("survival", {"column": "bmi"}, "whole numbers"),
        ("survival", {"shape": "plot"}, "shape"),
        ("xgb_histogram", {"max_depth": 30}, "max_depth"),
    ],
)
def test_settings_that_make_no_sense_are_refused(protocol, options, match):
    with pytest.raises(BadValue, match=match):
        Played(CLINIC, sample(CLINIC, 60), protocol, rounds=2, options=options)

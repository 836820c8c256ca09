"""The first screen: cells of the matrix are earned, the banner is honest, private evidence is hidden."""

from dataclasses import replace

import pytest
import report_specimen as specimen
from report_cards import CARDS, described, reading

from glasshouse.report.first_screen.evidence import bar, gallery
from glasshouse.report.first_screen.leaks import leaks
from glasshouse.report.first_screen.matrix import (
    ALWAYS,
    DESCRIPTIONS,
    GROUP,
    LABELS,
    OTHERS,
    Matrix,
    matrix,
)
from glasshouse.report.first_screen.screen import DEMONSTRATION, TEST, leak_cards
from glasshouse.report.html import render
from glasshouse.report.readings import READS, read
from glasshouse.results.records import Rung, Share
from glasshouse.results.vocabulary import SEES

CARD = specimen.card(
    "ward", adversary="a server that only reads", sees=(SEES["update"],), things="pictures", public=False
)
QUIET = {"scenario": "ward", "primary": True, "gain": 0.0, "half": 0.02, "verdict": "no leak found"}


def table(*findings, card=CARD) -> Matrix:
    return matrix(reading(*findings, threats=(card,)))


def cell(found: Matrix, kind: str):
    row = next(row for row in found.rows if row.threat == READS)
    return row.cells[found.kinds.index(kind)]


def test_what_was_not_tested_says_so():
    found = table()
    assert {c.text for row in found.rows for c in row.cells} == {"not tested"}
    assert [row.threat for row in found.first] == list(ALWAYS)
    assert found.coverage.startswith("0 of 24 ")


def test_a_leak_beats_whatever_was_quiet_in_other_settings():
    found = cell(
        table(specimen.finding(scenario="ward", primary=True), specimen.finding(**QUIET)), "pictures"
    )
    assert (found.text, found.detail) == ("came out", "in 1 of 2 tests")


def test_a_bound_is_the_largest_of_the_shares_and_missing_shares_bound_nothing():
    shares = [Share(out=0, n=n, most=most, margin=0.2, needed=20) for n, most in ((40, 0.09), (20, 0.17))]
    rows = [specimen.finding(**QUIET, share=share) for share in shares]
    assert cell(table(*rows), "pictures").text == "at most 17\u00a0%"
    assert cell(table(*rows, specimen.finding(**QUIET)), "pictures").text == "no leak found"


@pytest.mark.parametrize("verdict", ["not shown", "no power", "too alike"])
def test_one_test_that_shows_nothing_leaves_the_cell_open(verdict):
    rows = (specimen.finding(**QUIET), specimen.finding(**{**QUIET, "verdict": verdict}))
    assert cell(table(*rows), "pictures").text == "not shown"


def test_a_label_leak_is_one_of_labels_and_shows_no_example():
    found = table(specimen.finding(scenario="ward", verdict="label leak"))
    assert cell(found, LABELS).text == "came out"
    assert cell(found, "pictures").text == "not shown"


def test_named_victims_came_out_although_the_mean_shows_nothing():
    found = table(
        specimen.finding(scenario="ward", gain=0.02, half=0.3, primary=True, victims=specimen.VICTIMS)
    )
    assert cell(found, "pictures").text == "came out"


def test_examples_of_another_kind_have_a_column_of_their_own():
    found = table(specimen.finding(scenario="ward"), card=replace(CARD, things="arrays"))
    assert cell(found, OTHERS).text == "came out"
    assert cell(found, "pictures").text == cell(found, GROUP).text == "not tested"


def test_inner_descriptions_have_a_column_of_their_own():
    metric = replace(CARDS.metric("ssim"), severity="descriptions")
    found = matrix(reading(specimen.finding(scenario="ward"), threats=(CARD,), metrics=(metric,)))
    assert cell(found, DESCRIPTIONS).text == "came out"
    assert cell(found, "pictures").text == "not tested"


def test_a_label_leak_shows_no_reconstruction_and_what_the_label_alone_gives(tmp_path):
    rung = Rung(
        knows="label",
        name="of the label",
        value=0.6,
        gain=0.02,
        gain_low=-0.1,
        gain_high=0.1,
        p=0.4,
        beaten=False,
    )
    finding = specimen.finding(scenario="ward", verdict="label leak", ladder=(rung,))
    exhibit = replace(specimen.pictures_exhibit(tmp_path, "ward"), title="inverting_gradients")
    result = described(finding, threats=(CARD,), exhibits=(exhibit,))
    readings = read(result)
    (card,) = leak_cards(readings, leaks(readings), tmp_path, show_private=True)
    assert card.gallery is None
    assert card.bar.label_alone == "0.60"
    assert "knowing the label alone, 0.60" in render(result, tmp_path)


def test_the_banner_says_whether_it_was_a_demonstration_or_a_test(tmp_path):
    finding = specimen.finding(scenario="ward")
    for public in (True, False):
        page = render(described(finding, threats=(replace(CARD, data_public=public),)), tmp_path)
        assert (DEMONSTRATION.replace("'", "&#39;") in page) == public
        assert (TEST in page) != public


def test_originals_beside_reconstructions_blurred_where_private(tmp_path):
    finding = specimen.finding(scenario="ward")
    exhibit = replace(specimen.pictures_exhibit(tmp_path, "ward"), title="inverting_gradients")

    def beside(show, *exhibits):
        readings = reading(finding, exhibits=exhibits)
        return gallery(readings.every[0], readings, tmp_path, show=show)

    hidden, shown = beside(False, exhibit), beside(True, exhibit)
    assert len(hidden.pairs) == len(shown.pairs) == 4
    assert all(picture.blurred for pair in hidden.pairs for picture in pair)
    assert not any(picture.blurred for pair in shown.pairs for picture in pair)
    assert hidden.pairs[0].original.source != shown.pairs[0].original.source
    assert beside(True) is None
    assert beside(True, replace(exhibit, file="exhibits/none.npz")) is None


def test_value_interval_and_guess_stand_on_one_scale():
    drawn = bar(reading(specimen.finding(scenario="ward")).every[0])
    assert (drawn.value, drawn.span, drawn.guess) == ("0.62", "(0.56 to 0.68)", "0.21")
    assert drawn.track.count('class="null"') == drawn.track.count('class="whisker"') == 1

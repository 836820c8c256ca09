"""The two figures of every audit: marks stand at their numbers, and nothing hides anything."""

import dataclasses
import math
import re

import pytest
import report_specimen as specimen
from report_cards import CARDS, reading

from glasshouse.report.cards import Cards
from glasshouse.report.figures import panels, trade
from glasshouse.report.readings import landmarks


def drawn(findings, cards=None):
    return panels(reading(*findings, cards=cards).every, ())


def traded(findings, utility):
    read = reading(*findings, utility=tuple(utility))
    return trade(read.every, read.utility)


def places(markup, kind):
    return [float(v) for v in re.findall(rf'class="{kind}" x1="([\d.]+)%"', markup)]


def test_a_row_shows_value_interval_and_null_where_they_are():
    (panel,) = drawn([specimen.finding(gain=0.4, half=0.1, base=0.2)])
    track = panel.groups[0].rows[0].track
    assert places(track, "null") == [20]
    assert re.search(r'class="whisker" x1="50%" x2="70%"', track)
    assert re.search(r'class="at" x="60%"', track)


def test_an_interval_beyond_the_end_of_a_metric_stops_there():
    (panel,) = drawn([specimen.finding(gain=0.75, half=0.1, base=0.2)])
    assert 'x1="85%" x2="100%"' in panel.groups[0].rows[0].track


@pytest.mark.parametrize(
    ("verdict", "form"),
    [("leaks", "full"), ("no leak found", "hollow"), ("not shown", "M0 -5.5"), ("no power", "cross")],
)
def test_verdicts_differ_in_form_not_in_colour_alone(verdict, form):
    (panel,) = drawn([specimen.finding(verdict=verdict)])
    assert form in panel.groups[0].rows[0].track


def test_panels_by_metric_and_setting_without_defence_first():
    rows = [
        specimen.finding(defenses=("clip 4",)),
        specimen.finding(),
        specimen.finding(metric="mse", higher=False, base=0.1, gain=0.05),
        specimen.finding(axes={"federation.batch": 4}),
    ]
    result = drawn(rows)
    assert [(p.card.label, p.setting) for p in result] == [
        ("SSIM", ""),
        ("SSIM", "batch = 4"),
        ("squared error", ""),
    ]
    assert [g.defense for g in result[0].groups] == ["no defence", "clip 4"]
    assert result[2].direction == "further left is worse"


def test_what_all_rows_share_is_said_once():
    rows = [specimen.finding(), specimen.finding(attack="gradinversion", given=("labels",))]
    (panel,) = drawn(rows)
    assert "20 victims" in panel.common
    assert [r.notes for r in panel.groups[0].rows] == ["", "given the true labels"]


def test_utility_against_the_strongest_attack_with_power():
    strong = specimen.finding(scenario="s", attack="dlg", gain=0.7, verdict="no power", control=specimen.WEAK)
    rows = [
        specimen.finding(scenario="s", gain=0.2),
        specimen.finding(scenario="s", attack="ggl", gain=0.3),
        strong,
    ]
    figure = traded(rows, specimen.utilities("s")[:1])
    assert [(p.attack, p.gain) for p in figure.points] == [("GGL", "+0.30 [0.24, 0.36]")]
    assert traded([strong], specimen.utilities("s")) is None
    assert traded(rows, []) is None


def test_a_guarantee_stands_beside_its_setting():
    rows = [specimen.finding(scenario="s", defenses=d, gain=0.1) for d in specimen.DEFENSES]
    points = {p.name: p.epsilon for p in traded(rows, specimen.utilities("s")).points}
    assert points["Gaussian noise 0.1"] == "ε = 8.20, δ = 1e-05"
    assert points["no defence"] == ""


def test_discs_do_not_cover_each_other():
    """Five settings of equal utility and leakage: five discs that can be read, 600 pixels wide."""
    rows = [specimen.finding(scenario="s", defenses=d) for d in specimen.DEFENSES]
    same = [dataclasses.replace(u, value=0.5, low=0.4, high=0.6) for u in specimen.utilities("s")]
    plot = traded(rows, same).plot
    discs = re.findall(r'translate\(([\d.]+) 0\)"><circle class="disc" cx="([\d.]+)%" cy="([\d.]+)"', plot)
    spots = [(6 * float(x) + float(aside), float(y)) for aside, x, y in discs]
    assert len(spots) == 5
    assert all(math.dist(a, b) >= 17 for i, a in enumerate(spots) for b in spots[:i])


def test_the_legend_of_a_metric_shows_its_landmarks_and_no_other_address():
    marks = (
        (0.7, "recognisable", "data:image/png;base64,AAAA"),
        (0.1, "nothing", "https://example.invalid/x"),
    )
    card = dataclasses.replace(CARDS.metric("ssim"), landmarks=marks)
    cards = Cards(attacks=CARDS.attacks, metrics={**CARDS.metrics, "ssim": card})
    (panel,) = drawn([specimen.finding()], cards=cards)
    assert landmarks(panel.card) == (
        ("0.70", "recognisable", "data:image/png;base64,AAAA"),
        ("0.10", "nothing", ""),
    )


def test_charts_of_one_metric_share_their_axis():
    rows = [
        specimen.finding(metric="mse", higher=False, base=b, gain=b / 2, half=b / 4, axes={"batch": n})
        for n, b in ((1, 0.1), (8, 10.0))
    ]
    small, large = drawn(rows)
    assert small.axis == large.axis
    assert drawn(rows[:1])[0].axis != small.axis

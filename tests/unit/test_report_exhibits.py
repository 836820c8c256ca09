"""Exhibits and scales: what is drawn stands where the number says, and nothing is drawn from bad data."""

import dataclasses
import re

import numpy as np
import pytest
import report_specimen as specimen
from hypothesis import given
from hypothesis import strategies as st

from glasshouse.errors import BadValue
from glasshouse.report import svg
from glasshouse.report.exhibits import draw
from glasshouse.results.records import Exhibit

DRAWN = {e.kind: e for e in specimen.drawn_exhibits("s")}
FLOATS = st.floats(-1e9, 1e9, allow_nan=False).map(lambda v: round(v, 6))


def exhibit(kind, **data):
    return Exhibit(kind=kind, scenario="s", title="t", caption="", data=data)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_a_scale_holds_its_values_in_order(values):
    scale = svg.scale(values)
    places = [scale(v) for v in sorted(values)]
    assert places == sorted(places)
    assert scale.low <= min(values)
    assert scale.high >= max(values)
    assert scale(scale.low) == 0
    assert scale(scale.high) == 1
    assert 2 <= len(scale.ticks) <= 12
    labels = [svg.tick(t, scale) for t in scale.ticks]
    assert len(set(labels)) == len(labels)


@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=10))
def test_a_logarithmic_scale_holds_its_values(values):
    scale = svg.scale(values, log=True)
    assert scale.low <= min(values) * (1 + 1e-6)
    assert scale.high >= max(values) * (1 - 1e-6)
    assert len({svg.tick(t, scale) for t in scale.ticks}) == len(scale.ticks) >= 2


def test_equal_ratios_are_equal_distances_on_a_logarithmic_scale():
    scale = svg.scale([1.0, 1e4], log=True)
    assert scale(100) - scale(10) == pytest.approx(scale(1000) - scale(100))
    assert [svg.tick(v, scale) for v in (1e-5, 0.01, 1e6)] == ["10⁻⁵", "0.01", "10⁶"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_scale_refuses_what_is_no_number(bad):
    with pytest.raises(BadValue, match="finite"):
        svg.scale([0.0, bad])
    with pytest.raises(BadValue, match="finite"):
        svg.scale([0.0, 1.0])(bad)


def test_a_logarithm_of_nothing_is_refused():
    with pytest.raises(BadValue, match="positive values"):
        svg.scale([0.0, 1.0], log=True)


@pytest.mark.parametrize("kind", ["lines", "histogram", "boxes", "table"])
def test_every_kind_draws(kind):
    drawing = draw(DRAWN[kind])
    assert drawing.plot or drawing.strips or drawing.rows


def test_a_line_stands_where_its_numbers_say():
    """0 to 10 and 0 to 1 fill their axes: the corners of the picture are 0 and 1000."""
    line = exhibit(
        "lines", x_label="x", y_label="y", series=[{"name": "a", "x": [10, 0, 5], "y": [1, 0, 0.5]}]
    )
    assert 'points="0,1000 500,500 1000,0"' in draw(line).plot


def test_a_band_encloses_its_line():
    series = {"name": "a", "x": [0, 10], "y": [0.5, 0.5], "low": [0, 0], "high": [1, 1]}
    plot = draw(exhibit("lines", x_label="x", y_label="y", series=[series])).plot
    assert 'points="0,1000 1000,1000 1000,0 0,0"' in plot


def test_the_null_is_drawn_apart():
    lines = draw(DRAWN["lines"] if "null" in str(DRAWN["lines"].data) else specimen.drawn_exhibits("s")[0])
    assert [k.style for k in lines.keys] == ["s0", "s1", "s2", "null"]
    assert 'class="line null"' in lines.plot


def test_a_histogram_shows_shares_of_each_series():
    """All values of one series in one bin: its share is 1, whatever the other's size."""
    series = [{"name": "a", "values": [0.0] * 3}, {"name": "b", "values": [1.0] * 300}]
    drawing = draw(exhibit("histogram", x_label="x", series=series))
    heights = [min(float(p.split(",")[1]) for p in points.split()) for points in
               re.findall(r'class="area[^"]*" points="([^"]*)"', drawing.plot)]  # fmt: skip
    assert heights == [0.0, 0.0]
    assert [k.name for k in drawing.keys] == ["a (n = 3)", "b (n = 300)"]


def test_a_box_shows_median_and_outliers():
    values = [*range(1, 10), 100]
    (strip,) = draw(exhibit("boxes", y_label="y", series=[{"name": "a", "values": values}])).strips
    assert strip.text == "median 5.50, n = 10"
    assert strip.track.count("outlier") == 1
    assert 'class="outlier" cx="100%"' in strip.track


def test_a_table_keeps_what_is_missing_missing():
    table = draw(exhibit("table", columns=["a", "b"], rows=[["x", None], [1234, 0.00021]]))
    assert table.rows == (("x", "–"), ("1,234", "0.000210"))


@pytest.mark.parametrize(
    "broken",
    [
        exhibit("lines", x_label="x", y_label="y", series=[]),
        exhibit("lines", x_label="x", series=[{"name": "a", "x": [1], "y": [1]}]),
        exhibit("lines", x_label="x", y_label="y", series=[{"name": "a", "x": [1, 2], "y": [1]}]),
        exhibit("lines", x_label="x", y_label="y", series=[{"name": "a", "x": [1], "y": [float("nan")]}]),
        exhibit("histogram", x_label="x", series=[{"name": "a", "values": []}]),
        exhibit("boxes", y_label="y", series=[{"name": "a", "values": ["high"]}]),
        exhibit("table", columns=["a"], rows=[["x", "y"]]),
        exhibit("table", columns=["a"], rows=[[float("nan")]]),
        exhibit("table"),
    ],
)
def test_bad_data_are_refused(broken):
    with pytest.raises(BadValue):
        draw(broken)


def test_names_in_a_drawing_stay_text():
    evil = dataclasses.replace(
        DRAWN["lines"], data={**DRAWN["lines"].data, "x_label": "<b>", "y_label": '"><script>'}
    )
    assert "<script>" not in draw(evil).plot
    assert "&lt;script&gt;" in draw(evil).plot


def test_numbers_from_numpy_are_numbers():
    series = [{"name": "a", "values": np.arange(5.0)}]
    assert draw(exhibit("boxes", y_label="y", series=series)).strips


def test_exhibits_with_the_same_labels_share_their_axes():
    def lines(*y, label="SSIM"):
        return exhibit("lines", x_label="x", y_label=label, series=[{"name": "a", "x": [0, 1], "y": y}])

    low, high, other = lines(0.0, 0.1), lines(0.0, 10.0), lines(0.0, 99.0, label="PSNR")
    ticks = [
        re.findall(r'class="tick"[^>]*>([^<]*)<', draw(e, beside=[low, high, other]).plot)
        for e in (low, high)
    ]
    assert ticks[0] == ticks[1]
    assert ticks[0] == re.findall(r'class="tick"[^>]*>([^<]*)<', draw(high).plot)
    broken = dataclasses.replace(high, data={**high.data, "series": [{"name": "a"}]})
    assert draw(low, beside=[low, broken]) == draw(low)

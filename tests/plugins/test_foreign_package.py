"""A package with an attack, a new kind of claim, a metric and a figure has its page, the core untouched."""

import json
import shutil
from html import unescape
from pathlib import Path

import pytest
from packages import glasshouse, glasshouse_each, register

PACKAGE = Path(__file__).parent / "row_profiles.py"
ENTRIES = {
    "glasshouse.claims": {"row_profiles": "row_profiles:RowProfiles"},
    "glasshouse.attacks": {"row_reader": "row_profiles:RowReader"},
    "glasshouse.metrics": {"row_error": "row_profiles:RowError"},
    "glasshouse.figures": {"row_chart": "row_profiles:RowChart"},
}
SCENARIO = """
name = "foreign"
[data]
source = "digits"
auxiliary = 100
heldout = 60
examples = 1
[model]
name = "mlp"
[federation]
clients = 8
batch_size = 1
[[attacks]]
name = "row_reader"
shrink = 0.1
[audit]
metrics = ["row_error"]
utility = false
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the package installed and a scenario that uses it."""
    place = tmp_path_factory.mktemp("foreign")
    shutil.copy(PACKAGE, place)
    register(place, "row-profiles", "1.0", ENTRIES)
    (place / "scenario.toml").write_text(SCENARIO)
    return place


@pytest.fixture(scope="module")
def result(place):
    done = glasshouse(place, "audit", "scenario.toml", "--out", "out")
    assert done.returncode == 0, done.stderr
    return json.loads((place / "out" / "result.json").read_text())


@pytest.fixture(scope="module")
def report(place, result):
    return " ".join(unescape((place / "out" / "report.html").read_text()).split())


LISTED = [
    ("attacks", "row_reader", "brightness of the rows of an image"),
    ("metrics", "row_error", "mean absolute error of the claimed brightness"),
    ("claims", "row_profiles", "the rows of the private images are this bright"),
    ("figures", "row_chart", "claimed and true brightness of rows"),
]


def test_list_shows_it_and_check_knows_it(place):
    lists = [("list", group, "--json") for group, *_ in LISTED]
    *listed, checked = glasshouse_each(place, [*lists, ("check", "scenario.toml")])
    for (_, name, summary), done in zip(LISTED, listed, strict=True):
        rows = {row["name"]: row for row in json.loads(done.stdout)}
        assert rows[name]["summary"].startswith(summary)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "row_reader: 8 calls" in checked.stdout


WRONG = [
    ("shrink = 0.1", "shrink = 1.5", "attacks[0].shrink"),
    ("shrink = 0.1", "shrinc = 0.1", "did you mean shrink"),
    ('["row_error"]', '["row_eror"]', "did you mean row_error"),
]


def test_check_refuses_what_it_cannot_take(place):
    for number, (given, instead, _) in enumerate(WRONG):
        (place / f"wrong{number}.toml").write_text(SCENARIO.replace(given, instead))
    commands = [("check", f"wrong{number}.toml") for number in range(len(WRONG))]
    for (*_, words), done in zip(WRONG, glasshouse_each(place, commands), strict=True):
        assert done.returncode == 2, done.stdout
        assert words in " ".join(done.stderr.split())


def test_its_finding_has_a_verdict_with_n_interval_null_and_control(result):
    (finding,) = result["findings"]
    assert (finding["attack"], finding["metric"], finding["claim"]) == (
        "row_reader",
        "row_error",
        "row_profiles",
    )
    assert finding["verdict"] == "leaks"
    assert finding["primary"]
    assert finding["n"] == 8
    assert 0 <= finding["low"] <= finding["value"] <= finding["high"] < 0.1
    assert finding["baseline"] == "rows of the mean public image"
    assert 0 < finding["gain_low"] <= finding["gain"] <= finding["gain_high"]
    assert finding["control"]["passed"]
    assert finding["control"]["metric"] == "row_error"
    assert result["refusals"] == []


def test_its_words_stand_in_the_report(report):
    for words in (
        "Row reader",
        "row error",
        "read the brightness of every row with error 0.0",
        "Guessing without the update (rows of the mean public image) reaches",
        "How far the claimed rows are from those of the private image",
    ):
        assert words in report, words


def test_its_figure_is_drawn_in_the_report(result, report):
    (exhibit,) = [e for e in result["exhibits"] if e["title"].startswith("Brightness of the rows")]
    private, claimed = exhibit["data"]["series"]
    assert len(private["y"]) == len(claimed["y"]) == 8
    assert claimed["y"] == pytest.approx([0.9 * y + 0.05 for y in private["y"]], abs=1e-4)
    outcome = report[report.index("<h4>Brightness of the rows</h4>") :]
    assert "private images" in outcome[: outcome.index("</figure>")]
    assert "Mean over victims, top row first." in outcome[: outcome.index("</figure>")]

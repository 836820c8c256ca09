"""How often each word is wrong, by simulated audits; ``make slow`` adds those that this code lacks."""

import hashlib
from pathlib import Path

import pytest
from tests.verdicts import error_rates
from tests.verdicts.audits import METRICS, NULLS
from tests.verdicts.error_rates import INTERVALS, by, covered, leaks, rate, silent

import glasshouse
from glasshouse.cache import folder

AUDITS = 30
ALLOWED = 0.03
COVERED = 0.93
CODE = ("audit/scoring", "metrics", "modalities")


def code() -> str:
    """A digest of what the audits depend on: those of other code are simulated again."""
    source, here = Path(glasshouse.__file__).parent, Path(__file__).parent
    files = [path for part in CODE for path in sorted((source / part).rglob("*.py"))]
    files += [here / name for name in ("audits.py", "bench.py", "error_rates.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


@pytest.fixture(scope="module")
def rows():
    return error_rates.run(folder() / "error-rates" / f"{code()}.jsonl", AUDITS)


@pytest.mark.slow
def test_nothing_that_leaks_is_said_to_and_nobody_is_named(rows):
    for group, own in by(rows, "nothing leaks", 1).items():
        assert rate(own, leaks) <= ALLOWED, group
        assert rate(own, lambda row: row["named"] > 0) <= ALLOWED, group


@pytest.mark.slow
def test_what_comes_out_whole_is_hardly_ever_no_leak_found_and_the_right_ones_are_named(rows):
    for (share,), own in by(rows, "whole", 1).items():
        if float(share) > 0.1:  # up to the margin, "no leak found" may be said
            assert rate(own, silent) <= ALLOWED, share
        # Names are corrected by Benjamini and Hochberg, which keeps this share low.
        named, falsely = (sum(row[which] for row in own) for which in ("named", "false_names"))
        assert named > 0
        assert falsely <= ALLOWED * named, share
        most = [row["most"] for row in own if row["most"] is not None]
        assert sum(one >= float(share) - 0.005 for one in most) >= COVERED * len(most), share


@pytest.mark.slow
@pytest.mark.xfail(
    reason="somebody is falsely named in 0.07 of audits where a third comes out (docs/result.md)"
)
def test_few_audits_name_somebody_falsely(rows):
    for (share,), own in by(rows, "whole", 1).items():
        assert rate(own, lambda row: row["false_names"] > 0) <= ALLOWED, share


SHORT = {
    ("nothing leaks", "value"): "0.915: few victims do not show how badly a claim can fail",
    ("nothing leaks", "gain"): "0.915: likewise",
    ("nothing leaks", "twin"): "0.927: of 50 victims the same ten are everybody's twins",
}
"""Intervals that are known to cover less, and why (docs/result.md)."""


@pytest.mark.slow
@pytest.mark.parametrize("name", INTERVALS)
@pytest.mark.parametrize("kind", ["nothing leaks", "whole", "weak"])
def test_printed_intervals_hold_the_truth(kind, name, rows, request):
    if (kind, name) in SHORT:
        request.applymarker(pytest.mark.xfail(reason=SHORT[kind, name]))
    # Means differ between data, nulls and metrics, and hardly between numbers of victims.
    places = (1, 2, 4) if kind == "nothing leaks" else (1, 3, 4)
    found = [(share * count, count) for _, of, share, count in covered(rows, kind, *places) if of == name]
    assert found
    assert sum(share for share, _ in found) >= COVERED * sum(count for _, count in found)


def test_an_interrupted_simulation_goes_on(tmp_path):
    file = tmp_path / "rows.jsonl"

    def few(key):
        return key[:4] == ("whole", "0.33", "", 3)

    first = error_rates.run(file, 1, few)
    file.write_text(file.read_text() + '{"key": ["whole", "0.3')  # a line that was cut
    assert error_rates.read(file) == first
    assert set(error_rates.run(file, 2, few)) > set(first)


def test_every_null_is_scored_by_every_metric():
    met = {
        (null, metric) for kind, _, null, _, metric, _ in error_rates.keys(AUDITS) if kind == "nothing leaks"
    }
    assert met == {(null, metric) for null in NULLS for metric in METRICS}

"""The headline: primary findings about private data alone, after the correction for how many there are."""

import dataclasses
import re
from dataclasses import replace

import pytest
import report_specimen as specimen
from report_cards import described, reading

from glasshouse.report.verdicts.answer import overall
from glasshouse.results.outcome import exit_code


def answer(*findings, **rest):
    return overall(reading(*findings, **rest))


SILENT = {"gain": 0.0, "half": 0.02}


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ([], "Nothing was measured"),
        (["leaks", "no leak found"], "Private data came out"),
        (["no leak found", "no leak found"], "No leak was found"),
        (["no leak found", "no power"], "This audit cannot tell"),
        (["no leak found", "not shown"], "This audit cannot tell"),
        (["no power"], "This audit cannot tell"),
    ],
)
def test_overall(verdicts, text):
    result = answer(*(specimen.finding(verdict=v, scenario=f"s{i}") for i, v in enumerate(verdicts)))
    assert result.text == text
    if text != "Private data came out":
        assert re.search("no sign of safety|not every attack|may still leak", result.qualification)


def test_only_primary_findings_make_a_headline():
    result = answer(specimen.finding(primary=True, **SILENT), specimen.finding(metric="mse", higher=False))
    assert result.text == "No leak was found"


def test_what_luck_would_lift_is_no_headline():
    lucky = specimen.finding(primary=True, p=0.02, p_adjusted=0.4, verdict="not shown", by_luck=True)
    result = answer(lucky, specimen.finding(primary=True, attack="dlg", **SILENT))
    assert result.text == "This audit cannot tell"
    assert "1 of these lies above 0 but would be expected by luck." in result.count
    sure = specimen.finding(primary=True, p=0.0001, p_adjusted=0.002)
    assert answer(sure).text == "Private data came out"


def test_the_page_says_how_many_findings_luck_would_lift():
    findings = [specimen.finding(scenario=f"s{i}", primary=i < 10, **SILENT) for i in range(80)]
    count = answer(*findings).count
    assert "Of 80 findings in all, about 2.0 would lie above 0 by luck if nothing leaked." in count
    assert "rests on 10 primary findings" in count


def test_naming_a_defence_is_no_headline():
    named = specimen.finding(metric="defense_named", base=0.1, gain=0.9, primary=True)
    assert answer(named).text == "Nothing was measured"
    assert answer(named, specimen.finding(primary=True, **SILENT)).text == "No leak was found"


def test_one_victim_is_enough_for_a_headline():
    result = answer(specimen.finding(primary=True, gain=0.02, half=0.3, victims=specimen.VICTIMS))
    assert result.text == "Single victims' data came out"
    assert "Inverting Gradients got the examples of 2 of 3 victims" in result.qualification
    assert "1 measurement judged victims one by one; 1 named somebody" in result.qualification
    assert result.kind == "leaks"


def test_among_many_findings_one_victim_out_is_luck_and_two_of_three_are_not():
    """Of 75 findings without a leak, four name somebody: each cell is corrected for its own victims alone."""
    lucky = (
        replace(specimen.VICTIMS[1], p_adjusted=0.015, leaks=True),
        specimen.VICTIMS[0],
        specimen.VICTIMS[0],
    )
    quiet = (specimen.VICTIMS[0],) * 3

    def report(*victims):
        return answer(
            *(
                specimen.finding(primary=True, victims=v, scenario=f"s{i}", **SILENT)
                for i, v in enumerate(victims)
            )
        )

    assert report(lucky).text == "Single victims' data came out"
    assert report(lucky, *[quiet] * 74).text == "No leak was found"
    result = report(specimen.VICTIMS, lucky, *[quiet] * 73)
    assert result.text == "Single victims' data came out"
    assert "75 measurements judged victims one by one; 1 named somebody" in result.qualification


def test_victims_that_another_metric_of_the_same_claims_judged_count():
    """Identification is yes or no; PSNR tells how near each victim is."""
    shares = specimen.finding(metric="identification", base=0.01, gain=0.1, half=0.3, primary=True)
    pixels = specimen.finding(
        metric="psnr", unit="dB", base=11.2, gain=0.1, half=3.0, victims=specimen.VICTIMS
    )
    assert answer(shares, pixels).text == "Single victims' data came out"
    elsewhere = specimen.finding(metric="psnr", unit="dB", attack="dlg", victims=specimen.VICTIMS)
    assert answer(shares, elsewhere).text == "This audit cannot tell"


def test_victims_of_an_attack_without_power_are_no_headline():
    result = answer(specimen.finding(primary=True, verdict="no power", victims=specimen.VICTIMS))
    assert result.text == "This audit cannot tell"


def test_controls_are_called_passed_only_where_every_one_did():
    passed = "the controls of every attack passed"
    assert passed in answer(specimen.finding(**SILENT)).qualification
    both = answer(specimen.finding(**SILENT), specimen.finding(attack="dlg", control=None, **SILENT))
    assert passed not in both.qualification


def test_what_came_out_is_named_the_worst_kind_first():
    labels = specimen.finding(metric="label_accuracy", base=0.1, gain=0.8)
    text = answer(labels, specimen.finding(), specimen.finding(attack="ggl")).qualification
    assert "private examples (2) and private labels (1)" in text


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((), 0),
        (("holds",), 0),
        (("holds", "broken", "undecided"), 1),
        (("holds", "undecided"), 3),
        (("holds", "unmeasured"), 3),
    ],
)
def test_exit_code_of_a_policy(states, code):
    limits = tuple(specimen.limit(state, "x") for state in states)
    assert exit_code(described(specimen.finding(**SILENT), limits=limits)) == code


def test_exit_code_where_nothing_was_shown():
    assert exit_code(described()) == 3
    assert exit_code(described(specimen.finding(verdict="no power"))) == 3
    powerless = specimen.finding(verdict="no power", metric="mse")
    assert exit_code(described(specimen.finding(primary=True), powerless)) == 0


def test_one_attack_without_power_does_not_hide_what_another_showed():
    able = specimen.finding(primary=True)
    powerless = specimen.finding(primary=True, attack="dlg", verdict="no power")
    assert exit_code(described(able, powerless)) == 0
    assert exit_code(described(able, dataclasses.replace(powerless, scenario="another"))) == 3

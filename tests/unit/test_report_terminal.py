"""The summary after a run: plain without a terminal, and no name can steer one."""

import dataclasses
import io

import pytest
import report_specimen as specimen
from rich.console import Console

from glasshouse.report.terminal import brief, lines, summary
from glasshouse.results.records import Result


def test_plain_lines_say_what_the_page_says(tmp_path):
    text = lines(specimen.specimen(tmp_path), width=400)
    assert text[0] == "Private data came out"
    assert any("Inverting Gradients rebuilt images of which 75\u00a0% [66, 84]" in t for t in text)
    row = next(t for t in text if t.startswith("  prune 90 %"))
    for cell in ("Inverting Gradients", "identification +31 [22, 40]", "leaks", "57\u00a0% [54, 60]"):
        assert cell in row
    assert any(
        t.startswith("Policy: Broken. Of 4 limits, 1 is broken, 1 is undecided, 1 was not") for t in text
    )
    assert any("unmeasured: DLG, without a defence: no gain in LPIPS was measured" in t for t in text)
    assert any("What to do: Use Soteria 80 %" in t or "What to do: None of the" in t for t in text)
    assert not any("\x1b" in t for t in text)


def test_keeps_to_the_width(tmp_path):
    assert max(map(len, lines(specimen.specimen(tmp_path), width=60))) <= 60


def test_the_strongest_attack_is_one_with_power(tmp_path):
    """DLG's control failed: its number is not what a defence is judged by."""
    rows = [t for t in lines(specimen.specimen(tmp_path), width=300) if t.startswith("  Soteria 80 %")]
    assert len(rows) == 1
    assert "DLG" not in rows[0]


def test_many_settings_are_cut_and_counted():
    findings = tuple(specimen.finding(defenses=(f"noise {i}",)) for i in range(20))
    text = lines(Result(suite="x", findings=findings))
    assert any("and 8 settings more in the report" in t for t in text)


def test_colour_on_a_terminal(tmp_path):
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="standard", width=100).print(
        summary(specimen.specimen(tmp_path))
    )
    assert "\x1b[1;31mPrivate data came out" in stream.getvalue()


def test_names_cannot_steer_the_terminal():
    evil = "[bold]x[/bold]\x1b]0;owned\x07\x9b2J"
    finding = specimen.finding(scenario=evil, defenses=(evil,))
    text = "\n".join(lines(Result(suite=evil, findings=(finding, dataclasses.replace(finding, attack=evil)))))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert "[bold]x[/bold]" in text


def test_nothing_measured_is_said():
    assert "Nothing was measured" in lines(Result(suite="x"))[0]


@pytest.mark.parametrize("make", [specimen.specimen, specimen.large])
def test_a_suite_is_at_most_one_screen_of_80_by_24(make, tmp_path):
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(brief(make(tmp_path)))
    text = stream.getvalue().splitlines()
    assert len(text) <= 23  # and a line for the path of the report
    assert max(map(len, text)) <= 80
    assert text[0] == "Private data came out"
    assert any("were not" in t for t in text)
    assert "--full" in text[-1]


def test_a_single_scenario_is_told_whole():
    result = Result(suite="x", findings=(specimen.finding(),))
    stream, whole = io.StringIO(), io.StringIO()
    Console(file=stream, width=100, color_system=None).print(brief(result))
    Console(file=whole, width=100, color_system=None).print(summary(result))
    assert stream.getvalue() == whole.getvalue()

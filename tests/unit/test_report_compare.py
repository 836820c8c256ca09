"""Two results side by side: a change is a change beyond the intervals; the rest is said to be unclear."""

import dataclasses
import io
import json

import pytest
import report_specimen as specimen
from report_cards import described
from rich.console import Console

from glasshouse.cli.main import main
from glasshouse.report.compare import compare, comparison_html, comparison_summary, write_comparison


def result(*findings, **rest):
    return described(*findings, **rest)


def moved(gain, half=0.06, **rest):
    return compare(result(specimen.finding()), result(specimen.finding(gain=gain, half=half, **rest)))


def text(comparison):
    stream = io.StringIO()
    Console(file=stream, width=300, color_system=None).print(comparison_summary(comparison))
    return stream.getvalue()


def test_the_same_is_the_same():
    comparison = moved(0.41)
    assert (comparison.same, comparison.changed, comparison.unclear) == (1, (), ())
    assert comparison.answer == "No clear change"


@pytest.mark.parametrize(
    ("gain", "half", "said", "worse"),
    [
        (0.54, 0.06, "gain is higher", True),
        (0.28, 0.06, "gain is lower", False),
        (0.02, 0.05, "now: no leak found", False),
        (0.05, 0.20, "now: not shown", False),
    ],
)
def test_changes_beyond_the_intervals(gain, half, said, worse):
    comparison = moved(gain, half)
    (change,) = comparison.changed
    assert (change.said, change.worse) == (said, worse)
    assert comparison.worse == worse


def test_overlap_is_unclear_not_equal():
    comparison = moved(0.45)
    assert comparison.changed == ()
    assert [c.said for c in comparison.unclear] == ["within the intervals"]
    assert comparison.same == 0


def test_a_leak_that_was_not_there_comes_first():
    before = (specimen.finding(), specimen.finding(attack="ggl", gain=0.0, half=0.02))
    after = (specimen.finding(gain=0.2), specimen.finding(attack="ggl"))
    comparison = compare(result(*before), result(*after))
    assert [c.said for c in comparison.changed] == ["leaks now", "gain is lower"]
    assert comparison.answer == "More leaks than before"
    assert (
        comparison.qualification == "2 of 2 findings in both changed beyond their intervals; 1 for the worse."
    )


def test_losing_power_is_not_getting_better():
    comparison = moved(0.0, 0.02, verdict="no power", control=specimen.WEAK)
    assert [c.said for c in comparison.changed] == ["now: no power"]
    assert comparison.answer == "Something changed"


def test_what_is_only_in_one():
    a = result(specimen.finding(), refusals=(specimen.refused("a"),))
    b = result(specimen.finding(axes={"batch": 4}), refusals=(specimen.refused("b"),))
    comparison = compare(a, b, names=("old", "new"))
    assert comparison.answer == "Nothing in common"
    assert comparison.only_before == (
        "inversion-defences, no defence: Inverting Gradients, SSIM 0.62 [0.56, 0.68], leaks",
    )
    assert "batch = 4" in comparison.only_after[0]
    assert [len(r) for r in (comparison.refused_before, comparison.refused_after)] == [1, 1]
    assert "Only in old: inversion-defences, no defence: Inverting Gradients" in text(comparison)
    assert "Refused only in new: attack 'linear_input': needs an update" in text(comparison)


def test_utility_beside_it():
    (before,) = specimen.utilities("s")[:1]
    after = dataclasses.replace(before, value=0.5, low=0.47, high=0.53)
    comparison = compare(result(utility=(before,)), result(utility=(after,)))
    (change,) = comparison.utility
    assert (change.before, change.after, change.said) == ("61\u00a0% [58, 64]", "50\u00a0% [47, 53]", "lower")


def test_page_and_terminal_show_the_intervals(tmp_path):
    comparison = moved(0.54)
    for entry in (comparison_html(comparison), text(comparison)):
        assert "+0.41 [0.35, 0.47]" in entry
        assert "+0.54 [0.48, 0.60]" in entry
        assert "gain is higher" in entry
    assert write_comparison(comparison, tmp_path / "compare.html").read_text() == comparison_html(comparison)


def test_every_leak_of_the_later_run_has_its_card_and_what_it_was_before(tmp_path):
    quiet, leaking = specimen.finding(gain=0.0, half=0.02), specimen.finding(gain=0.5)
    exhibit = dataclasses.replace(
        specimen.pictures_exhibit(tmp_path, leaking.scenario), title="inverting_gradients"
    )
    later = result(leaking, specimen.finding(metric="label_accuracy"), exhibits=(exhibit,))
    comparison = compare(result(quiet), later, names=("last-week", "today"), run=tmp_path)
    assert [card.leak.severity for card in comparison.cards] == [4, 2]
    assert comparison.since[0].startswith("In last-week: no leak found, gain 0.00 ")
    assert comparison.since[0].endswith("; leaks now")
    assert comparison.since[1] == "Not measured in last-week"
    page = comparison_html(comparison)
    for words in ("Severity 4 of 4: whole examples", "Above: original", *comparison.since):
        assert words in page
    assert compare(result(quiet), later).cards[0].gallery is None


def test_hostile_names_stay_text():
    evil = specimen.finding(scenario="<script>alert(1)</script>")
    page = comparison_html(compare(result(evil), result(dataclasses.replace(evil, gain=0.9, gain_low=0.8))))
    assert page.count("<script") == 1
    assert "&lt;script&gt;" in page


def codes(before, after):
    return compare(result(*before), result(*after)).exit_code


def test_exit_code_for_worse_than_last_week():
    leaks, silent = specimen.finding(primary=True), specimen.finding(primary=True, gain=0.0, half=0.02)
    assert codes((leaks,), (leaks,)) == 0
    assert codes((leaks,), (silent,)) == 0
    assert codes((silent,), (leaks,)) == 1
    assert codes((leaks,), (specimen.finding(primary=True, gain=0.6),)) == 1


def test_what_was_not_chosen_to_decide_fails_nothing():
    steady = specimen.finding(primary=True)
    before = specimen.finding(metric="mse", higher=False, gain=0.0, half=0.001, base=0.1)
    after = specimen.finding(metric="mse", higher=False, gain=0.05, half=0.001, base=0.1)
    comparison = compare(result(steady, before), result(steady, after))
    assert [c.said for c in comparison.changed] == ["leaks now"]
    assert (comparison.exit_code, comparison.answer) == (0, "Something changed")


def test_what_can_no_longer_be_shown_has_its_own_code():
    finding = specimen.finding(primary=True)
    powerless = specimen.finding(primary=True, verdict="no power", control=specimen.WEAK)
    assert codes((finding,), (powerless,)) == 3
    assert codes((powerless,), (powerless,)) == 0
    assert codes((finding,), (specimen.finding(primary=True, attack="ggl"),)) == 3
    assert codes((finding, specimen.finding(attack="ggl", primary=True)), (finding,)) == 3
    assert codes((finding,), (finding, specimen.finding(attack="ggl", primary=True))) == 0


def test_the_command_writes_page_and_json_and_exits_with_the_code(tmp_path, capsys):
    before, after = (
        specimen.write(result(specimen.finding(gain=g, half=0.02)), tmp_path / name)
        for name, g in (("last-week", 0.0), ("today", 0.5))
    )
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(before), str(after), "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    assert "More leaks than before" in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert (written["exit_code"], written["before"], written["after"]) == (1, "last-week", "today")
    assert written["changed"][0]["after"]["verdict"] == "leaks"
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "Inverting Gradients: leaks now" in page
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(after), str(before), "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["worse"] is False
    assert (before / "compare.html").exists()

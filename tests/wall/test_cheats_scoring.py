"""Cheats that only the judge can notice: too many candidates, an image for everybody, silence."""

import pytest
from tests.wall.cheated import CHEATS, PLUGINS, finding, refusals, run_audit
from tests.worlds import installed


def test_hundreds_of_candidates_count_as_one(cheated):
    """One example is behind the update: of 120 candidates one counts, and it is a guess."""
    result, _ = cheated
    assert finding(result, "hundreds_of_candidates").verdict != "leaks"
    assert finding(result, "hundreds_of_candidates").gain < 1.0
    assert finding(result, "hundreds_of_candidates", "identification").verdict != "leaks"


def test_more_candidates_than_any_method_reads_off_an_update_are_refused(tmp_path):
    with installed(tmp_path, PLUGINS, "cheating_attacks", CHEATS):
        attacks = [{"name": "linear_input"}, {"name": "hundreds_of_candidates", "copies": 40}]
        result = run_audit(tmp_path / "run", attacks)
    assert refusals(result, "hundreds_of_candidates")[0] == "at most 4,096 images for 1 private examples"


def test_a_fixed_image_is_no_leak_as_it_is_as_good_for_every_victim(cheated):
    one = finding(cheated[0], "fixed_best_image")
    assert one.verdict != "leaks"
    assert one.exchange is not None
    assert one.exchange.gain == pytest.approx(0, abs=0.5)


def test_victims_of_whom_nothing_was_claimed_count_as_misses(cheated):
    one = finding(cheated[0], "two_of_eight", "identification")
    assert one.claimed == 2
    assert one.n == 8
    assert one.value == pytest.approx(2 / 8)


def test_an_attack_that_never_says_anything_is_not_left_out(cheated):
    """No kind of claim says what it is silent about, so there is no number; the report says that."""
    result, _ = cheated
    assert finding(result, "silence") is None
    assert refusals(result, "silence") == ["a claim about at least one victim"]

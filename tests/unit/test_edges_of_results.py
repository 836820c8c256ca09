"""Edges of what a result says of itself: searches, canaries, shares, exit codes."""

from dataclasses import replace

import pytest
import report_specimen as specimen

from glasshouse.audit.scoring.finding import share_of
from glasshouse.audit.scoring.judging.control import raised_effort
from glasshouse.audit.scoring.judging.power import _found
from glasshouse.results.judgement import anybody_p_value, these_weights
from glasshouse.results.outcome import exit_code
from glasshouse.results.records import Exchange, Result, Victim
from glasshouse.results.strength import EmpiricalEpsilon, Proofs, Search, UpperBound
from glasshouse.scenario.table import Plugin

SHOWN = EmpiricalEpsilon(
    scenario="s", cell="c", unit="client", claimed=4.0, proved=4.0, low=1.0, gaussian=None, delta=1e-5,
    canaries=100, guesses=10, correct=9, seconds=1.0,
)  # fmt: skip
SEARCH = Search(name="v", loss=1.0, truth=1.0, noise=0.0)
PROOFS = Proofs(scenario="s", cell="c", attack="a", claim="rows", stated=9, wrong=0)
BROKEN = UpperBound(value=0.4, chance=0.1, unit="update", epsilon=1.0, delta=1e-5, steps=1, contradicted=True)
HELD = Result(suite="s", findings=(specimen.finding(gain=0.3, half=0.1),))


def victim(name: str, *, out: bool, draw: str = "", unit: str = "", leaks: bool = False) -> Victim:
    return Victim(
        name=name, value=1.0, rank=0, compared=99, p=0.01, p_adjusted=0.02, leaks=leaks, out=out, draw=draw,
        unit=unit,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "projected", "finished"),
    [(1.0, None, True), (1.01, None, False), (1.01, 1.2, True), (1.3, 1.2, False)],
)
def test_a_search_is_finished_at_the_truth_or_at_its_nearest_image(loss, projected, finished):
    assert replace(SEARCH, loss=loss, projected=projected).finished is finished
    assert not replace(SEARCH, loss=loss, projected=projected, reproduced=False).finished
    assert not replace(SEARCH, loss=loss, projected=projected, reason="it raised").finished


@pytest.mark.parametrize(
    ("curve", "falling"),
    [
        (((0, 9.0), (1, 8.0), (4, 5.0), (8, 5.0)), False),  # it fell in the first half alone
        (((0, 9.0), (4, 5.0), (6, 4.0), (8, 4.0)), True),
        (((0, 9.0), (4, 5.0), (5, 4.96), (8, 4.96)), False),  # by less than 1 %
        (((5, 9.0), (8, 1.0)), False),  # nothing is known of the first half
        (((8, 1.0),), False),
        ((), False),
    ],
)
def test_a_search_falls_if_its_last_half_lowers_the_loss(curve, falling):
    assert replace(SEARCH, curve=curve).falling is falling


def test_a_fall_within_the_noise_is_none():
    curve = ((0, 9.0), (4, 5.0), (8, 4.0))
    assert replace(SEARCH, curve=curve, noise=0.9).falling
    assert not replace(SEARCH, curve=curve, noise=1.0).falling


def test_the_tolerance_of_a_loss_ends_before_its_decoys():
    assert replace(SEARCH, noise=9.0, decoys=(1.0, 1.0, 1.0)).tolerance == 0.0
    assert 0 < replace(SEARCH, noise=9.0, decoys=(2.0, 3.0, 4.0)).tolerance < 1.0
    assert replace(SEARCH, decoys=(1.0, 0.5, 2.0)).rank == 2


@pytest.mark.parametrize(("low", "gaussian", "shown"), [(1.0, None, 1.0), (1.0, 2.0, 2.0), (1.0, 0.5, 1.0)])
def test_canaries_show_the_larger_of_two_lower_bounds(low, gaussian, shown):
    assert replace(SHOWN, low=low, gaussian=gaussian).shown == shown


@pytest.mark.parametrize(
    ("low", "proved", "contradicted"),
    [(4.0, None, False), (4.1, None, True), (3.0, 2.9, True), (3.0, 3.0, False)],
)
def test_canaries_contradict_the_smaller_of_claim_and_proof(low, proved, contradicted):
    assert replace(SHOWN, low=low, proved=proved).contradicted is contradicted


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilons": (SHOWN, replace(SHOWN, low=9.0))},
        {"proofs": (PROOFS, replace(PROOFS, wrong=1))},
        {"findings": (replace(HELD.findings[0], bound=BROKEN),)},
    ],
)
def test_one_broken_promise_of_any_kind_is_exit_code_1(changes):
    assert exit_code(HELD) == 0
    assert exit_code(replace(HELD, epsilons=(SHOWN,), proofs=(PROOFS,))) == 0
    assert exit_code(replace(HELD, **changes)) == 1


def test_nothing_found_and_a_scenario_without_power_are_not_shown():
    weak = replace(HELD.findings[0], verdict="no power", primary=True)
    assert exit_code(Result(suite="s")) == 3
    assert exit_code(replace(HELD, findings=(weak,))) == 3
    assert exit_code(replace(HELD, findings=(weak, replace(weak, verdict="leaks")))) == 0
    assert exit_code(replace(HELD, findings=(weak, replace(weak, verdict="leaks", scenario="other")))) == 3


def test_the_margin_says_how_many_victims_are_needed():
    nobody = [victim(str(i), out=False) for i in range(8)]
    wide, narrow = share_of(nobody, 0.4), share_of(nobody, 0.05)
    assert (wide.margin, narrow.margin) == (0.4, 0.05)
    assert wide.needed == 8 < narrow.needed
    assert wide.most == narrow.most == pytest.approx(1 - 0.025 ** (1 / 8))
    assert share_of([], 0.1) is None


def test_victims_of_one_unit_count_once_and_come_out_together():
    pairs = [victim(str(i), out=i == 0, unit=str(i // 2), leaks=i == 0) for i in range(8)]
    share = share_of(pairs, 0.1)
    assert (share.n, share.units, share.out) == (8, 4, 1)
    one_of_four = share_of([victim(str(i), out=i == 0) for i in range(4)], 0.1)
    assert share.most == one_of_four.most


def test_over_four_draws_of_weights_the_wider_bound_counts():
    """All that came out came out in one of four federations."""
    lucky = [victim(f"{d}/{i}", out=d == 0, draw=str(d)) for d in range(4) for i in range(10)]
    spread = [replace(one, draw="0") for one in lucky]
    assert share_of(lucky, 0.1).most > share_of(spread, 0.1).most
    assert share_of(lucky, 0.1).units == 4
    assert share_of(spread, 0.1).units == 40


BEATEN = Exchange(value=0.1, gain=0.2, gain_low=-0.1, gain_high=0.4, n=20, beaten=True)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"gain": 0.3, "half": 0.1}, 20),
        ({"gain": 0.3, "half": 0.1, "exchange": BEATEN}, 20),
        ({"gain": 0.3, "half": 0.1, "exchange": replace(BEATEN, beaten=False)}, 0),
        ({"gain": 0.3, "half": 0.4}, 0),
        ({"gain": 0.3, "half": 0.4, "exchange": BEATEN}, 0),
    ],
)
def test_planted_leaks_are_found_over_the_null_and_the_exchange(changes, found):
    """Where single victims cannot be judged, all planted leaks are found together or none is."""
    one = replace(specimen.finding(**changes), n=20, victims=(), ladder=())
    assert _found(one) == found


def test_of_single_victims_those_out_were_found():
    both = (victim("a", out=True), victim("b", out=False))
    assert _found(replace(specimen.finding(gain=0.3, half=0.1), victims=both)) == 1


@pytest.mark.parametrize(
    ("audited", "eased", "raised"),
    [
        ({}, {}, False),
        ({"iterations": 10}, {"iterations": 10}, False),
        ({"iterations": 10}, {"iterations": 9}, False),
        ({"iterations": 10}, {"iterations": 11}, True),
        ({"restarts": 1}, {"restarts": 2}, True),
    ],
)
def test_an_easy_setting_may_lower_the_effort_and_not_raise_it(audited, eased, raised):
    ours, easy = (
        Plugin.model_validate({"name": "inverting_gradients", "search": one}) for one in (audited, eased)
    )
    assert bool(raised_effort(ours, easy)) is raised


def test_certain_and_impossible_victims_have_p_values_at_the_ends():
    sure = replace(victim("a", out=False), p=1.0)
    assert anybody_p_value([sure, sure]) == 1.0
    assert anybody_p_value([replace(sure, p=0.01)]) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("draws", "of_clients", "words"),
    [
        (0, False, ""),
        (1, False, "these weights"),
        (3, False, "these 3 draws of weights"),
        (4, False, ""),
        (5, True, "these 5 draws of weights"),
        (6, True, ""),
    ],
)
def test_few_draws_of_weights_are_said(draws, of_clients, words):
    assert these_weights(draws, of_clients=of_clients) == words

"""The verdict is decided in one place: what each word needs, and what is missing for the better one."""

from dataclasses import replace

import pytest
from report_cards import METRICS
from test_audit import control, finding

from glasshouse.audit.scoring.judging.policy import state_of_gain
from glasshouse.audit.scoring.judging.power import powers_of
from glasshouse.audit.scoring.judging.verdict import (
    BEYOND_SMALL,
    NOT_PLANTED,
    UNBOUNDED,
    Evidence,
    decide,
    settle,
    small_gain,
)
from glasshouse.audit.scoring.tasks import power_key
from glasshouse.metrics.reconstruction import Identification, Mse, Psnr
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.results.records import Exchange, Power, Rung, Share, Victim
from glasshouse.results.strength import Certificate, Search
from glasshouse.scenario.table import Plugin

CARDS = {card.name: card for card in METRICS}


def interval(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=40, level=0.95)


def rung(knows: str, *, beaten: bool) -> Rung:
    return Rung(
        knows=knows, name=f"null of {knows}", value=0.0, gain=1.0, gain_low=0.5 if beaten else -0.5,
        gain_high=2.0, p=0.01 if beaten else 0.5, beaten=beaten,
    )  # fmt: skip


NOTHING_OUT = Share(out=0, n=40, most=0.088, margin=0.1, needed=36)
FOUND = Power(planted=10, found=9)
FINISHED = Certificate(searches=40, unfinished=0, told_p=0.01, drawn=40, falling=0)
QUIET = Evidence(
    metric=Identification(),
    gain=interval(-0.2, 0.05),
    null=0.1,
    control=control(True),
    certificate=FINISHED,
    share=NOTHING_OUT,
    power=FOUND,
)
LEAKS = replace(QUIET, gain=interval(0.2, 0.5))


def test_no_leak_found_is_earned_by_all_of_its_parts():
    assert decide(QUIET).verdict == "no leak found"
    assert decide(QUIET).reason == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"control": None}, "no control"),
        ({"gain": interval(-0.2, 0.5)}, "negligible"),
        ({"certificate": replace(FINISHED, unfinished=3)}, "3 of 40 searches stopped above"),
        ({"certificate": replace(FINISHED, falling=2)}, "lowered the loss of 2 of 40"),
        (
            {"share": None, "why_no_share": "too few held-out", "ladder": (rung("label", beaten=False),)},
            "too few held-out",
        ),
        ({"share": replace(NOTHING_OUT, n=8, most=0.37)}, "up to 37 %"),
        ({"share": replace(NOTHING_OUT, out=1)}, "1 of 40 victims came out"),
        ({"power": None}, "no leak was planted"),
        ({"power": Power(planted=10, found=5)}, "only 5 of 10"),
        ({"gain": interval(0.2, 0.5), "exchange": interval(-0.1, 0.5)}, "negligible"),
    ],
)
def test_whatever_is_missing_makes_it_not_shown_and_is_named(changes, reason):
    decision = decide(replace(QUIET, **changes))
    assert decision.verdict == "not shown"
    assert reason in decision.reason
    assert decision.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"share": replace(NOTHING_OUT, most=0.1)},
        {"gain": interval(-0.2, 0.1)},
        {"power": Power(planted=10, found=8)},
        {"exchange": interval(-0.2, 0.1)},
        {"mixed_up_p": 0.026},
    ],
)
def test_what_is_just_enough_is_enough_for_no_leak_found(changes):
    assert decide(replace(QUIET, **changes)).verdict == "no leak found"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mixed_up_p": 0.025}, "other victims than their own"),
        ({"other_form": "inverted"}, "in another form: inverted"),
        ({"holds_copy": True}, "hold a private example"),
        ({"share": None, "exchange": interval(-0.5, -0.1)}, "worse than others"),
    ],
)
def test_what_claims_hold_and_no_score_says_is_said(changes, reason):
    assert reason in decide(replace(QUIET, **changes)).reason


def test_claims_that_are_no_worse_for_their_own_victims_are_not_turned_round():
    at_zero = decide(replace(QUIET, share=None, exchange=interval(-0.5, 0.0)))
    assert not any("worse than others" in reason for reason in at_zero.lacks)


def test_a_leak_needs_the_null_the_exchange_and_the_label():
    assert decide(LEAKS).verdict == "leaks"
    assert decide(replace(LEAKS, exchange=interval(0.1, 0.5))).verdict == "leaks"
    assert decide(replace(LEAKS, exchange=interval(-0.1, 0.05))).verdict == "no leak found"
    assert decide(replace(LEAKS, control=None, certificate=None, power=None)).verdict == "leaks"
    whole = [rung(knows, beaten=True) for knows in ("nothing", "domain", "label")]
    assert decide(replace(LEAKS, ladder=[*whole, rung("twin", beaten=False)])).verdict == "leaks"
    short = decide(replace(LEAKS, ladder=[*whole[:2], rung("label", beaten=False)]))
    assert short.verdict == "label leak"
    assert "null of label" in short.reason


def test_victims_that_are_near_duplicates_leave_open_whose_a_claim_is():
    alike = replace(LEAKS, exchange=interval(-0.1, 0.2), alike=0.6)
    assert decide(alike).verdict == "too alike"
    assert decide(replace(alike, alike=0.5)).verdict == "too alike"
    assert decide(replace(alike, alike=0.4)).verdict == "not shown"
    assert decide(replace(alike, gain=interval(-0.2, 0.05))).verdict == "no leak found"


def test_a_failed_control_and_a_contradiction_come_first():
    assert decide(replace(LEAKS, control=control(False))).verdict == "no power"
    assert decide(replace(LEAKS, control=control(False), contradicted=True)).verdict == "contradiction"


@pytest.mark.parametrize(("null", "verdict"), [(1.0, "no leak found"), (0.01, "not shown")])
def test_what_is_small_in_an_unbounded_metric_depends_on_the_null(null, verdict):
    assert decide(replace(QUIET, metric=Mse(), gain=interval(-0.02, 0.02), null=null)).verdict == verdict
    assert small_gain(Psnr(), null) == 1.0


def test_luck_and_the_pixels_have_the_last_word_over_a_run():
    lucky = finding(metric="identification", primary=True, p=0.03, p_adjusted=0.06)
    (settled,) = settle([lucky], CARDS)
    assert (settled.verdict, settled.by_luck) == ("not shown", True)
    likeness, pixels = finding(metric="ssim"), finding(metric="psnr", gain=-1.0, verdict="not shown")
    first, second = settle([likeness, pixels], CARDS)
    assert (first.verdict, first.denied_by) == ("not shown", "psnr")
    assert second is pixels
    assert settle([likeness, finding(metric="psnr")], CARDS)[0].verdict == "leaks"


def test_no_metric_is_silent_about_claims_that_leak_by_another():
    """Rows of which every number came out: no row was read exactly, and cells leak."""
    cells, exact = finding(metric="psnr"), finding(metric="identification", verdict="no leak found")
    first, second = settle([cells, exact], CARDS)
    assert (first.verdict, second.verdict) == ("leaks", "not shown")
    assert second.reason == f"by {CARDS['psnr'].label} the same claims leak"
    assert second.lacks == (second.reason,)
    open_ended = replace(exact, verdict="not shown", reason=BEYOND_SMALL, lacks=(BEYOND_SMALL,))
    assert state_of_gain(open_ended, 2.0)[0] == "holds"
    assert state_of_gain(settle([cells, open_ended], CARDS)[1], 2.0)[0] == "undecided"
    # Of other claims, or about something else than the examples, nothing follows.
    for other in (replace(cells, attack="another"), replace(cells, claim="labels")):
        assert settle([other, exact], CARDS)[1] is exact
    lucky = replace(cells, p_adjusted=0.2)
    assert settle([lucky, exact], CARDS)[1] is exact


def test_without_a_bound_on_the_share_nothing_is_a_silence():
    """Also where no ladder stands beside the number: whose pictures they are, labels, clients."""
    decision = decide(replace(QUIET, share=None, why_no_share="no single examples"))
    assert decision.verdict == "not shown"
    assert decision.reason == f"{UNBOUNDED} (no single examples)"


def test_all_that_is_missing_is_listed_whatever_the_verdict():
    bare = replace(LEAKS, power=None, share=None)
    assert decide(bare).verdict == "leaks"
    assert decide(bare).lacks[-2:] == (NOT_PLANTED, f"{UNBOUNDED} (no single examples)")
    assert decide(QUIET).lacks == ()


def test_canaries_count_for_the_kind_of_claim_that_found_them_alone():
    attack = Plugin(name="idlg")
    out = [
        Victim(name=f"{i}", value=1.0, rank=0, compared=99, p=0.01, p_adjusted=0.01, leaks=i < 2, out=i < 6)
        for i in range(8)
    ]
    pictures = replace(finding(attack="idlg", primary=True), claim="reconstruction", victims=tuple(out))
    labels = replace(finding(attack="idlg", primary=True), claim="labels", n=8, gain_low=0.1)
    other = replace(finding(attack="idlg", primary=False), claim="sequences")
    powers = powers_of([attack], [pictures, labels, other], how="canaries")
    assert set(powers) == {power_key(attack, "reconstruction"), power_key(attack, "labels")}
    assert (powers[power_key(attack, "reconstruction")].found, out[0].leaks) == (6, True)
    assert powers[power_key(attack, "labels")].found == 8
    for lost in (
        {"gain_low": -0.1},
        {"gain_low": 0.0},
        {"exchange": Exchange(value=0.5, gain=0.1, gain_low=0.0, gain_high=0.2, n=8)},
        {"gain_low": 0.1, "ladder": (rung("label", beaten=True),)},
    ):
        (power,) = powers_of([attack], [replace(labels, **lost)], how="").values()
        assert (power.planted, power.found) == (8, 0)
    others = Exchange(value=0.5, gain=0.1, gain_low=0.05, gain_high=0.2, n=8)
    (power,) = powers_of([attack], [other, replace(labels, exchange=others)], how="canaries").values()
    assert (power.planted, power.found, power.how, power.told_p) == (8, 8, "canaries", 1.0)


def test_the_canaries_losses_say_how_well_they_tell_examples():
    search = Search(name="a", loss=1.0, truth=1.0, noise=0.0, decoys=(2.0,) * 19)
    one = replace(finding(attack="idlg", primary=True), claim="reconstruction", searches=(search,))
    (power,) = powers_of([Plugin(name="idlg")], [one], how="canaries").values()
    assert power.told_p == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"control": None}, "no control shows that this attack works where it must", "running its control"),
        ({"share": replace(NOTHING_OUT, out=1)}, "the mean shows no leak, but 1 of 40 victims came out",
         "a look at the single victims"),
        ({"gain": interval(-0.2, 0.5)}, "the interval of the gain reaches beyond what is negligible",
         "more victims or seeds"),
        ({"certificate": replace(FINISHED, unfinished=3)},
         "3 of 40 searches stopped above the loss of the truth",
         "more iterations or restarts, or a loss that tells private examples from others"),
        ({"share": None, "why_no_share": "x", "ladder": (rung("label", beaten=False),)},
         "single victims could not be judged (x)", "more held-out examples"),
        ({"share": replace(NOTHING_OUT, n=8, most=0.37)},
         "up to 37 % of such victims could come out, 10 % are tolerated",
         "36 independent victims of whom none comes out"),
        ({"share": replace(NOTHING_OUT, most=0.37, units=8)},
         ("up to 37 % of such victims could come out, 10 % are tolerated "
         "(40 victims, of whom 8 are independent)"),
         "36 independent victims of whom none comes out"),
        ({"power": None}, "no leak was planted here to show that it would be found",
         "planting known leaks in this cell"),
        ({"power": Power(planted=10, found=5)}, "only 5 of 10 planted leaks were found",
         "a stronger attack, or more effort"),
        ({"share": None}, "how many would come out is not bounded (no single examples)",
         "a metric that compares single examples"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_to_the_word_with_what_would_show_it(changes, reason, remedy):
    decision = decide(replace(QUIET, **changes))
    assert (decision.reason, decision.remedy) == (reason, remedy)


def test_named_victims_are_a_leak_although_the_label_explains_the_mean():
    labelled = replace(LEAKS, ladder=[rung("label", beaten=False)])
    assert decide(replace(labelled, share=replace(NOTHING_OUT, out=1))).verdict == "leaks"
    assert decide(replace(labelled, share=None)).verdict == "label leak"
    decision = decide(labelled)
    assert decision.verdict == "label leak"
    assert decision.reason == "null of label does as well: the label came out, and no example is shown to"
    assert decision.remedy == "more victims, or an attack that rebuilds more than the class"


def test_a_loss_that_tells_canaries_need_not_tell_behind_a_defence():
    blind = replace(QUIET, certificate=replace(FINISHED, told_p=0.5))
    assert decide(replace(blind, power=replace(FOUND, told_p=0.01))).verdict == "no leak found"
    assert decide(replace(blind, power=replace(FOUND, told_p=0.5))).verdict == "not shown"


@pytest.mark.parametrize("verdict", ["leaks", "label leak", "too alike"])
@pytest.mark.parametrize(("p", "luck"), [(0.05, True), (0.049, False), (None, False)])
def test_every_word_of_a_leak_yields_to_luck(verdict, p, luck):
    (one,) = settle([finding(verdict=verdict, primary=True, p_adjusted=p)], CARDS)
    assert (one.verdict == "not shown") == luck
    words = ("among this many findings it would be expected by luck", "more victims or seeds")
    assert ((one.reason, one.remedy) == words) == luck


@pytest.mark.parametrize(
    ("beside", "denied"),
    [
        ({}, True),
        ({"gain": 0.0}, False),
        ({"gain": 0.5}, False),
        ({"cell": "other"}, False),
        ({"attack": "other"}, False),
        ({"scenario": "other"}, False),
        ({"metric": "identification"}, False),  # a rate is no pixel metric
    ],
)
def test_only_the_pixels_of_the_same_images_deny_a_likeness(beside, denied):
    other = finding(**{"metric": "psnr", "gain": -1.0, "verdict": "not shown", **beside})
    first = settle([finding(metric="ssim"), other], CARDS)[0]
    assert (first.verdict == "not shown") == denied
    if denied:
        assert first.reason == "by PSNR the same images are further from the original than a guess"
        assert first.remedy == "more effort, until the pixels agree"


@pytest.mark.parametrize("metric", ["identification", "auc"])
def test_rates_and_what_is_no_picture_are_never_denied(metric):
    one = finding(metric=metric)
    assert settle([one, finding(metric="psnr", gain=-1.0, verdict="not shown")], CARDS)[0] is one


def test_no_power_says_why():
    failed = decide(replace(QUIET, control=control(False)))
    assert failed.reason
    assert failed.remedy == "repair the attack, or give it the effort that it needs in the easy setting"
    silent = decide(replace(QUIET, claimed=False))
    assert (silent.verdict, silent.reason) == ("no power", "it claimed nothing about any victim")
    assert silent.remedy == "an attack that claims something, or settings under which this one does"


def test_too_alike_needs_too_few_to_tell_apart():
    alike = replace(LEAKS, exchange=interval(-0.1, 0.2), alike=0.5)
    for groups, verdict in ((None, "too alike"), (3, "too alike"), (4, "not shown")):
        assert decide(replace(alike, groups=groups)).verdict == verdict
    decision = decide(alike)
    assert decision.reason == "other victims are near-duplicates, so a claim fits several of them"
    assert decision.remedy == "audit with victims that differ, or count near-duplicates as one"

"""The verdict is decided in one place: what each word needs, and what is missing for the better one."""

from dataclasses import replace

import pytest
from report_cards import METRICS
from test_audit import control, finding

from glasshouse.audit.scoring.judging.power import powers_of
from glasshouse.audit.scoring.judging.verdict import (
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
from glasshouse.results.records import Power, Rung, Share, Victim
from glasshouse.results.strength import Certificate
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
    for lost in ({"gain_low": -0.1}, {"gain_low": 0.1, "ladder": (rung("label", beaten=True),)}):
        (power,) = powers_of([attack], [replace(labels, **lost)], how="").values()
        assert (power.planted, power.found) == (8, 0)

"""The sentences: the right news first, never without uncertainty, and no power is never safety."""

import dataclasses
import re

import pytest
import report_specimen as specimen
from report_cards import reading

from glasshouse.report.readings import worst
from glasshouse.report.verdicts.sentences import say
from glasshouse.report.verdicts.stories import stories
from glasshouse.results.records import Draw, Exchange, Power, Reference, Rung, Share
from glasshouse.results.strength import Search, UpperBound


def told(*findings, **rest):
    return [s.text for story in stories(reading(*findings, **rest)) for s in story.sentences]


def said(finding, *others):
    first, *_ = say(reading(finding, *others)).values()
    return first.whole


def test_a_leak():
    assert said(specimen.finding()) == (
        "Without a defence, Inverting Gradients rebuilt private images with SSIM 0.62 [0.56, 0.68] "
        "(likeness; 1 is a perfect copy). Guessing without the update (prior mean) reaches 0.21; "
        "the gain is +0.41 [0.35, 0.47] (20 victims; 4 restarts, lowest loss of the attack)."
    )


def test_a_leak_says_up_to_whom_it_does_better():
    rungs = [
        Rung(knows=k, name=k, value=0.2, gain=0.4, gain_low=0.3, gain_high=0.5, p=0.001, beaten=b)
        for k, b in (("nothing", True), ("domain", True), ("label", False))
    ]
    leak = specimen.finding(verdict="label leak", reason="the class mean does as well", draws=4)
    text = said(dataclasses.replace(leak, ladder=tuple(rungs)))
    assert "got the labels of victims, and no example is shown to have come out" in text
    assert "But the class mean does as well." in text
    assert "It does better than whoever knows similar public data." in text
    assert "these weights" not in text


def test_no_leak_found_says_what_it_rests_on():
    share = Share(out=0, n=20, most=0.168, margin=0.2, needed=17)
    power = Power(planted=10, found=9)
    quiet = specimen.finding(gain=0.0, half=0.02, share=share, power=power, alone=True, draws=1)
    text = said(quiet)
    assert "At most 17 % of such victims would come out (0 of 20; 9 of 10 planted leaks were found)" in text
    assert "Only one attack of this kind ran." in text
    assert text.startswith("Without a defence, for these weights, Inverting Gradients found no leak")
    several = dataclasses.replace(quiet, share=dataclasses.replace(share, units=5), draws=4)
    assert "(0 of 20, 5 of them independent; 9 of 10" in said(several)
    assert "weights" not in said(several)


def test_a_search_whose_loss_could_not_be_evaluated_has_stopped_nowhere():
    stopped = Search(name="a", loss=2.0, truth=1.0, noise=0.0)
    failed = dataclasses.replace(stopped, reason="it raised")
    finding = specimen.finding(verdict="not shown", reason="x", searches=(stopped, failed), unfinished=2)
    assert "1 of 2 searches stopped above the loss of the truth" in said(finding)
    assert "stopped" not in said(dataclasses.replace(finding, searches=(failed, failed)))


def test_what_gains_is_the_headline_of_what_is_not_shown():
    """Labels that are read and not shown to leak say more than pictures that a guess rebuilds as well."""
    pictures = specimen.finding(gain=0.0, half=0.1, verdict="not shown")
    labels = specimen.finding(
        attack="label_inference", metric="label_accuracy", gain=0.3, half=0.1, verdict="not shown"
    )
    top = worst(reading(pictures, labels).deciding)
    assert top is not None
    assert top.finding.metric == "label_accuracy"


def test_few_draws_are_what_a_finding_is_about_and_several_are_shown_one_by_one():
    three = tuple(Draw(seed=seed, value=value, n=5) for seed, value in enumerate((0.62, 0.4, 0.84)))
    text = said(specimen.finding(draws=3, by_draw=three))
    assert text.startswith("Without a defence, for these 3 draws of weights, Inverting Gradients rebuilt")
    assert "By draw of the network's first weights: 0.62, 0.40, 0.84." in text
    assert said(specimen.finding(draws=0)).startswith("Without a defence, Inverting Gradients rebuilt")


def test_a_guarantee_that_only_its_defence_states_is_quoted():
    ours = UpperBound(value=0.3, chance=0.2, unit="update", epsilon=0.5, delta=1e-5, steps=1)
    text = said(specimen.finding(bound=ours))
    assert "No attack can reach more than 0.30 on average: the defence proves ε = 0.5" in text
    text = said(specimen.finding(bound=dataclasses.replace(ours, word_of=("flimsy",))))
    assert "The defence “flimsy” says of itself that it proves ε = 0.5" in text
    assert "If it is so, no attack can reach more than 0.30 on average." in text


def test_a_leak_where_smaller_is_worse():
    result = specimen.finding(
        metric="mse", higher=False, base=0.08, gain=0.05, half=0.01, defenses=("clip 4",), axes={"batch": 4}
    )
    assert said(result).startswith(
        "Under clip 4 (batch = 4), Inverting Gradients rebuilt private images with mean squared error "
        "0.03 [0.02, 0.04]. Guessing without the update (prior mean) reaches 0.08; "
        "the gain is +0.05 [0.04, 0.06]"
    )


def test_a_negative_gain_keeps_its_interval_in_order():
    assert "the gain is −0.02 [−0.07, 0.03]" in said(specimen.finding(gain=-0.02, half=0.05))


def test_rates_are_percentages_and_their_differences_points():
    text = said(specimen.finding(metric="identification", base=0.05, gain=0.6, half=0.1))
    assert "65\u00a0% [55, 75] point to the right original" in text
    assert "reaches 5\u00a0%; the gain is +60\u00a0points [50, 70]" in text


def test_what_is_not_shown_says_why_and_what_would_show_it():
    wide = "the interval of the gain reaches beyond what is negligible"
    text = said(specimen.finding(gain=0.05, half=0.2, reason=wide, remedy="more victims or seeds"))
    assert f"it is not shown whether Inverting Gradients finds a leak, because {wide}" in text
    assert "More victims or seeds would show it." in text


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (specimen.WEAK, "its positive control failed: in an easy setting (LeNet with sigmoid, batch 1"),
        (
            dataclasses.replace(specimen.WEAK, negative=0.2, negative_low=0.1),
            "its negative control failed: it seemed to gain 0.20 in SSIM from an update that has nothing",
        ),
        (specimen.SILENT, "its controls failed: it claimed nothing in an easy setting (LeNet with sigmoid"),
        (None, "it claimed nothing about any victim, so that its number is no measurement"),
    ],
)
def test_no_power_is_no_sign_of_safety(control, reason):
    text = said(specimen.finding(gain=0.3, half=0.01, verdict="no power", control=control))
    assert reason in text
    assert text.endswith("This is no sign of safety.")
    assert not re.search("no leak|is safe|holds", text)


def test_grants_are_named():
    assert said(specimen.finding(given=("labels", "batch_norm"))).endswith(
        "The attacker also had the true labels and the batch-norm statistics of the private batch."
    )


def test_a_bound_that_decides_the_verdict_does_not_round_to_zero():
    """0.03 ± 0.026 leaks; "[0.00, 0.06]" would look as if it did not."""
    assert "+0.030 [0.004, 0.056]" in said(specimen.finding(gain=0.03, half=0.026, verdict="leaks"))


def test_no_sentence_speaks_of_a_gain_that_could_have_been_seen():
    """It printed the width of the attack's own noise as if it were power."""
    silent = specimen.finding(gain=0.0, half=0.02, defenses=("clip 4",))
    assert not re.search("could have seen", " ".join(told(silent, specimen.finding())))


def test_power_is_what_the_same_attack_gets_without_the_defence():
    reference = Reference(value=7 / 8, low=0.5, high=1.0, n=8, verdict="leaks")
    result = specimen.finding(
        metric="identification", base=0.01, gain=-0.01, half=0.05, defenses=("noise 0.1",)
    )
    result = dataclasses.replace(result, value=0.0, n=8, undefended=reference)
    text = "With the same settings this attack reaches 7 of 8 without a defence and 0 of 8 here"
    assert text in said(result)
    blind = dataclasses.replace(reference, verdict="no leak found")
    assert "its silence here proves little" in said(dataclasses.replace(result, undefended=blind))
    assert text in " ".join(told(result, specimen.finding()))  # and where only silence is summed up


def test_power_in_another_unit_than_shares():
    reference = Reference(value=0.9, low=0.8, high=1.0, n=8, verdict="leaks")
    result = specimen.finding(gain=0.0, half=0.02, defenses=("noise",), undefended=reference)
    assert "reaches 0.90 without a defence and 0.21 here (SSIM)" in said(result)


def test_silent_victims_are_misses():
    result = specimen.finding(claimed=2)
    assert "It claimed something about 2 of 20 victims; the others count as misses." in said(result)
    assert "claimed something" not in said(dataclasses.replace(result, claimed=20))


@pytest.mark.parametrize(("runs", "words"), [(1, "only 1 run"), (5, "only 5 runs"), (6, "")])
def test_few_federations_are_said_where_clients_are_units(runs, words):
    result = dataclasses.replace(specimen.finding(metric="f1", runs=runs), unit="clients")
    text = said(result)
    assert (words in text) if words else ("only" not in text)
    assert "only" not in said(dataclasses.replace(result, unit="victims"))


def test_what_ignores_the_update_is_no_leak():
    exchange = Exchange(value=0.6, gain=0.01, gain_low=-0.02, gain_high=0.04, n=20)
    result = specimen.finding(verdict="not shown", exchange=exchange)
    assert "It is not shown to gain more about its victims than about others." in said(result)


def test_single_victims_are_named_beside_the_mean():
    result = specimen.finding(gain=0.02, half=0.3, victims=specimen.VICTIMS)
    assert (
        "The examples of 2 of 3 victims came out, recognised among held-out ones: "
        "round 0, client 1, example 0; round 0, client 2, example 0." in said(result)
    )


def test_where_every_victim_came_out_nobody_is_listed():
    out = [dataclasses.replace(v, leaks=True) for v in specimen.VICTIMS]
    text = said(specimen.finding(victims=tuple(out)))
    assert "Each of the 3 victims came out: their own examples were recognised among held-out ones." in text
    assert "round 0" not in text


def test_images_that_moved_in_ssim_alone_do_not_count_as_rebuilt():
    """SSIM above a guess, pixels further away than a guess: the sentence says so, and the mark is another."""
    pixels = specimen.finding(metric="psnr", unit="dB", base=11.2, gain=-2.0, half=1.0)
    alike = specimen.finding(primary=True, verdict="not shown", denied_by="psnr")
    text = said(alike, pixels)
    assert "Inverting Gradients is above guessing by SSIM, but not by PSNR" in text
    assert "This does not count as rebuilt images." in text
    assert "rebuilt private images" not in text


def test_a_distance_that_moved_while_the_deciding_one_did_not_is_a_note():
    pixels = specimen.finding(metric="psnr", unit="dB", base=11.2, gain=-2.0, half=1.0, primary=True)
    texts = told(pixels, specimen.finding())
    who = "Inverting Gradients without a defence"
    assert f"{who}: above guessing by SSIM, but not by PSNR. This does not count as rebuilt images." in texts
    assert not any("rebuilt private images" in text for text in texts)


def test_worst_first():
    kinds = ["no leak found", "not shown", "no power", "leaks"]
    findings = [specimen.finding(verdict=kind) for kind in kinds]
    mild = specimen.finding(gain=0.1, verdict="leaks")
    order = sorted(reading(*findings, mild).every, key=lambda r: r.rank)
    assert [r.finding.verdict for r in order] == ["leaks", "leaks", "no power", "not shown", "no leak found"]
    assert order[1].finding is mild


def test_examples_before_membership_before_labels_before_the_rest():
    """All labels read is bad; half of the images rebuilt is worse."""
    names = ["attribution", "label_accuracy", "f1", "ssim"]
    findings = [specimen.finding(metric=name, base=0.1, gain=0.9 - 0.1 * i) for i, name in enumerate(names)]
    order = sorted(reading(*findings).every, key=lambda r: r.rank)
    assert [r.finding.metric for r in order] == names[::-1]


def test_a_defence_goes_by_the_label_it_was_given():
    result = specimen.finding(defenses=("gaussian_noise std=0.1",), axes={"defenses": "noise 0.1"})
    assert said(result).startswith("Under noise 0.1, Inverting Gradients")
    assert said(specimen.finding(axes={"defenses": "none"})).startswith("Without a defence, Inverting")


def test_severity_compares_metrics():
    """Half of the guess's squared error gone is as severe in dB as in mse."""
    mse = specimen.finding(metric="mse", higher=False, base=0.08, gain=0.04)
    psnr = specimen.finding(metric="psnr", unit="dB", base=10.97, gain=3.0103)
    full = specimen.finding(gain=0.79, base=0.21)
    half, alike, whole = (r.severity for r in reading(mse, psnr, full).every)
    assert half == pytest.approx(0.5)
    assert alike == pytest.approx(0.5, abs=1e-4)
    assert whole == pytest.approx(1.0)


def test_of_a_result_that_marks_none_the_first_metric_of_each_kind_decides():
    silent = specimen.finding(metric="identification", gain=0.0, half=0.02, base=0.01)
    alike = specimen.finding()
    labels = specimen.finding(metric="label_accuracy", gain=0.8, base=0.1)
    deciding = reading(alike, silent, labels).deciding
    assert [r.finding for r in deciding] == [silent, labels]
    assert worst(deciding).finding is labels


def test_the_story_of_defences():
    clip, noise = ("clip 4",), ("noise 0.1",)
    texts = told(
        specimen.finding(scenario="s"),
        specimen.finding(scenario="s", defenses=clip, gain=0.3),
        specimen.finding(scenario="s", defenses=noise, gain=0.0, half=0.02),
        specimen.finding(
            scenario="s", defenses=noise, attack="dlg", verdict="no power", control=specimen.WEAK
        ),
        utility=tuple(
            dataclasses.replace(u, cell=specimen.cell("s", d, {}), scenario="s", defenses=d)
            for u, d in zip(specimen.utilities("s"), [(), noise, clip], strict=False)
        ),
    )
    assert texts[0].startswith("Without a defence, Inverting Gradients rebuilt")
    assert texts[1].startswith("1 of 2 defended settings still leaks, most of all clip 4")
    assert texts[2] == (
        "No leak was found under noise 0.1. Held-out accuracy is 43\u00a0% [40, 46] there; "
        "without a defence it is 61\u00a0% [58, 64]."
    )
    assert texts[3] == "Nothing can be said about DLG: a control failed. This is no sign of safety."


def test_an_attack_that_says_nothing_where_its_control_passed_did_not_fail_it():
    noise = ("noise 0.1",)
    texts = told(
        specimen.finding(),
        specimen.finding(defenses=noise, attack="dlg", verdict="no power"),
        specimen.finding(defenses=noise, attack="idlg", verdict="no power", control=specimen.WEAK),
    )
    assert any("about DLG here: it claimed nothing about any victim" in text for text in texts)
    assert any("about iDLG: a control failed" in text for text in texts)


def test_open_settings_are_not_silent_ones():
    texts = told(
        specimen.finding(),
        specimen.finding(defenses=("a",), gain=0.0, half=0.02),
        specimen.finding(defenses=("a",), attack="ggl", gain=0.05, half=0.2, reason="it is too wide"),
    )
    assert "Under a no leak is shown, nor its absence (GGL: it is too wide)." in texts
    assert not any("No leak was found" in text for text in texts)


def test_the_cheapest_silent_setting_is_the_one_with_most_utility():
    findings = [specimen.finding(scenario="s")]
    findings += [
        specimen.finding(scenario="s", defenses=d, gain=0.0, half=0.02) for d in specimen.DEFENSES[1:]
    ]
    texts = told(*findings, utility=tuple(specimen.utilities("s")))
    assert any("Cheapest of these is clip L2 4: held-out accuracy 60\u00a0% [57, 63]" in t for t in texts)


def test_refusals_are_mentioned():
    texts = told(
        specimen.finding(scenario="s"), refusals=(specimen.refused("s"), specimen.refused("s", ("x",)))
    )
    assert texts[-1] == "Could not run: attack 'linear_input'; reasons below."

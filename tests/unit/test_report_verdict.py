"""The sentences: the right news first, never without uncertainty, and no power is never safety."""

import dataclasses
import re

import pytest
import report_specimen as specimen

from glasshouse.report.verdict import headline, overall, quoted, sentence, severity, stories, worst_first
from glasshouse.results.records import Result

NULL = "an adversary that saw no update"


def told(*findings, **rest):
    return [
        s.text for story in stories(Result(suite="x", findings=findings, **rest)) for s in story.sentences
    ]


def test_a_leak():
    assert sentence(specimen.finding()) == (
        "Without a defence, Inverting Gradients rebuilt private images with SSIM 0.62 [0.56, 0.68], "
        f"0.41 [0.35, 0.47] above {NULL} "
        "(null: prior mean; 20 victims; 4 restarts, lowest loss of the attack)."
    )


def test_a_leak_where_smaller_is_worse():
    found = specimen.finding(
        metric="mse", higher=False, base=0.08, gain=0.05, half=0.01, defenses=("clip 4",), axes={"batch": 4}
    )
    assert sentence(found).startswith(
        "Under clip 4 (batch = 4), Inverting Gradients rebuilt private images with mean squared error "
        f"0.03 [0.02, 0.04], 0.05 [0.04, 0.06] below {NULL}"
    )


def test_a_negative_gain_keeps_its_interval_in_order():
    found = specimen.finding(gain=-0.02, half=0.05)
    assert f"0.02 [−0.03, 0.07] below {NULL}" in sentence(found)


def test_rates_are_percentages_and_their_differences_points():
    found = specimen.finding(metric="identification", base=0.05, gain=0.6, half=0.1)
    assert (
        f"65\u00a0% [55, 75] point to the right original, 60\u00a0points [50, 70] above {NULL}"
        in sentence(found)
    )


def test_no_leak_says_what_could_have_been_seen():
    text = sentence(specimen.finding(gain=0.01, half=0.03))
    assert "no leak was found by Inverting Gradients: SSIM 0.22 [0.19, 0.25]" in text
    assert "The audit could have seen a gain of 0.03; a smaller one may hide." in text


def test_inconclusive_asks_for_more():
    text = sentence(specimen.finding(gain=0.05, half=0.2))
    assert "it stays open whether Inverting Gradients finds a leak" in text
    assert "More victims would narrow this." in text


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (specimen.WEAK, "its positive control failed: in an easy setting (LeNet with sigmoid, batch 1"),
        (
            dataclasses.replace(specimen.WEAK, negative=0.2, negative_low=0.1),
            "its negative control failed: it seemed to gain 0.20 in SSIM from an update that has nothing",
        ),
        (specimen.SILENT, "its controls failed: it claimed nothing in an easy setting (LeNet with sigmoid"),
        (None, "the attack had no power here"),
    ],
)
def test_no_power_is_no_sign_of_safety(control, reason):
    text = sentence(specimen.finding(gain=0.3, half=0.01, verdict="no power", control=control))
    assert reason in text
    assert text.endswith("This is no sign of safety.")
    assert not re.search("no leak|is safe|holds", text)


def test_grants_are_named():
    assert sentence(specimen.finding(given=("labels", "batch_norm"))).endswith(
        "It was given: true labels and batch-norm statistics."
    )


def test_a_bound_that_decides_the_verdict_does_not_round_to_zero():
    """0.03 ± 0.026 leaks; "[0.00, 0.06]" would look as if it did not."""
    assert "0.030 [0.004, 0.056]" in sentence(specimen.finding(gain=0.03, half=0.026, verdict="leaks"))


def test_worst_first():
    kinds = ["no leak found", "inconclusive", "no power", "leaks"]
    findings = [specimen.finding(verdict=kind) for kind in kinds]
    mild = specimen.finding(gain=0.1, verdict="leaks")
    order = worst_first([*findings, mild])
    assert [f.verdict for f in order] == ["leaks", "leaks", "no power", "inconclusive", "no leak found"]
    assert order[1] is mild


def test_examples_come_before_labels():
    """All labels read is bad; half of the images rebuilt is worse."""
    labels = specimen.finding(metric="label_accuracy", attack="idlg", base=0.1, gain=0.9)
    images = specimen.finding(gain=0.2)
    assert worst_first([labels, images]) == [images, labels]


def test_a_defence_goes_by_the_label_it_was_given():
    found = specimen.finding(defenses=("gaussian_noise std=0.1",), axes={"defenses": "noise 0.1"})
    assert sentence(found).startswith("Under noise 0.1, Inverting Gradients")
    plain = specimen.finding(axes={"defenses": "none"})
    assert sentence(plain).startswith("Without a defence, Inverting Gradients")


def test_severity_compares_metrics():
    """Half of the null's squared error gone is as severe in dB as in mse."""
    mse = specimen.finding(metric="mse", higher=False, base=0.08, gain=0.04)
    psnr = specimen.finding(metric="psnr", unit="dB", base=10.97, gain=3.0103)
    assert severity(mse) == pytest.approx(0.5)
    assert severity(psnr) == pytest.approx(0.5, abs=1e-4)
    assert severity(specimen.finding(gain=0.79, base=0.21)) == pytest.approx(1.0)


def test_a_leak_in_any_metric_is_quoted():
    """Images are silent, labels leak: the attack leaks."""
    silent = specimen.finding(gain=0.0, half=0.02)
    labels = specimen.finding(metric="label_accuracy", gain=0.8, base=0.1)
    assert headline([silent, labels]) is labels
    assert len(quoted([silent, labels])) == 1


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
        "No leak was found under noise 0.1; the audit could have seen a gain of 0.02 in SSIM. "
        "It keeps 43\u00a0% [40, 46] held-out accuracy; 61\u00a0% [58, 64] without a defence."
    )
    assert texts[3] == "Nothing can be said about DLG: a control failed. This is no sign of safety."


def test_open_settings_are_not_silent_ones():
    texts = told(
        specimen.finding(),
        specimen.finding(defenses=("a",), gain=0.0, half=0.02),
        specimen.finding(defenses=("a",), attack="ggl", gain=0.05, half=0.2),
    )
    assert "It stays open under a: the interval of GGL is too wide." in texts
    assert not any("No leak was found" in text for text in texts)


def test_the_cheapest_silent_setting_is_the_one_with_most_utility():
    findings = [specimen.finding(scenario="s")]
    findings += [
        specimen.finding(scenario="s", defenses=d, gain=0.0, half=0.02) for d in specimen.DEFENSES[1:]
    ]
    texts = told(*findings, utility=tuple(specimen.utilities("s")))
    assert any("Cheapest of these is clip L2 4: 60\u00a0% [57, 63] held-out accuracy" in t for t in texts)


def test_refusals_are_mentioned():
    texts = told(
        specimen.finding(scenario="s"), refusals=(specimen.refused("s"), specimen.refused("s", ("x",)))
    )
    assert texts[-1] == "Could not run: attack 'linear_input'; reasons below."


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [
        ([], "Nothing was measured"),
        (["leaks", "no leak found"], "Private data came out"),
        (["no leak found", "no leak found"], "No leak was found"),
        (["no leak found", "no power"], "This audit cannot tell"),
        (["no leak found", "inconclusive"], "This audit cannot tell"),
        (["no power"], "This audit cannot tell"),
    ],
)
def test_overall(verdicts, answer):
    findings = tuple(specimen.finding(verdict=v, scenario=f"s{i}") for i, v in enumerate(verdicts))
    said, qualification = overall(Result(suite="x", findings=findings))
    assert said == answer
    if answer != "Private data came out":
        assert re.search("no sign of safety|not every attack|may still leak", qualification)

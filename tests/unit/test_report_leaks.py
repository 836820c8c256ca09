"""The first screen: each leak in 70 plain words, the severe kinds first, and always something to do."""

import dataclasses
import html
import re
from typing import get_args

import pytest
import report_specimen as specimen
from report_cards import METRICS, described

from glasshouse.report.figures import trade
from glasshouse.report.first_screen.leaks import GLOSSARY, QUIET, leaks
from glasshouse.report.html import render
from glasshouse.report.readings import one_per_setting, read
from glasshouse.results.records import Verdict
from glasshouse.results.vocabulary import SEES

SILENT = {"gain": 0.0, "half": 0.02}
NOISE, MORE, CLIP = ("gaussian_noise std=0.1",), ("gaussian_noise std=1",), ("clip norm=4",)
LABELS = {NOISE: "noise 0.1", MORE: "noise 1", CLIP: "clip 4"}
CARD = specimen.card(
    "ward",
    adversary="a server that only reads (honest-but-curious)",
    setup="10 clients, 20 rounds; each client's messages are seen",
    sees=(SEES["update"],),
    defenses={"gaussian_noise": "adds noise", "clip": "limits the size of what is sent"},
    advice="limit each update's size and add noise (gaussian_mechanism)",
)
# Words that mean something to us alone, and what explains each where it stands.
TERMS = {
    "SSIM": "1 is a perfect copy",
    "F1": "1 is all of them",
    "Guessing": "who never saw what the clients sent",
    "victims": "an attack aimed at",
    "accuracy": "how often the finished model is right",
    "defence": "a change to what a client sends",
    "noise 1": "adds noise",
    "clip 4": "limits the size",
    "gaussian_mechanism": "limit each update's size and add noise",
    " to ": "holds the true value in 95 of 100",
}
JARGON = re.compile(
    r"honest-but-curious|null|baseline|gradient|epsilon|held-out|interval|primary|p-value|_id"
)


def finding(defenses=(), **rest):
    axes = {"defenses": LABELS[defenses]} if defenses else {"defenses": "none"}
    return specimen.finding(scenario="ward", defenses=defenses, axes=axes, **rest)


def utility(defenses, value, **rest):
    axes = {"defenses": LABELS[defenses]} if defenses else {"defenses": "none"}
    one = specimen.utilities("ward", axes)[0]
    cell = specimen.cell("ward", defenses, axes)
    return dataclasses.replace(
        one, cell=cell, defenses=defenses, value=value, low=value - 0.03, high=value + 0.03, **rest
    )


def first(*findings, **rest):
    result = described(*findings, **{"threats": (CARD,), **rest})
    return leaks(read(result))


CLOSED = described(
    finding(),
    finding(NOISE, gain=0.2),
    finding(MORE, **SILENT),
    finding(CLIP, **SILENT),
    threats=(CARD,),
    utility=(utility((), 0.91), utility(NOISE, 0.9), utility(MORE, 0.7), utility(CLIP, 0.6)),
)
UNTRIED = described(
    finding(metric="identification", base=0.01, gain=0.8, given=("auxiliary", "labels")), threats=(CARD,)
)
OPEN = described(
    finding(metric="label_accuracy", base=0.1, gain=0.8),
    finding(metric="f1", base=0.2, gain=0.7, attack="prolin"),
    finding(victims=specimen.VICTIMS),
    finding(NOISE, gain=0.2),
    finding(MORE, gain=0.05, half=0.2),
    threats=(CARD,),
)
REPORTS = pytest.mark.parametrize("result", [CLOSED, UNTRIED, OPEN], ids=["closed", "untried", "open"])


@REPORTS
def test_seventy_words_and_something_to_do(result):
    found = leaks(read(result))
    assert found
    for leak in found:
        assert len(leak.text.split()) <= 70
        assert re.search("^(Use |None of|The one defence|No defence)", leak.action)
        assert leak.advice.startswith("Next, ")
        assert leak.whose.startswith("Whose: ")


@REPORTS
def test_no_term_without_its_explanation_in_place(result, tmp_path):
    """The explanation stands in the same leak, or among the words right below the leaks."""
    top = re.search(r'<header id="verdict">.*?<details', render(result, tmp_path), re.DOTALL)[0]
    screen = " ".join(html.unescape(re.sub("<[^>]+>", " ", top)).split())
    text = " ".join(leak.text for leak in leaks(read(result)))
    assert JARGON.findall(text) == []
    assert {word for word, meaning in TERMS.items() if word in text and meaning not in screen} == set()
    assert all(meaning in screen for _, meaning in GLOSSARY)


def test_the_first_leak_in_full():
    (leak,) = leaks(read(CLOSED))
    assert leak.title == "Rebuilt private images with SSIM 0.62 (likeness) from single updates"
    assert leak.severity == 4
    assert leak.setting == "without a defence; 10 clients, 20 rounds; each client's messages are seen"
    assert leak.text == (
        "The server, only reading what clients send, rebuilt private images with SSIM 0.62 (likeness; 1 is a "
        "perfect copy). Guessing gets 0.21. Whose: 20 victims, judged together and not one by one. "
        "Use a defence that adds noise (noise 1, gaussian_noise std=1): it stopped this leak; accuracy is "
        "70\u00a0% instead of 91\u00a0%. Next, try a strength between noise 0.1 and noise 1."
    )


def test_a_leak_that_came_out_despite_the_only_defence_says_so():
    (only,) = first(finding(NOISE, gain=0.2))
    assert only.action == "It came out despite noise 0.1."
    assert only.advice == f"Next, {CARD.advice}."


def test_severe_kinds_first_across_scenarios():
    """All labels read is bad, who takes part is worse, and some images rebuilt is worst."""
    names = ("label_accuracy", "f1", "ssim")
    rows = [
        dataclasses.replace(specimen.finding(metric=m, base=0.1, gain=0.9 - 0.3 * i), scenario=m)
        for i, m in enumerate(names)
    ]
    assert [leak.scenario for leak in first(*rows)] == list(names[::-1])


def test_a_named_defence_is_no_leak():
    assert first(finding(metric="defense_named", base=0.1, gain=0.9, primary=True)) == []


def test_the_cheapest_setting_that_closed_every_attack_of_the_kind():
    """Noise 1 keeps more accuracy than the clipping, but another attack still gets through it."""
    other = finding(MORE, attack="ggl", gain=0.3)
    result = dataclasses.replace(CLOSED, findings=(*CLOSED.findings, other))
    (leak,) = leaks(read(result))
    assert leak.action.startswith(
        "Use a defence that limits the size of what is sent (clip 4, clip norm=4): it stopped this leak; "
        "accuracy is 60"
    )
    assert leak.advice == "Next, weaken clip 4: that may cost less."


def test_a_setting_that_costs_nothing_is_to_be_audited_harder():
    rows = (finding(), finding(MORE, **SILENT))
    (leak,) = first(*rows, utility=(utility((), 0.91), utility(MORE, 0.9)))
    assert leak.advice == "Next, audit noise 1 with stronger attacks and more victims."


def test_silence_without_power_closes_nothing():
    rows = (finding(), finding(MORE, gain=0.0, half=0.02, verdict="no power", control=specimen.WEAK))
    (leak,) = first(*rows)
    until = "Until then, protect what clients send like the data."
    assert leak.action == f"The one defence tried (noise 1) is not shown to stop it. {until}"
    assert leak.advice == "Next, test noise 1 on more examples."
    (leak,) = first(*rows, finding(MORE, attack="ggl", **SILENT))
    assert leak.action.endswith(
        "is not shown to stop it. Until then, protect what clients send like the data."
    )


def test_an_attack_without_power_says_nothing_about_what_closed_another():
    powerless = finding(MORE, attack="dlg", verdict="no power", control=specimen.WEAK)
    (leak,) = first(finding(), finding(MORE, **SILENT), powerless)
    assert leak.action.startswith("Use a defence that adds noise (noise 1, ")


def test_what_left_least_is_to_be_strengthened():
    (leak,) = first(finding(), finding(NOISE, gain=0.3), finding(MORE, gain=0.1))
    assert leak.action == "None of the 2 defences tried (noise 0.1 and noise 1) stopped it."
    assert leak.advice == "Next, try a stronger noise 1: it let least through."


def test_no_setting_lets_least_through_that_stands_alone_or_ties():
    (leak,) = first(finding(), finding(NOISE, gain=0.3))
    assert leak.advice == "Next, try a stronger noise 0.1."
    (leak,) = first(finding(), finding(NOISE, gain=0.1), finding(MORE, gain=0.1))
    assert leak.advice == "Next, try a stronger noise 0.1."


def test_a_leak_under_a_defence_is_advised_on_that_defence():
    """Without a defence the attack was too weak to count: the card is about noise, and so is its advice."""
    rows = (finding(verdict="no power", control=specimen.WEAK), finding(NOISE, gain=0.3))
    (leak,) = first(*rows, finding(CLIP, gain=0.4, verdict="leaks"))
    assert leak.setting.startswith("under clip 4; ")
    assert (
        leak.action
        == "It came out despite clip 4, and the one other defence tried (noise 0.1) did not stop it."
    )
    assert leak.advice == "Next, try a stronger noise 0.1: it let least through."
    (leak,) = first(
        finding(NOISE, gain=0.4, verdict="label leak"), finding(CLIP, gain=0.6, verdict="label leak")
    )
    assert (
        leak.action
        == "It came out despite clip 4, and the one other defence tried (noise 0.1) did not stop it."
    )


def test_a_label_leak_claims_no_example(tmp_path):
    result = described(finding(verdict="label leak"), threats=(CARD,))
    (leak,) = leaks(read(result))
    assert (leak.severity, leak.title) == (2, "Labels read from single updates")
    assert "rebuilt" not in leak.text
    assert "whoever knows the labels alone does as well, so no example is shown to have come out" in leak.what


def test_an_inner_description_is_no_example():
    headed = [dataclasses.replace(m, severity="descriptions") for m in METRICS if m.name == "ssim"]
    (leak,) = first(finding(), metrics=tuple(headed))
    assert (leak.severity, leak.severe) == (3, "inner descriptions of examples")


def test_a_defence_at_the_cost_of_all_use_is_called_that():
    rows = (finding(), finding(MORE, **SILENT))
    (leak,) = first(*rows, utility=(utility((), 0.91), utility(MORE, 0.11, chance=0.1)))
    assert leak.action == (
        "Only a defence that adds noise (noise 1, gaussian_noise std=1) stopped it, but the model is then of "
        "no use: accuracy is 11\u00a0% instead of 91\u00a0%."
    )


def test_an_unmeasured_cost_is_said():
    (leak,) = first(finding(), finding(MORE, **SILENT))
    assert leak.action.endswith(": it stopped this leak; its cost in accuracy was not measured.")


def test_single_victims_are_a_leak_where_the_average_is_none():
    (leak,) = first(finding(primary=True, gain=0.02, half=0.3, victims=specimen.VICTIMS))
    assert leak.title == "2 of 3 examples recognised from single updates"
    assert leak.whose == "Whose: shown for 2 of 3 victims, each judged alone."


def test_hits_are_counted_where_examples_were():
    card = dataclasses.replace(CARD, things="pictures")
    counted = {"metric": "identification", "base": 0.01, "gain": 0.8, "scored": 8, "hits": 7}
    (leak,) = first(finding(**counted), threats=(card,))
    assert leak.title == "Rebuilt images of which 7 of 8 point to the right original from single updates"
    headed = [
        dataclasses.replace(m, headline="{} rebuilt") if m.name == "identification" else m for m in METRICS
    ]
    (leak,) = first(finding(**counted), threats=(card,), metrics=tuple(headed))
    assert leak.title == "7 of 8 pictures rebuilt from single updates"
    (leak,) = first(finding(**{**counted, "hits": None}), threats=(card,), metrics=tuple(headed))
    assert leak.title == "81\u00a0% of the pictures rebuilt from single updates"


def test_a_range_that_reaches_below_guessing_is_not_left_alone():
    """Five of five readers of "100 % (69 to 100); guessing 74 %" doubted that anything had come out."""
    few = {"metric": "identification", "base": 0.74, "gain": 0.26, "half": 0.03}
    wide = dataclasses.replace(finding(**few, scored=640, hits=640), n=10, low=0.69, high=1.0)
    (leak,) = first(wide)
    assert "Victim by victim the gain is +26\u00a0points (23 to 29), which decides." in leak.what
    assert leak.whose == "Whose: 10 victims, 640 scores in all, judged together and not one by one."
    (leak,) = first(dataclasses.replace(wide, low=0.8))
    assert "Victim by victim" not in leak.what


def test_no_setting_is_recommended_without_what_it_still_lets_out():
    """The labels come out under the noise that closes, or may close, the leak of examples."""
    labels = finding(MORE, metric="label_accuracy", base=0.1, gain=0.8)
    leak = first(finding(), finding(MORE, **SILENT), labels)[0]
    assert "it stopped this leak, but labels still came out there; " in leak.action
    leak = first(finding(), finding(MORE, gain=0.05, half=0.2), labels)[0]
    assert leak.advice == "Next, strengthen noise 1: labels still came out there."
    clean = finding(CLIP, gain=0.05, half=0.2)
    leak = first(finding(), finding(MORE, gain=0.05, half=0.2), labels, clean)[0]
    assert leak.advice == "Next, test clip 4 on more examples."


def test_every_leaking_scenario_is_there_and_every_other_says_what_to_do(tmp_path):
    result = specimen.specimen(tmp_path)
    page = render(result, tmp_path)
    assert {leak.scenario for leak in leaks(read(result))} == {"inversion-defences", "scale-mia"}
    assert "No leak was found. Next, audit with stronger attacks and more victims." in page
    assert "Nothing can be said: the attack failed where it must succeed." in page


def test_models_at_chance_are_remarked_on(tmp_path):
    page = render(described(finding(), utility=(utility((), 0.11, chance=0.1),), threats=(CARD,)), tmp_path)
    assert "Accuracy is at chance without a defence" in page
    assert '<span class="badge alarm">at chance</span>' in page


def test_several_seeds_are_one_setting():
    one, two = utility((), 0.9), utility((), 0.7)
    (merged,) = one_per_setting([one, two])
    assert (merged.value, merged.low, merged.high) == pytest.approx((0.8, 0.67, 0.93))
    readings = read(described(finding(), utility=(one, two)))
    assert len(trade(readings.every, readings.utility).points) == 1


def test_date_auditor_scope_and_versions(tmp_path):
    manifest = {
        "started": "2026-11-22T17:02:00+00:00",
        "auditor": "Vera",
        "glasshouse": "0.2.0",
        "packages": {"torch": "2.13.0"},
    }
    page = " ".join(re.sub("<[^>]+>", " ", render(described(finding(), manifest=manifest), tmp_path)).split())
    assert "Date 22 November 2026 Auditor Vera Scope 0 scenarios, 1 attack, 1 setting" in page
    assert "Versions glasshouse 0.2.0, torch 2.13.0" in page


def test_every_verdict_has_a_next_step():
    assert QUIET.keys() == {*get_args(Verdict), None}


def test_a_scenario_in_which_nothing_is_shown_says_how_far_it_came_and_what_would_show_it(tmp_path):
    row = finding(gain=0.05, half=0.2, verdict="not shown", remedy="more victims or seeds", primary=True)
    page = html.unescape(render(described(row, threats=(CARD,)), tmp_path))
    assert "Neither a leak nor its absence is shown in 1 measurement." in page
    assert "No leak is shown, nor its absence. Inverting Gradients: SSIM 0.26 " in page
    assert "over 20 victims; guessing gets 0.21. Next: more victims or seeds." in page

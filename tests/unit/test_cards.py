"""Every attack and metric describes itself, and the result carries what it says."""

import dataclasses

import pytest

from glasshouse import registry
from glasshouse.audit.scoring.words import attack_cards, metric_cards
from glasshouse.errors import BadValue
from glasshouse.metrics.base import Wording
from glasshouse.metrics.reconstruction import Psnr
from glasshouse.scenario.load import load
from glasshouse.scenario.requirements import metrics_requiring


@pytest.mark.parametrize("name", registry.names("attacks"))
def test_every_attack_has_a_title(name):
    assert registry.card("attacks", name).title


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_every_metric_says_what_it_is_which_way_is_worse_and_what_guessing_gets(name):
    wording = registry.load("metrics", name).wording
    assert wording.sentence.count("{}") == 1
    assert wording.order < 1000
    if wording.private:
        worse = "higher is worse" if wording.higher_leaks else "lower is worse"
        assert worse in wording.explanation.lower()
    assert (wording.display == "level") == (wording.unit == "dB")
    assert registry.load("metrics", name).requires <= {"distractors", "stand_in"}


def test_orders_differ_within_a_severity():
    every = [registry.load("metrics", name).wording for name in registry.names("metrics")]
    keys = [(w.severity, w.order) for w in every]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("sentence", ["no place for the value", "{} and {}"])
def test_a_sentence_has_one_place_for_the_value(sentence):
    with pytest.raises(BadValue, match="with one"):
        Wording(label="x", sentence=sentence, explanation="x")


def test_a_result_carries_the_cards_of_its_scenarios_and_controls():
    scenario = load("dlg", ['audit.metrics=["ssim"]', 'attacks=[{name="dlg", label="mine"}]']).scenarios[0]
    (attack,) = attack_cards([scenario])
    assert (attack.label, attack.name, attack.title) == ("mine", "dlg", "DLG")
    metrics = {m.name: m for m in metric_cards([scenario])}
    assert metrics.keys() == {"ssim", "psnr"}  # psnr: what the control of the attack is judged by
    assert metrics["ssim"].low == -1.0
    assert metrics["psnr"].sentence == Psnr.wording.sentence
    assert metrics["ssim"].severity == "images"


def test_a_metric_that_does_not_describe_itself_is_refused_before_the_run(monkeypatch):
    monkeypatch.delattr(Psnr, "wording")
    scenario = load("dlg", ['audit.metrics=["psnr"]']).scenarios[0]
    with pytest.raises(BadValue, match="attribute 'wording'"):
        metric_cards([scenario])


def test_requirements_are_asked_of_the_metrics():
    scenario = load("dlg", ['audit.metrics=["psnr", "identification", "perceptual"]']).scenarios[0]
    assert metrics_requiring(scenario, "distractors") == ("identification",)
    assert metrics_requiring(scenario, "stand_in") == ("perceptual",)


def test_cards_are_plain_data():
    scenario = load("dlg", []).scenarios[0]
    for card in (*attack_cards([scenario]), *metric_cards([scenario])):
        fields = dataclasses.asdict(card)
        shown = fields.pop("landmarks", ())
        assert all(isinstance(v, str | float | bool | int | None) for v in fields.values())
        assert all([type(part) for part in row] == [float, str, str] for row in shown)

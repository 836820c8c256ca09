"""``attacks = "auto"``: what applies, strongest first, within the budget; the same on every machine."""

import pytest
from sklearn.datasets import load_digits
from torch import nn

import glasshouse as gh
from glasshouse import registry
from glasshouse.api.scenario import ask
from glasshouse.audit import auto, count
from glasshouse.errors import BadScenario
from glasshouse.registry import Card, Offer
from glasshouse.scenario.axes import content_hash

PRESETS = ("quickstart-photos", "digits-inversion", "quickstart-rounds", "quickstart-text", "clinic-trees")


def chosen(name, *sets):
    (scenario,) = ask(name, ["attacks=auto", *sets]).scenarios
    return scenario


@pytest.mark.parametrize("name", PRESETS)
def test_every_attack_is_chosen_or_left_out_with_a_reason(name):
    scenario = chosen(name)
    taken = [attack.name for attack in scenario.attacks]
    left = [note for note in scenario.audit.auto if note.startswith("Left out: ")]
    named = [one for note in left for one in note.split(": ")[1].split(", ")]
    assert taken
    assert sorted(taken + named) == sorted(registry.names("attacks"))
    assert all(note.split(": ", 2)[2] for note in left)


@pytest.mark.parametrize("name", PRESETS)
def test_the_order_is_by_declared_strength(name):
    strengths = [
        max(offer.strength for offer in registry.card("attacks", attack.name).offers)
        for attack in chosen(name).attacks
    ]
    assert strengths == sorted(strengths, reverse=True)


def test_a_modality_has_its_own_attacks():
    """Without metrics, so that they do not choose."""
    text = {"name": "x", "data": {"source": "sentences"}, "model": {"name": "small_gpt"}}
    (scenario,) = ask(text).scenarios
    assert {"dager", "embedding_rows"} <= {a.name for a in scenario.attacks}
    assert "inverting_gradients" not in {a.name for a in scenario.attacks}
    assert {"exact_sentences", "tokens_named"} <= {m.name for m in scenario.audit.metrics}


def test_less_budget_is_less_effort_and_then_fewer_attacks():
    def spent(budget):
        attacks = chosen("digits-inversion", f'audit.budget="{budget}"').attacks
        return [(a.name, a.arguments.get("search", {}).get("iterations", 600)) for a in attacks]

    much, some, little = spent("2 h"), spent("3 min"), spent("5 s")
    assert len(much) >= len(some) > len(little)
    assert dict(much)["inverting_gradients"] >= dict(some)["inverting_gradients"]
    assert all(name in dict(some) for name, _ in little)


def test_scores_are_in_the_budget(monkeypatch):
    def seconds(metrics):
        scenario = chosen("digits-inversion", f"audit.metrics={metrics}")
        every = [auto.look(cell.scenario) for cell in auto.cells(scenario)]
        (found, *_), _ = auto._candidates("idlg", every, None)
        return found.seconds

    one, three = seconds('["psnr"]'), seconds('["psnr", "ssim", "mse"]')
    each = count.score_cost(chosen("digits-inversion"), 64).seconds(auto.REFERENCE)
    calls = round((three - one) / (2 * each))
    assert calls >= 8  # as many as victims, at least
    assert three - one == pytest.approx(2 * calls * each)
    assert chosen("digits-inversion", 'audit.budget="30 s"').attacks
    monkeypatch.setattr(count, "SCORE", 20_000)
    with pytest.raises(BadScenario, match="more than is left of the budget"):
        chosen("digits-inversion", 'audit.budget="30 s"')


@pytest.mark.parametrize(("examples", "seconds"), [(32, 0.26), (64, 1.5)])
def test_scores_of_large_updates_cost_by_their_pairs(examples, seconds, monkeypatch):
    """So many photographs of 3,072 numbers, and the seconds that were measured for one score."""
    monkeypatch.setattr(count, "behind", lambda scenario: examples)
    assert count.score_cost(None, 3072).seconds(auto.REFERENCE) == pytest.approx(seconds, rel=0.35)
    assert count.score_cost(None, 0).operators == count.SCORE


def test_what_is_chosen_does_not_depend_on_the_machine(monkeypatch):
    first = chosen("digits-inversion")
    monkeypatch.setattr("glasshouse.audit.count.measure_speed", None)
    assert chosen("digits-inversion") == first


def test_an_estimator_looks_for_what_clients_do():
    (ols,) = [a for a in chosen("quickstart-rounds").attacks if a.name == "ols"]
    assert ols.arguments["looks_for"] == "gradient_inversion"


def test_nothing_that_applies_is_an_error_with_the_reasons():
    with pytest.raises(BadScenario, match="an attack that applies here"):
        ask("digits-inversion", ["attacks=auto", 'threat={role="bystander"}'])


def test_attacks_on_an_axis_are_left_alone():
    (scenario,) = ask("digits-inversion", ['axes={attacks=[["idlg"], ["dlg"]]}']).scenarios
    assert not scenario.audit.auto


@pytest.mark.parametrize("budget", ["soon", "0 s", "-1 min", "10", "10 days"])
def test_a_budget_is_a_time(budget):
    with pytest.raises(BadScenario, match=r"audit\.budget"):
        ask("digits-inversion", [f'audit.budget="{budget}"'])


def test_the_reasons_are_not_part_of_what_is_measured():
    scenario = chosen("digits-inversion")
    bare = scenario.model_copy(
        update={"audit": scenario.audit.model_copy(update={"auto": (), "budget": "1 h"})}
    )
    assert content_hash(bare) == content_hash(scenario)


def test_an_attack_of_another_package_without_offers_runs_by_name_only(monkeypatch):
    plain = Card(summary="somebody else's", claims=("reconstruction",))
    monkeypatch.setattr(auto.registry, "card", lambda group, name: plain)
    found, reason = auto._candidates("theirs", [], None)
    assert (found, reason) == ([], "declares no measured strength: name it to run it")


def test_offers_are_settings_that_their_attacks_accept():
    for name in registry.names("attacks"):
        for offer in registry.card("attacks", name).offers:
            assert isinstance(offer, Offer)
            assert 0 < offer.strength <= 1
            registry.create(registry.load("attacks", name), offer.settings)


def test_a_network_and_data_are_enough(tmp_path):
    digits = load_digits()
    images = (digits.images[:300, None] / 16).astype("float32").transpose(0, 2, 3, 1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    data = (images, digits.target[:300])
    run = gh.audit(net, data, sets=['audit.budget="5 s"'], out=tmp_path / "run", jobs=1, register=False)
    assert {"linear_input", "label_inference"} <= {f.attack for f in run.result.findings}
    notes = run.result.threats[0].notes
    assert any('chosen by attacks = "auto"' in note for note in notes)
    assert any(note.startswith("1. ") for note in notes)
    assert any(note.startswith("Left out: ") for note in notes)


def test_a_network_needs_data():
    with pytest.raises(gh.GlasshouseError, match="no data"):
        gh.check(nn.Linear(2, 2))

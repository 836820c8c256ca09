"""FedProx by name, with the key that people know; attacks repeat its pull."""

import pytest
import torch

from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.audit.attacking.needs import find_refusal
from glasshouse.audit.simulation.build import build
from glasshouse.errors import BadScenario
from glasshouse.scenario.load import load
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat

MINE = """
name = "fedprox"
[federation]
protocol = "fedprox"
clients = 4
local_epochs = 3
options = {proximal_mu = 0.1}
[model]
name = "mlp"
[[attacks]]
name = "inverting_gradients"
"""


def loaded(tmp_path, text=MINE):
    (tmp_path / "fedprox.toml").write_text(text)
    return load(str(tmp_path / "fedprox.toml"))


def test_its_factor_is_a_term_of_local_training(tmp_path):
    (scenario,) = loaded(tmp_path).scenarios
    terms = build(scenario, seed=0).setting.terms
    assert (terms.protocol, terms.training.proximal) == ("fedprox", 0.1)
    for attack in (InvertingGradients(), LinearInput()):
        assert find_refusal(attack, "attack", Threat(), Grants(), terms) is None


def test_its_updates_are_those_of_the_definition():
    """Two steps: w − r g(w), then pulled back by μ times the way from the received weights."""
    from_start = toy(protocol="fedprox", clients=1, examples=2, local_epochs=2, learning_rate=0.5)
    assert from_start.setting.terms.training.proximal == 0  # the toy states its terms itself
    played = {}
    for factor in (0.0, 0.8):
        training = from_start.setting.terms.training.model_copy(update={"proximal": factor})
        result = toy(
            protocol="fedprox", clients=1, examples=2, local_epochs=2, learning_rate=0.5, training=training
        )
        played[factor] = result.transcript.rounds[0].updates[0].tensors
    once = toy(protocol="fedavg", clients=1, examples=2, learning_rate=0.5)
    first = once.transcript.rounds[0].updates[0].tensors
    for name, t in played[0.8].items():
        pulled = played[0.0][name] - 0.5 * 0.8 * first[name]
        torch.testing.assert_close(t, pulled, rtol=1e-4, atol=1e-6)


def test_the_factor_is_stated_once(tmp_path):
    text = MINE.replace("[model]", "[federation.training]\nproximal = 0.5\n[model]")
    with pytest.raises(BadScenario, match=r"nothing beside federation\.options\.proximal_mu"):
        loaded(tmp_path, text)


def test_a_negative_factor_is_refused(tmp_path):
    with pytest.raises(BadScenario, match="proximal_mu"):
        loaded(tmp_path, MINE.replace("0.1}", "-0.1}"))

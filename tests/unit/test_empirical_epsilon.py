"""Canaries: what a run shows of a claimed ε. Slow tests look at many federations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from report_cards import described

from glasshouse.audit.simulation.build import build, guarantee_of
from glasshouse.audit.simulation.epsilon import measure_epsilon, with_canaries
from glasshouse.federation.protocols.fedavg import FedAvg
from glasshouse.report.terminal import lines
from glasshouse.results.outcome import exit_code
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.rng import Rng
from glasshouse.scenario.axes import cells, content_hash
from glasshouse.scenario.load import from_dict
from glasshouse.wire import Refusal

NOISE = {"name": "gaussian_mechanism", "epsilon": 4.0, "delta": 1e-5, "clip": 1.0}
DP_SGD = {"name": "dp_sgd", "clip": 1.0, "epsilon": 4.0, "delta": 1e-5}


def scenario(*defenses, seed=0, canaries=200, examples=8, claimed=4.0, data=None, model=None, **epsilon):
    return from_dict(
        {
            "name": "claims",
            "seed": seed,
            "data": {"auxiliary": 30, "heldout": 20, "examples": examples, **(data or {})},
            "model": model or {"name": "mlp"},
            "federation": {"protocol": "fedavg", "clients": 2, "batch_size": 8},
            "defenses": list(defenses),
            "attacks": [{"name": "label_inference"}],
            "audit": {"distractors": 9, "epsilon": {"claimed": claimed, "canaries": canaries, **epsilon}},
        }
    )


def measured(one) -> EmpiricalEpsilon:
    answer = measure_epsilon(cells(one)[0])
    assert isinstance(answer, EmpiricalEpsilon), answer
    return answer


@pytest.mark.parametrize(("defense", "unit"), [(NOISE, "client"), (DP_SGD, "example")])
def test_a_run_stays_below_what_is_proved(defense, unit):
    shown = measured(scenario(defense))
    assert shown.unit == unit
    assert shown.proved == pytest.approx(4.0, rel=1e-2)
    assert 0 < shown.shown <= shown.proved
    assert not shown.contradicted
    assert shown.gaussian is not None  # full batches


@pytest.mark.parametrize(
    "defense", [{**NOISE, "epsilon": 1e5}, {**DP_SGD, "epsilon": None, "noise_multiplier": 1e-3}]
)
def test_noise_that_is_off_is_found(defense):
    given = {key: value for key, value in defense.items() if value is not None}
    shown = measured(scenario(given, claimed=2.0))
    assert shown.correct == shown.guesses > 150
    assert shown.contradicted


def test_without_any_defence_canary_clients_show_it():
    shown = measured(scenario(claimed=2.0))
    assert (shown.proved, shown.gaussian, shown.unit) == (None, None, "client")
    assert shown.contradicted


def test_canary_clients_are_further_clients_and_send_through_the_defences():
    built = build(scenario(NOISE), seed=0)
    included = torch.tensor([True, False] * 10)
    setting, recorder = with_canaries(built.setting, included, unit="client", size=1.0, rng=Rng.root(0))
    assert setting.terms.clients == 2 + 20
    assert guarantee_of(setting) == guarantee_of(built.setting)
    loud = replace(setting, defenses=())
    FedAvg().play(loud, recorder=recorder, rng=Rng.root(1))
    assert recorder.scores.tolist() == [1.0, 0.0] * 10


def test_canary_examples_move_their_own_entries_and_those_that_are_out_do_not():
    quiet = {**{k: v for k, v in DP_SGD.items() if k != "epsilon"}, "noise_multiplier": 1e-6}
    built = build(scenario(quiet), seed=0)
    included = torch.arange(40) % 3 == 0
    setting, recorder = with_canaries(built.setting, included, unit="example", size=0.0, rng=Rng.root(0))
    FedAvg().play(setting, recorder=recorder, rng=Rng.root(1))
    assert float(recorder.scores[included].min()) > float(recorder.scores[~included].max())
    step = setting.terms.learning_rate * 1.0 / 8  # of a canary at the clip norm, in a batch of 8
    assert float(recorder.scores[included].median()) == pytest.approx(step, rel=0.5)


def test_canaries_that_do_not_fit_the_defence_are_refused():
    answer = measure_epsilon(cells(scenario(NOISE, unit="example"))[0])
    assert isinstance(answer, Refusal)
    assert "dp_sgd" in answer.fix
    answer = measure_epsilon(cells(scenario(NOISE, canaries=10**6))[0])
    assert "an entry of the update to itself" in answer.needs


def row(**changes) -> EmpiricalEpsilon:
    given = {"scenario": "ward", "cell": "0", "unit": "client", "claimed": 8.0, "proved": 8.0}
    given |= {"low": 2.1, "gaussian": None, "delta": 1e-5, "canaries": 1000, "guesses": 100, "correct": 92}
    return EmpiricalEpsilon(**{**given, "seconds": 1.0, **changes})


def test_the_report_says_what_was_claimed_shown_and_proved():
    told = "Claimed ε = 8; the run shows at least 2.1; at most 8 by the accountant"
    assert told in " ".join(lines(replace(described(), epsilons=(row(),)), width=400))
    loud = replace(described(), epsilons=(row(low=9.0),))
    assert exit_code(loud) == 1
    assert any("CONTRADICTION" in line for line in lines(loud))


def test_a_claim_is_part_of_what_a_cell_is_named_for():
    plain = content_hash(scenario(NOISE, claimed=0.0))
    assert plain == content_hash(scenario(NOISE, claimed=0.0))
    assert plain != content_hash(scenario(NOISE))


@pytest.mark.slow
@pytest.mark.parametrize("defense", [NOISE, DP_SGD])
def test_noise_off_is_found_in_19_of_20_federations_and_noise_on_accused_in_none(defense):
    off = {**{k: v for k, v in defense.items() if k != "epsilon"}}
    off |= {"epsilon": 1e5} if defense is NOISE else {"noise_multiplier": 1e-3}
    found = [measured(scenario(off, seed=s, canaries=1000, claimed=4.0)).contradicted for s in range(20)]
    accused = [measured(scenario(defense, seed=s, canaries=1000)).contradicted for s in range(20)]
    assert np.sum(found) >= 19
    assert np.sum(accused) <= 1

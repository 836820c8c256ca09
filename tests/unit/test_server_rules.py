"""Servers that step otherwise than by the mean, beside Flower's strategies on the same updates."""

import pytest
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi

from glasshouse.attacks.base import Needs
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.audit.attacking.needs import find_refusal
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.threat import Threat

RATE, ROUNDS = 0.05, 4
MOMENTS = {"beta1": 0.8, "beta2": 0.95, "tau": 0.01}
THEIR_MOMENTS = {"eta": RATE, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01}
STRATEGIES = {
    "fedavgm": (FedAvgM, {"server_learning_rate": RATE, "server_momentum": 0.7}, {"momentum": 0.7}),
    "fedadagrad": (FedAdagrad, {"eta": RATE, "tau": 0.1}, {"tau": 0.1}),
    "fedadam": (FedAdam, THEIR_MOMENTS, MOMENTS),
    "fedyogi": (FedYogi, THEIR_MOMENTS, MOMENTS),
}


def played(protocol, options, sends="parameters"):
    return toy(
        protocol=protocol,
        options=options,
        sends=sends,
        examples=4,
        batch_size=2,
        rounds=ROUNDS,
        server_rate=RATE,
    )


def sent(tensors):
    return ndarrays_to_parameters([t.numpy() for t in tensors.values()])


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_model_is_that_of_flower_to_rounding(name):
    """Flower's strategy has its own state and its own models; it gets only what clients sent."""
    kind, theirs, options = STRATEGIES[name]
    result = played(name, options)
    rounds = result.transcript.rounds
    strategy = kind(initial_parameters=sent(rounds[0].broadcasts[0].tensors), **theirs)
    models = [dict(record.broadcasts[0].tensors) for record in rounds[1:]] + [result.final]
    ok = Status(code=Code.OK, message="")
    for number, (record, ours) in enumerate(zip(rounds, models, strict=True), start=1):
        answers = [
            (None, FitRes(status=ok, parameters=sent(u.tensors), num_examples=u.examples, metrics={}))
            for u in record.updates
        ]
        parameters, _ = strategy.aggregate_fit(number, answers, [])
        for (tensor, t), array in zip(ours.items(), parameters_to_ndarrays(parameters), strict=True):
            other = torch.from_numpy(array).float()
            torch.testing.assert_close(t, other, rtol=1e-6, atol=1e-7, msg=f"round {number}, {tensor}")


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_is_not_the_mean(name):
    plain, other = played("fedavg", {}), played(name, STRATEGIES[name][2])
    first, second = (
        float((r.final["head.weight"] - r.setting.start["head.weight"]).norm()) for r in (plain, other)
    )
    assert abs(first - second) > 0.1 * first


class NeedsSums:
    """An attack of a client on the sums of rounds."""

    needs = Needs(sees=frozenset({"aggregate"}), scope="round")


@pytest.mark.parametrize(("name", "follows"), [("fedavg", True), ("fedadam", False), ("fedavgm", False)])
def test_only_of_a_mean_the_sum_follows_from_two_models(name, follows):
    result = played(name, {}, sends="delta")
    cohorts = Grants(cohorts={n: Cohort(selected=(0, 1, 2), dropped=(), examples=12) for n in range(2)})
    client = Threat(role="client", sees=frozenset({"broadcast"}), client=0)
    seen = cut(result.transcript, threat=client, grants=cohorts, own={}, memory={}, rounds=(0, 1))
    assert (seen.rounds[0].aggregate is not None) == follows
    refusal = find_refusal(NeedsSums(), "sums", client, cohorts, result.setting.terms)
    assert (refusal is None) == follows


def test_attacks_on_fedavg_read_their_updates():
    result = played("fedadam", {}, sends="delta")
    terms = result.setting.terms
    assert find_refusal(InvertingGradients(), "inverting_gradients", Threat(), Grants(), terms) is None

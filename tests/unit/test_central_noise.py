"""Noise that the server adds: what it does, against whom it proves something, what it does not cover."""

import itertools
import math

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from glasshouse.audit.simulation.build import guarantee_of
from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.accounting import spent_epsilon
from glasshouse.federation.defenses.gaussian_mechanism import GaussianMechanism
from glasshouse.federation.protocols.private.dp_fedavg import DpFedAvg, NoisySum
from glasshouse.federation.protocols.private.dp_ftrl import DpFtrl, NoisyTree, contributions
from glasshouse.rng import Rng
from glasshouse.settings import Training
from glasshouse.tensors import norm
from glasshouse.testing.toys import toy
from glasshouse.wire import Aggregate, Update


def update(client, size):
    direction = torch.randn(50, generator=torch.Generator().manual_seed(client))
    return Update(
        round=0, client=client, kind="delta", examples=4, tensors={"w": size * direction / direction.norm()}
    )


def summed(rule, updates, *, seed=0):
    parts = [rule.admit(one).tensors["w"].double() for one in updates]
    total = Aggregate(
        round=0,
        kind="delta",
        tensors={"w": torch.stack(parts).sum(0)},
        weight=float(len(parts)),
        selected=tuple(range(len(parts))),
        examples=4,
    )
    return rule.release(total, rng=Rng.root(seed))


def test_updates_are_clipped_and_the_noise_has_its_size():
    rule = NoisySum(how=DpFedAvg(clip=2.0, noise_multiplier=0.5))
    assert norm(rule.admit(update(0, 7.0)).tensors) == pytest.approx(2.0)
    assert norm(rule.admit(update(0, 1.5)).tensors) == pytest.approx(1.5)
    plain = torch.stack([update(c, 1.0).tensors["w"].double() for c in range(3)]).sum(0)
    draws = [
        summed(rule, [update(c, 1.0) for c in range(3)], seed=s).tensors["w"] - plain for s in range(200)
    ]
    assert float(torch.stack(draws).std()) == pytest.approx(0.5 * 2.0, rel=0.03)


def test_the_clip_follows_a_quantile():
    """Norms 1 to 10: half of them lie below 5.5."""
    rule = NoisySum(how=DpFedAvg(clip=0.1, noise_multiplier=0.01, quantile=0.5))
    for number in range(150):
        summed(rule, [update(c, float(c + 1)) for c in range(10)], seed=number)
    assert 4.5 < rule.clip < 6.5


def test_sum_and_count_together_cost_what_is_stated():
    """Two Gaussian releases of sensitivities 1 and 1/2 compose to one of the stated multiplier."""
    rule = NoisySum(how=DpFedAvg(noise_multiplier=0.8, quantile=0.5, count_noise=3.0))
    together = (rule.sum_noise(20) ** -2 + (2 * rule.counted(20)) ** -2) ** -0.5
    assert together == pytest.approx(0.8)
    assert NoisySum(how=DpFedAvg(noise_multiplier=0.8)).sum_noise(20) == 0.8


def federation(**settings):
    fields = {"protocol": "dp_fedavg", "examples": 4, "batch_size": 2, "rounds": 3, **settings}
    return toy(**fields)


def test_it_protects_against_other_clients_and_not_against_the_server():
    setting = federation(options={"noise_multiplier": 2.0, "clip": 0.5}).setting
    assert guarantee_of(setting) is None
    proved = guarantee_of(setting, "client")
    assert proved is not None
    assert (proved.defense, proved.neighbours, proved.steps) == ("dp_fedavg", "update", 3)
    assert proved.epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(3), 1e-5))
    assert proved.any_two > proved.epsilon


def test_the_stronger_of_both_proofs_holds_against_clients():
    strong = GaussianMechanism(noise_multiplier=50.0, clip=1.0)
    setting = federation(defenses=[strong], options={"noise_multiplier": 2.0}).setting
    assert guarantee_of(setting).defense == guarantee_of(setting, "client").defense == "gaussian_mechanism"


def test_running_statistics_have_no_noise_and_no_proof():
    how = Training(mode="training")
    with pytest.raises(Inapplicable, match="running statistics"):
        federation(model="resnet18", arguments={"width": 4}, training=how, clients=2)
    own = toy(
        protocol="fedavg", model="resnet18", arguments={"width": 4}, clients=2, examples=2, training=how,
        defenses=[GaussianMechanism(noise_multiplier=2.0, clip=1.0)],
    )  # fmt: skip
    assert guarantee_of(own.setting) is None
    kept = Training(mode="training", personal=("*bn*", "*norm*", "*downsample*"))
    still = toy(
        protocol="fedavg", model="mlp", clients=2, examples=2, training=Training(mode="training"),
        defenses=[GaussianMechanism(noise_multiplier=2.0, clip=1.0)],
    )  # fmt: skip
    assert guarantee_of(still.setting) is not None
    del kept


QUESTIONS = {
    "Abadi et al. 2016, section 5: noise 4, lots of 600 of 60,000, 10,000 steps": (4.0, 0.01, 10_000, 1e-5),
    "TensorFlow Privacy's tutorial: noise 1.3, 250 of 60,000, 15 epochs": (1.3, 250 / 60_000, 3600, 1e-5),
    "Opacus's MNIST example: noise 1.0, 64 of 60,000, 10 epochs": (1.0, 64 / 60_000, 9380, 1e-5),
    "Opacus's CIFAR-10 tutorial: noise 0.38, 512 of 50,000, 20 epochs": (0.38, 512 / 50_000, 1960, 1e-5),
    "one round of noise 4.84 on everybody": (4.84, 1.0, 1, 1e-5),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_public_questions_have_dp_accountings_answers(question):
    noise, rate, steps, delta = QUESTIONS[question]
    once = dp_accounting.GaussianDpEvent(noise)
    event = dp_accounting.SelfComposedDpEvent(
        once if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, once), steps
    )
    stated = {"delta": delta, "rate": rate, "steps": steps, "neighbours": "example"}
    exact = PLDAccountant().compose(event).get_epsilon(delta)
    assert spent_epsilon(noise, **stated) == pytest.approx(exact, rel=1e-3)
    moments = RdpAccountant().compose(event).get_epsilon(delta)
    assert spent_epsilon(noise, **stated, accountant="rdp") == pytest.approx(moments, rel=1e-3)


@pytest.mark.parametrize("noise", [1e-90, 1e-30, 1e-9, 1e-5, 1e-3])
def test_tiny_noise_is_infinite_or_large_and_no_error(noise):
    for rate in (1.0, 0.01):
        spent = spent_epsilon(noise, delta=1e-5, rate=rate, steps=100, neighbours="example")
        assert spent > 1e4


def nodes_of(rounds):
    """The nodes whose noise some model holds, as sets of rounds: t in binary, for every t."""
    found = set()
    for end in range(1, rounds + 1):
        while end:
            size = end & -end
            found.add(frozenset(range(end - size, end)))
            end -= size
    return found


@pytest.mark.parametrize("apart", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 9])
def test_no_pattern_of_contributions_costs_more_than_is_counted(rounds, apart):
    """Every pattern that ``apart`` allows, one by one; the bound is reached at both ends."""
    nodes = nodes_of(rounds)
    worst = 0
    for chosen in itertools.product((0, 1), repeat=rounds):
        times = [t for t, taken in enumerate(chosen) if taken]
        if all(b - a >= apart for a, b in itertools.pairwise(times)):
            worst = max(worst, sum(len(node & set(times)) ** 2 for node in nodes))
    assert worst <= contributions(rounds, apart)
    if apart == 1 or apart >= rounds:
        assert worst == contributions(rounds, apart)


def test_a_tree_costs_no_more_than_dp_accounting_says():
    """One contribution is in log2(T) + 1 nodes; the Rényi bound of the same event is above the exact ε."""
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(4.0, 1024)
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    bound = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    proved = DpFtrl(noise_multiplier=4.0, apart=1024).against_clients(1024).epsilon
    assert proved == pytest.approx(dp_accounting.get_epsilon_gaussian(4.0 / math.sqrt(11), 1e-5))
    assert 0.8 * bound < proved <= bound


def test_the_noise_of_the_model_grows_with_the_nodes_of_the_round_and_not_with_the_rounds():
    rule, noise = NoisyTree(how=DpFtrl(clip=2.0, noise_multiplier=0.5)), 0.0
    still = {"w": torch.zeros(20_000, dtype=torch.float64)}
    zeros = Aggregate(round=0, kind="delta", tensors=still, weight=2.0, selected=(0, 1), examples=4)
    for number in range(1, 12):
        noise = noise + rule.release(zeros, rng=Rng.root(number)).tensors["w"]
        assert float(noise.std()) == pytest.approx(math.sqrt(number.bit_count()), rel=0.03)


def test_what_a_client_sends_too_soon_is_left_out():
    rule = NoisyTree(how=DpFtrl(apart=3))
    sizes = []
    for _ in range(5):
        sizes.append(round(float(norm(rule.admit(update(0, 7.0)).tensors)), 3))
        summed(rule, [update(1, 1.0)])
    assert sizes == [1.0, 0.0, 0.0, 1.0, 0.0]


def test_a_federation_with_the_noise_of_a_tree_protects_against_other_clients():
    setting = federation(protocol="dp_ftrl", options={"noise_multiplier": 2.0, "apart": 3}).setting
    assert guarantee_of(setting) is None
    proved = guarantee_of(setting, "client")
    assert (proved.defense, proved.neighbours) == ("dp_ftrl", "update")
    assert proved.epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(2), 1e-5))

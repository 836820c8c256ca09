"""Which chains of defences prove something, and what."""

import math

import pytest

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.federation.defenses.gaussian_mechanism import GaussianMechanism
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.federation.defenses.guarantee import Exposure, guarantee
from glasshouse.federation.defenses.prune import Prune
from glasshouse.federation.defenses.soteria import Soteria
from glasshouse.federation.defenses.subsample import Subsample

ONE = Exposure(rounds=1)
MECHANISM = GaussianMechanism(epsilon=2.0, delta=1e-5, clip=1.0)
SGD = DpSgd(clip=1.0, epsilon=1.0)


def test_noise_without_a_bound_proves_nothing():
    assert guarantee([], ONE) is None
    assert guarantee([GaussianNoise(std=100.0)], ONE) is None
    assert guarantee([Clip(norm=1.0), Prune(share=0.5), GaussianNoise(std=100.0)], ONE) is None
    assert guarantee([GaussianNoise(std=100.0), Clip(norm=1.0)], ONE) is None


@pytest.mark.parametrize("rounds", [1, 20])
def test_clipping_before_noise_proves_what_the_mechanism_does(rounds):
    """A client-side mechanism at a nominal ε of 10 a round costs 10.4 in one round and 81 in twenty."""
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    exposure = Exposure(rounds=rounds)
    plain = guarantee([Clip(norm=2.0), GaussianNoise(std=2 * sigma)], exposure)
    named = guarantee([GaussianMechanism(noise_multiplier=sigma, clip=2.0)], exposure)
    assert plain is not None
    assert named is not None
    assert (plain.epsilon, plain.any_two, plain.neighbours) == (named.epsilon, named.any_two, "update")
    assert plain.epsilon == pytest.approx({1: 10.4, 20: 81}[rounds], rel=0.01)
    assert plain.any_two == pytest.approx({1: 25.4, 20: 248}[rounds], rel=0.02)


def test_noise_too_small_to_count_proves_nothing():
    assert guarantee([GaussianMechanism(noise_multiplier=1e-200, clip=1.0)], ONE) is None


@pytest.mark.parametrize("levels", [{}, {"epsilon": 1.0, "noise_multiplier": 1.0}, {"noise_multiplier": 0.0}])
def test_the_mechanism_needs_one_level(levels):
    with pytest.raises(BadValue, match="either noise_multiplier or epsilon"):
        GaussianMechanism(clip=1.0, **levels)


def test_what_follows_a_private_result_costs_nothing():
    result = guarantee([Soteria(share=0.5), Clip(norm=9.0), MECHANISM, Prune(share=0.9)], ONE)
    assert result is not None
    assert (result.neighbours, result.defense, result.delta) == ("update", "gaussian_mechanism", 1e-5)
    assert result.epsilon == pytest.approx(2.0, rel=1e-6)


def test_a_look_at_the_private_batch_afterwards_voids_it():
    assert guarantee([MECHANISM, Soteria(share=0.5)], ONE) is None
    assert guarantee([Soteria(share=0.5), SGD], ONE) is None  # local: acts before both


def test_whole_updates_come_before_single_examples():
    result = guarantee([SGD, MECHANISM], ONE)
    assert result is not None
    assert result.neighbours == "update"


def test_more_rounds_cost_more():
    epsilons = [MECHANISM.spent(Exposure(rounds=rounds)).epsilon for rounds in (1, 4, 100)]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] > 10 * epsilons[0]


def test_a_budget_for_all_rounds_is_met_by_all_rounds():
    spread = GaussianMechanism(epsilon=2.0, delta=1e-5, clip=1.0, rounds=100)
    assert spread.spent(Exposure(rounds=100)).epsilon == pytest.approx(2.0, rel=1e-6)
    assert spread.noise == pytest.approx(10 * MECHANISM.noise)


def test_hidden_cohorts_need_less_noise():
    hidden = GaussianMechanism(epsilon=2.0, delta=1e-5, clip=1.0, rounds=20, sampling=0.2)
    gaussian_mechanism = GaussianMechanism(epsilon=2.0, delta=1e-5, clip=1.0, rounds=20)
    assert hidden.noise < 0.5 * gaussian_mechanism.noise
    assert hidden.spent(Exposure(rounds=20, sampling=0.2)).epsilon == pytest.approx(2.0, rel=0.01)


def test_training_on_a_part_of_the_data_uses_that_part_more():
    sgd = DpSgd(clip=1.0, noise_multiplier=1.0)
    exposure = Exposure(rounds=1, steps=4, batch_rate=0.1)
    whole, part = guarantee([sgd], exposure), guarantee([sgd, Subsample(share=0.5)], exposure)
    assert whole is not None
    assert part is not None
    assert part.epsilon == sgd.spent(Exposure(rounds=1, steps=4, batch_rate=0.2)).epsilon > whole.epsilon


def test_the_description_says_when_cohorts_must_be_hidden():
    hidden = GaussianMechanism(epsilon=2.0, delta=1e-5, clip=1.0, sampling=0.5).describe()
    assert hidden.note.endswith("counts on nobody seeing who takes part")
    assert "counts on" not in MECHANISM.describe().note


@pytest.mark.parametrize(
    "settings", [{"rounds": 0}, {"rounds": 1, "sampling": 0.0}, {"rounds": 1, "batch_rate": 1.1}]
)
def test_refuses_an_exposure_that_cannot_be(settings):
    with pytest.raises(BadValue, match="privacy guarantee"):
        Exposure(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"epsilon": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"clip": 0.0}, {"rounds": 0}, {"sampling": 1.5}],
)
def test_the_mechanism_refuses_what_has_no_meaning(settings):
    with pytest.raises(BadValue, match="defense 'gaussian_mechanism'"):
        GaussianMechanism(**{"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, **settings})

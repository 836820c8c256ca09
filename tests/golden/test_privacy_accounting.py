"""Privacy budgets and noise against a second, independent source, to 1 %.

Sources: Opacus's accountants (another implementation of the same bounds); Balle & Wang 2018,
arXiv:1805.06530, Theorem 8, evaluated here with scipy (the exact condition for one Gaussian release).
"""

import math

import pytest
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis import rdp
from scipy.optimize import brentq
from scipy.stats import norm

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.accounting import needed_noise, spent_epsilon
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.federation.defenses.gaussian_mechanism import GaussianMechanism
from glasshouse.federation.defenses.guarantee import Exposure

DELTA = 1e-5
TRAINING = [(1.0, 0.01, 1000), (0.7, 0.1, 100), (2.0, 0.2, 300), (4.0, 1.0, 50)]  # noise, rate, steps
ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512]


@pytest.mark.parametrize(("noise", "rate", "steps"), TRAINING[:3])
def test_epsilon_of_dp_sgd_agrees_with_opacus_prv(noise, rate, steps):
    """Numerical composition: privacy random variables there, privacy loss distributions here.

    Opacus divides by zero at rate 1; that case is the exact one of the update mechanism below.
    """
    opacus = PRVAccountant()
    opacus.history = [(noise, rate, steps)]
    exposure = Exposure(rounds=1, steps=steps, batch_rate=rate)
    ours = DpSgd(clip=1.0, delta=DELTA, noise_multiplier=noise).spent(exposure)
    assert ours.epsilon == pytest.approx(opacus.get_epsilon(DELTA, eps_error=0.001), rel=0.01)


@pytest.mark.parametrize(("noise", "rate", "steps"), TRAINING)
def test_renyi_epsilon_agrees_with_opacus_rdp(noise, rate, steps):
    curve = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=ORDERS)
    theirs, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=curve, delta=DELTA)
    ours = spent_epsilon(noise, delta=DELTA, rate=rate, steps=steps, neighbours="example", accountant="rdp")
    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(("noise", "rate", "steps"), TRAINING)
def test_renyi_epsilon_is_an_upper_bound_of_the_tight_one(noise, rate, steps):
    budget = {"delta": DELTA, "rate": rate, "steps": steps, "neighbours": "example"}
    assert spent_epsilon(noise, **budget) < spent_epsilon(noise, accountant="rdp", **budget)


def exact_noise(epsilon: float, delta: float) -> float:
    """The σ (sensitivity 1) at which Φ(1/2σ − εσ) − e^ε·Φ(−1/2σ − εσ) = δ."""

    def gap(sigma: float) -> float:
        high, low = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return norm.cdf(high) - math.exp(epsilon + norm.logcdf(low)) - delta

    return brentq(gap, 1e-4, 1e4, xtol=1e-10)


@pytest.mark.parametrize("rounds", [1, 100])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0, 1e4, 999_999.0])
def test_noise_of_the_update_mechanism_is_the_exact_one(epsilon, rounds):
    """T releases of one Gaussian mechanism are one release with a standard deviation √T times smaller."""
    ours = GaussianMechanism(epsilon=epsilon, delta=DELTA, clip=3.0, rounds=rounds)
    expected = exact_noise(epsilon, DELTA) * math.sqrt(rounds)
    assert ours.noise == pytest.approx(expected, rel=0.01)
    assert ours.describe().parameters["std"] == pytest.approx(3 * expected, rel=0.01)
    assert ours.spent(Exposure(rounds=rounds)).epsilon == pytest.approx(epsilon, rel=1e-6)


def test_a_budget_beyond_which_nothing_was_checked_is_refused():
    with pytest.raises(BadValue, match=r"epsilon, in \(0, 1e6\)"):
        GaussianMechanism(epsilon=1e6, delta=DELTA, clip=1.0)


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(8.0, 0.2, 100), (1.0, 0.05, 50)])
def test_sampled_noise_agrees_with_opacus(epsilon, rate, steps):
    """The noise found for a budget spends, by Opacus's accountant, that budget."""
    opacus = PRVAccountant()
    noise = needed_noise(epsilon, delta=DELTA, rate=rate, steps=steps, neighbours="example")
    opacus.history = [(noise, rate, steps)]
    assert opacus.get_epsilon(DELTA, eps_error=0.001) == pytest.approx(epsilon, rel=0.01)

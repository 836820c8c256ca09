"""Privacy accounting of the Gaussian mechanism, by dp-accounting.

Source: Balle & Wang 2018, arXiv:1805.06530 (exact, where every record is in every step); Doroshenko et al.
2022, "Connect the Dots", arXiv:2207.04380 (privacy loss distributions, where steps sample records);
Mironov et al. 2019, arXiv:1908.10530 (Rényi accounting of the sampled mechanism, for comparison). The noise
is drawn in floating point: fine for an audit, no protection against attacks on the sampler.
"""

import functools
import math
from typing import Any, Final, Literal

from glasshouse.errors import BadValue, not_installed

try:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant
except ImportError as error:
    raise not_installed("differential privacy", "dp-accounting", error, extra="dp") from error

LARGEST: Final = 1e6
"""Largest noise multiplier or ε that a defence takes."""
SMALLEST: Final = 1e-6
"""Noise multipliers below this prove nothing: ε would be above 10^11, which no computation needs exactly."""
STEADY: Final = 10
"""Root of the number of steps from which on the grid of privacy losses gets finer."""
Accountant = Literal["pld", "rdp"]
Neighbours = Literal["example", "update"]
"""``example``: add or remove one example. ``update``: replace the client's update by zeros."""

_RELATIONS = {
    "example": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "update": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


def check_level(subject: str, noise_multiplier: float | None, epsilon: float | None) -> None:
    """Raise unless exactly one of the two is given, in (0, 1e6).

    Raises:
        BadValue: neither, both, or out of range.
    """
    levels = [value for value in (noise_multiplier, epsilon) if value is not None]
    if len(levels) != 1 or not 0 < levels[0] < LARGEST:
        raise BadValue(
            subject,
            needs="either noise_multiplier or epsilon, in (0, 1e6)",
            got=f"noise_multiplier = {noise_multiplier}, epsilon = {epsilon}",
            fix="try noise_multiplier = 1",
        )


@functools.cache
def spent_epsilon(
    noise_multiplier: float,
    *,
    delta: float,
    rate: float,
    steps: int,
    neighbours: Neighbours,
    accountant: Accountant = "pld",
) -> float:
    """ε after ``steps`` Gaussian mechanisms at ``delta``; infinite where the noise is too small to count.

    Args:
        noise_multiplier: standard deviation ÷ sensitivity; > 0.
        delta: in (0, 1).
        rate: probability of each record to be in a step (Poisson sampling), in (0, 1]; 1: in all steps.
        steps: number of adaptive compositions, >= 1.
        neighbours: the neighbouring relation.
        accountant: ``pld`` is tight (exact for rate 1); ``rdp`` is an upper bound.
    """
    if noise_multiplier / (math.sqrt(steps) if rate == 1 else 1.0) < SMALLEST:
        return math.inf
    try:
        if rate == 1 and accountant == "pld":  # T Gaussians compose to one with standard deviation σ / √T
            return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(steps), delta))
        ledger = _accountant(accountant, neighbours, noise_multiplier, steps)
        return float(ledger.compose(_event(noise_multiplier, rate, steps)).get_epsilon(delta))
    except (OverflowError, ZeroDivisionError):  # exp(ε) of such noise exceeds every float
        return math.inf


@functools.cache
def needed_noise(epsilon: float, *, delta: float, rate: float, steps: int, neighbours: Neighbours) -> float:
    """The smallest noise multiplier (to 0.1 %) with ε <= ``epsilon``; arguments as above."""
    if rate == 1:
        return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    budget = {"delta": delta, "rate": rate, "steps": steps, "neighbours": neighbours}
    low = high = 1.0
    while spent_epsilon(high, **budget) > epsilon:
        low, high = high, 2 * high
    while low == high or spent_epsilon(low, **budget) <= epsilon:
        low, high = low / 2, low
    multiplier = dp_accounting.calibrate_dp_mechanism(
        lambda: _accountant("pld", neighbours, low, steps),
        lambda sigma: _event(sigma, rate, steps),
        epsilon,
        delta,
        dp_accounting.ExplicitBracketInterval(low, high),
        tol=1e-3 * low,
    )
    return float(multiplier)


def _event(sigma: float, rate: float, steps: int) -> Any:  # dp-accounting ships no types
    once = dp_accounting.GaussianDpEvent(sigma)
    sampled = once if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, once)
    return dp_accounting.SelfComposedDpEvent(sampled, steps)


def _accountant(name: Accountant, neighbours: Neighbours, sigma: float, steps: int) -> Any:
    if name == "rdp":
        return RdpAccountant(neighboring_relation=_RELATIONS[neighbours])
    # The privacy loss of one step spans about 1/σ² + 10/σ, and rounding adds up over steps: this grid costs
    # < 0.1 % of ε where measured (up to 10,000 steps).
    spread = 1 / sigma**2 + 10 / sigma
    interval = 5e-5 * spread / max(1.0, math.sqrt(steps) / STEADY)
    return PLDAccountant(_RELATIONS[neighbours], value_discretization_interval=interval)

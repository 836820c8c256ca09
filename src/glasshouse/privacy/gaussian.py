"""Gaussian differential privacy: one number μ instead of (ε, δ), in closed form.

A mechanism is μ-GDP if distinguishing neighbouring datasets is at least as hard as distinguishing N(0, 1)
from N(μ, 1). T Gaussian releases with noise multiplier σ in which every record takes part have μ = √T / σ.
Larger μ is less private.
"""

import math
from typing import Annotated

import scipy
from annotated_types import Gt, Le
from scipy.special import log_ndtr, ndtr, ndtri

from glasshouse.errors import BadValue
from glasshouse.limits import Fix, Probability, Share, Unit, check_value

LARGEST_MU = 1e4

_SHARE = Annotated[Unit, Fix("give rates as fractions: 0.01 for one in a hundred")]
_RECORDS = Fix("take one below 1 / number of records, such as 1e-5")
_ABOVE_ZERO, _FROM_ZERO = Annotated[Probability, _RECORDS], Annotated[Share, _RECORDS]
_ROOT = Fix("mu is the square root of the number of releases, over the noise multiplier")
_MU = Annotated[float, Gt(0), Le(LARGEST_MU), _ROOT]


def gaussian_delta(epsilon: float, *, mu: float) -> float:
    """Smallest δ for which μ-GDP is (ε, δ)-DP; larger is less private.

    Args:
        epsilon: any real number; negative values are needed for success rates near 1.
        mu: > 0.

    Raises:
        BadValue: ``mu`` is not a number in (0, 1e4].

    Source:
        Balle & Wang 2018, arXiv:1805.06530, Theorem 8; Dong, Roth & Su 2022, "Gaussian Differential Privacy",
        arXiv:1905.02383, Corollary 2.13.

    Examples:
        >>> round(gaussian_delta(1.0, mu=1.0), 6)
        0.126937
    """
    _check_mu(mu)
    far = float(log_ndtr(-mu / 2 - epsilon / mu)) + epsilon
    return max(0.0, float(ndtr(mu / 2 - epsilon / mu)) - math.exp(far))


def gaussian_epsilon(mu: float, *, delta: float) -> float:
    """Smallest ε >= 0 for which μ-GDP is (ε, δ)-DP; larger is less private.

    Args:
        mu: in [0, 1e4]; 0 is perfect privacy.
        delta: in (0, 1).

    Raises:
        BadValue: an argument is out of range.

    Source:
        The inverse of :func:`gaussian_delta`.

    Examples:
        >>> round(gaussian_epsilon(1.0, delta=0.126937), 3)
        1.0
    """
    check_delta(delta, lowest_allowed=False)
    if mu == 0 or gaussian_delta(0.0, mu=mu) <= delta:
        return 0.0
    top = mu * mu / 2 + mu * (abs(float(ndtri(delta))) + 1)  # at this ε the first term alone is below δ
    return float(scipy.optimize.brentq(lambda e: gaussian_delta(e, mu=mu) - delta, 0.0, top, xtol=1e-10))


def gaussian_mu(epsilon: float, *, delta: float) -> float:
    """Largest μ for which μ-GDP is (ε, δ)-DP.

    Args:
        epsilon: >= 0 and finite.
        delta: in (0, 1).

    Raises:
        BadValue: an argument is out of range.

    Source:
        The inverse of :func:`gaussian_delta` in μ.

    Examples:
        >>> round(gaussian_mu(1.0, delta=0.126937), 3)
        1.0
    """
    check_delta(delta, lowest_allowed=False)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise BadValue("privacy budget", needs="epsilon >= 0", got=f"{epsilon}", fix="give a finite number")
    top = 1.0
    while gaussian_delta(epsilon, mu=top) < delta:
        top *= 2
    root = scipy.optimize.brentq(lambda m: gaussian_delta(epsilon, mu=m) - delta, 1e-12, top, xtol=1e-12)
    return float(root)


def gaussian_share(chance: float, *, mu: float) -> float:
    """Upper bound on the success rate of any attack on μ-GDP: Φ(Φ⁻¹(κ) + μ); larger is worse for privacy.

    Args:
        chance: κ, the success rate of the best guess without the update, in [0, 1].
        mu: >= 0.

    Raises:
        BadValue: an argument is out of range.

    Source:
        Dong, Roth & Su 2022, arXiv:1905.02383, Equation (6), read as power at level κ.

    Examples:
        >>> round(gaussian_share(0.01, mu=1.0), 4)
        0.0924
    """
    check_share("chance", chance)
    if mu != 0:
        _check_mu(mu)
    return float(ndtr(ndtri(chance) + mu))


def check_share(name: str, value: float) -> None:
    """Raise unless ``value`` is a fraction.

    Raises:
        BadValue: it is not a number in [0, 1].
    """
    check_value("privacy bound", name, value, _SHARE)


def check_delta(delta: float, *, lowest_allowed: bool) -> None:
    """Raise unless ``delta`` is in (0, 1), or 0 where that is allowed.

    Raises:
        BadValue: it is out of range.
    """
    check_value("privacy budget", "delta", delta, _FROM_ZERO if lowest_allowed else _ABOVE_ZERO)


def _check_mu(mu: float) -> None:
    check_value("Gaussian differential privacy", "mu", mu, _MU)

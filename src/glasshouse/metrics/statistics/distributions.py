"""Quantiles and tails of Student's t, the normal and the beta distribution, for scalars.

They call the functions behind ``scipy.stats`` directly, because its distributions spend 30 to 50 µs per call
on checking their arguments: most of the time of an interval over a handful of victims; and its import takes
half a second.
"""

from collections.abc import Sequence

import numpy as np
import scipy


def student_quantile(share: float, freedom: float) -> float:
    """The ``share`` quantile of Student's t with ``freedom`` degrees of freedom.

    Examples:
        >>> round(student_quantile(0.975, 7), 3)
        2.365
    """
    return float(scipy.special.stdtrit(freedom, share))


def student_tail(value: float, freedom: float) -> float:
    """The probability that Student's t exceeds ``value``.

    Examples:
        >>> student_tail(0.0, 7)
        0.5
    """
    return float(scipy.special.stdtr(freedom, -value))


def normal_tail(value: float) -> float:
    """The probability that a standard normal variable exceeds ``value``.

    Examples:
        >>> normal_tail(0.0)
        0.5
    """
    return float(scipy.special.ndtr(-value))


def beta_quantile(share: float, a: float, b: float) -> float:
    """The ``share`` quantile of the beta distribution with ``a``, ``b`` > 0.

    Examples:
        >>> round(beta_quantile(0.25, 1, 1), 6)
        0.25
    """
    return float(scipy.special.betaincinv(a, b, share))


def beta_share(value: float, a: float, b: float) -> float:
    """The distribution function at ``value`` of the beta distribution with ``a``, ``b`` > 0.

    Examples:
        >>> round(beta_share(0.25, 1, 1), 6), beta_share(1.5, 1, 1)
        (0.25, 1.0)
    """
    return float(scipy.special.betainc(a, b, min(max(value, 0.0), 1.0)))


def fisher_combination(p_values: Sequence[float]) -> float:
    """The p-value of independent tests together, by Fisher's method.

    Args:
        p_values: at least one, each in (0, 1].

    Source:
        Fisher 1925, "Statistical Methods for Research Workers", section 21.1.

    Examples:
        >>> round(fisher_combination([0.05, 0.05]), 4), fisher_combination([1.0])
        (0.0175, 1.0)
    """
    return float(scipy.special.chdtrc(2 * len(p_values), -2 * np.sum(np.log(p_values))))

"""What an attack proves about differential privacy: the guarantee cannot be better than this ε."""

import math
from dataclasses import dataclass
from typing import final

from glasshouse.errors import BadValue
from glasshouse.metrics.shares import proportion_bounds


@final
@dataclass(frozen=True, kw_only=True)
class EpsilonBound:
    """A lower bound of ε, with the counts behind it.

    Attributes:
        value: no mechanism with a smaller ε (at ``delta``) explains the attack's success, at ``level``; ≥ 0.
        delta: the δ it is for. members, others: how many of each were judged. level: confidence.
    """

    value: float
    delta: float
    members: int
    others: int
    level: float


def epsilon_lower_bound(
    *, caught: int, members: int, alarms: int, others: int, delta: float = 0.0, level: float = 0.95
) -> EpsilonBound:
    """The largest ε that the attack's hits and false alarms refute, from exact bounds of both.

    (ε, δ) forces TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ. TPR is bounded from below and FPR from above,
    each one-sided at half of ``1 - level``, so both hold together; the same two bounds serve both lines. A
    coin gives 0. It says nothing about how good the guarantee is: a weak attack gives 0 too.

    The decision rule (its threshold) must have been fixed before these clients were judged.

    Args:
        caught, members: members called members, of all members.
        alarms, others: non-members called members, of all non-members.
        delta: in [0, 1). level: confidence, in (0, 1).

    Raises:
        BadValue: counts or rates out of range. Undefined: no members or no non-members.

    Source:
        Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 2.1 (the region); Jagielski, Ullman & Oprea
        2020, arXiv:2006.07709, Section 3 (the bound by Clopper-Pearson).

    Example:
        >>> round(epsilon_lower_bound(caught=500, members=500, alarms=0, others=500).value, 2)
        4.91
    """
    if not (0 <= delta < 1 and 0 < level < 1):
        raise BadValue(
            "lower bound of epsilon",
            needs="delta in [0, 1) and level in (0, 1)",
            got=f"delta = {delta}, level = {level}",
            fix="give the delta of the claimed guarantee",
        )
    each = 1 - (1 - level) / 2
    hit_least, _ = proportion_bounds(caught, members, level=each)
    _, alarm_most = proportion_bounds(alarms, others, level=each)
    value = max(0.0, _ratio(hit_least - delta, alarm_most), _ratio(1 - alarm_most - delta, 1 - hit_least))
    return EpsilonBound(value=value, delta=delta, members=members, others=others, level=level)


def _ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 else 0.0

"""Metrics of membership and property inference. Pure functions of scores, decisions and ground truth.

The unit is the client, pooled over runs (seeds); N clients. All of them increase as privacy gets worse.
Clients of one run share a detector and a federation: pass ``runs`` to make the intervals account for it. The
variance between runs cannot be estimated from one run, nor well from a few: a single run is treated as if
``runs`` were None.
"""

import math
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import NDArray

from glasshouse.errors import BadValue, Undefined
from glasshouse.limits import Fix, Fraction, check_value
from glasshouse.metrics.statistics.interval import Interval, check_level
from glasshouse.metrics.statistics.shares import share_interval

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def tpr_at_fpr(
    scores: Floats, member: Bools, *, fpr: float, runs: Ints | None = None, level: float = 0.95
) -> Interval:
    """Share of members with "score > τ", where a new non-member exceeds τ with probability at most ``fpr``.

    τ is the k-th highest score of the M non-members, with k = ⌊fpr (M + 1)⌋: a non-member that was not used
    to choose τ then exceeds it with probability k / (M + 1). The lowest τ with at most ``fpr`` false alarms
    *among the non-members used to choose it* (the ROC curve) is too optimistic: with 100 non-members and
    fpr 0.01, twice as many new non-members exceed it. Splitting the non-members in two would be unbiased too,
    but waste half of them. Chance is about ``fpr``. Only the order of scores matters. A member that ties
    with τ does not count as detected.

    Args:
        scores: ``(N,)``, any unit, higher is more likely a member; finite.
        member: ``(N,)``, the truth.
        fpr: tolerated share of non-members called members, in (0, 1].
        runs: ``(N,)``, the run of each client; None: clients are independent.
        level: coverage, in (0, 1).

    Returns:
        The share and its exact interval over members; τ is held fixed, so the sampling error of the
        non-members that determine it is not covered: ``permutation`` covers it for the gain.

    Raises:
        BadValue: shapes differ, a score is not finite, or ``fpr`` or ``level`` is out of range.
        Undefined: no members, or too few non-members to resolve ``fpr``.

    Source:
        Carlini et al. 2022, arXiv:2112.03570, Section III (why low false-positive rates); Vovk et al. 2005,
        "Algorithmic Learning in a Random World" (the rule for τ: a conformal p-value of at most ``fpr``).

    Examples:
        >>> scores, member = np.array([0.9, 0.6, 0.5, 0.7, 0.2, 0.1]), np.array([1, 1, 1, 0, 0, 0], bool)
        >>> interval = tpr_at_fpr(scores, member, fpr=0.5)
        >>> interval.value, interval.n, round(interval.low, 3)
        (1.0, 3, 0.292)
    """
    _check("tpr_at_fpr", scores, member, level)
    check_value("metric 'tpr_at_fpr'", "fpr", fpr, Annotated[Fraction, Fix("0.01 for one in a hundred")])
    others = int((~member).sum())
    alarms = tolerated_rank(fpr, others)
    if alarms == 0 or not member.any():
        raise Undefined(
            "metric 'tpr_at_fpr'",
            needs=f"at least 1 member, and {math.ceil(1 / fpr - 1e-9) - 1} non-members for fpr = {fpr}",
            got=f"{int(member.sum())} members, {others} non-members",
            fix="pool more runs, or ask for a higher fpr",
        )
    threshold = np.sort(scores[~member])[others - alarms] if alarms <= others else -np.inf
    return _share_among(member, scores > threshold, runs, level)


def tolerated_rank(fpr: float, others: int) -> int:
    """Rank of the non-member whose score is the threshold, 1 for the highest; 0: too few non-members."""
    # The slack makes up for rounding: 0.29 * 100 < 29 in floating point.
    return math.floor(fpr * (others + 1) + 1e-9)


def auc(scores: Floats, member: Bools, *, runs: Ints | None = None, level: float = 0.95) -> Interval:
    """Probability that a random member scores above a random non-member, ties counting half; chance 0.5.

    Args:
        scores: ``(N,)``, higher is more likely a member; finite.
        member: ``(N,)``.
        runs: ``(N,)``, the run of each client; the numbers of clients are then divided by the design effect
            (variance between runs over variance between clients, at least 1). None: independent clients.
        level: coverage, in (0, 1).

    Returns:
        The area under the ROC curve and a score interval, which has positive width at 0 and 1 too, unlike
        DeLong's. ``n`` is the number of clients.

    Raises:
        BadValue: shapes differ, a score is not finite, or ``level`` is out of range.
        Undefined: no members or no non-members.

    Source:
        Newcombe 2006, "Confidence intervals for an effect measure based on the Mann-Whitney statistic, Part
        2", Statistics in Medicine 25(4), 559-573, method 5; the design effect from Obuchowski 1997,
        Biometrics 53(2), 567-578.

    Examples:
        >>> interval = auc(np.array([0.9, 0.8, 0.1, 0.2]), np.array([True, True, False, False]))
        >>> interval.value, round(interval.low, 2), interval.high
        (1.0, 0.39, 1.0)
    """
    _check("auc", scores, member, level)
    inside, outside = scores[member], scores[~member]
    if len(inside) == 0 or len(outside) == 0:
        raise Undefined(
            "metric 'auc'",
            needs="at least 1 member and 1 non-member",
            got=f"{len(inside)} members, {len(outside)} non-members",
            fix="pool more runs",
        )
    wins = (inside[:, None] > outside[None, :]) + 0.5 * (inside[:, None] == outside[None, :])
    value = float(wins.mean())
    runs = _several(runs)
    shrink = 1.0 if runs is None else _design_effect(wins - value, member, runs)
    low, high = _newcombe(value, len(inside) / shrink, len(outside) / shrink, level)
    return Interval(value=value, low=low, high=high, n=len(scores), level=level)


def precision(
    decisions: Floats | Bools, member: Bools, *, runs: Ints | None = None, level: float = 0.95
) -> Interval:
    """Share of the clients called members that are members; chance: the share of members.

    Args:
        decisions: ``(N,)``, 0 or 1.
        member: ``(N,)``.
        runs: ``(N,)`` or None.
        level: coverage.

    Returns:
        The share and its exact interval, given how many were called members.

    Raises:
        BadValue: shapes differ, or a decision is neither 0 nor 1.
        Undefined: no client was called a member.

    Examples:
        >>> precision(np.array([1.0, 1.0, 0.0]), np.array([True, False, True])).value
        0.5
    """
    decided = _decisions("precision", decisions, member, level)
    _need("precision", decided, "a client called a member")
    return _share_among(decided, decided & member, runs, level)


def recall(
    decisions: Floats | Bools, member: Bools, *, runs: Ints | None = None, level: float = 0.95
) -> Interval:
    """Share of the members that are called members; chance: the share of clients called members.

    Args:
        decisions: ``(N,)``, 0 or 1.
        member: ``(N,)``.
        runs: ``(N,)`` or None.
        level: coverage.

    Returns:
        The share and its exact interval over members.

    Raises:
        BadValue: shapes differ, or a decision is neither 0 nor 1.
        Undefined: there are no members.

    Examples:
        >>> recall(np.array([1.0, 1.0, 0.0]), np.array([True, False, True])).value
        0.5
    """
    decided = _decisions("recall", decisions, member, level)
    _need("recall", member, "a member")
    return _share_among(member, decided & member, runs, level)


def f1(
    decisions: Floats | Bools, member: Bools, *, runs: Ints | None = None, level: float = 0.95
) -> Interval:
    """Harmonic mean of precision and recall; guessing with the known share φ of members gets about φ.

    ``2 TP / (2 TP + FP + FN)``, which equals ``2 J / (1 + J)`` with ``J = TP / (TP + FP + FN)``. Given the
    number of clients that are members or called members, TP is binomial with probability J when clients are
    independent; so the exact interval of J, transformed, is an exact interval of F1. A bootstrap over clients
    approximates it, but has width 0 for a perfect attack.

    Args:
        decisions: ``(N,)``, 0 or 1.
        member: ``(N,)``.
        runs: ``(N,)`` or None.
        level: coverage.

    Returns:
        F1 and its interval; ``n`` counts clients that are members or were called members (or runs, if given).

    Raises:
        BadValue: shapes differ, or a decision is neither 0 nor 1.
        Undefined: there are no members and no client was called one.

    Examples:
        >>> f1(np.array([1.0, 1.0, 0.0]), np.array([True, False, True])).value
        0.5
    """
    decided = _decisions("f1", decisions, member, level)
    _need("f1", decided | member, "a member or a client called one")
    among = _share_among(decided | member, decided & member, runs, level)
    value, low, high = (2 * x / (1 + x) for x in (among.value, among.low, among.high))
    return Interval(value=value, low=low, high=high, n=among.n, level=level)


def _need(name: str, selection: Bools, needs: str) -> None:
    if not selection.any():
        raise Undefined(
            f"metric '{name}'",
            needs=f"at least {needs}",
            got=f"none among {len(selection)} clients",
            fix="pool more runs; report the metric as missing here",
        )


def _share_among(selection: Bools, hits: Bools, runs: Ints | None, level: float) -> Interval:
    clusters = None if runs is None else _several(runs[selection])
    return share_interval(hits[selection], clusters, level=level)


def _several(runs: Ints | None) -> Ints | None:
    return None if runs is None or len(np.unique(runs)) < 2 else runs


def _design_effect(centred: Floats, member: Bools, runs: Ints) -> float:
    """Variance of the AUC with runs as units, divided by that with clients as units; at least 1."""
    parts = np.empty(len(member))
    parts[member] = centred.mean(1) / centred.shape[0]
    parts[~member] = centred.mean(0) / centred.shape[1]
    _, index = np.unique(runs, return_inverse=True)
    count = int(index.max()) + 1
    between = count / (count - 1) * float((np.bincount(index, weights=parts) ** 2).sum())
    alone = len(parts) / (len(parts) - 1) * float((parts**2).sum())
    return max(1.0, between / alone) if alone > 0 else 1.0


def _newcombe(value: float, members: float, others: float, level: float) -> tuple[float, float]:
    quantile = float(scipy.stats.norm.ppf((1 + level) / 2))
    pairs, extra = members * others, max((members + others) / 2 - 1, 0.0)

    def excess(theta: float) -> float:
        """Distance of theta from the estimate, minus the quantile times theta's own standard error."""
        spread = 1 + extra * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(value - theta) - quantile * math.sqrt(theta * (1 - theta) * spread / pairs)

    tiny = 1e-12  # excess is 0 at 0 and 1 themselves
    low = float(scipy.optimize.brentq(excess, 0.0, min(value, 1 - tiny))) if value > 0 else 0.0
    high = float(scipy.optimize.brentq(excess, max(value, tiny), 1.0)) if value < 1 else 1.0
    return low, high


def _decisions(name: str, decisions: Floats | Bools, member: Bools, level: float) -> Bools:
    values = np.asarray(decisions, dtype=np.float64)
    _check(name, values, member, level)
    if not np.isin(values, (0, 1)).all():
        raise BadValue(
            f"metric '{name}'",
            needs="decisions of 0 or 1",
            got=f"values from {values.min()} to {values.max()}",
            fix="let the attack decide: a metric does not guess a threshold",
        )
    return values > 0


def _check(name: str, scores: Floats, member: Bools, level: float) -> None:
    good = scores.ndim == 1 and scores.shape == member.shape and member.dtype == np.bool_
    if not good or not np.isfinite(scores).all():
        raise BadValue(
            f"metric '{name}'",
            needs="one finite number and one truth (bool) per client",
            got=f"shapes {scores.shape} and {member.shape} of {member.dtype}, "
            f"{int((~np.isfinite(scores)).sum())} not finite",
            fix="drop the clients that the attack could not score, and report how many",
        )
    check_level(f"metric '{name}'", level)

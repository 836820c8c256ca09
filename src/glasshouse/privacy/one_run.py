"""A lower bound on ε from canaries in a single training run.

Each of m canaries (examples or clients made for the audit) is included by an independent fair coin flip. From
the released models the auditor guesses r of the coins and abstains on the rest; v guesses are correct. A
mechanism with a small ε limits v. The bound exceeds the true ε in at most 5 % of runs, provided that the
number of guesses was fixed before the run, and that scores depend on the coins only through the releases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from glasshouse.errors import BadValue
from glasshouse.limits import Fix, NotNegative, Probability, check_value
from glasshouse.privacy.gaussian import check_delta, gaussian_epsilon

_LARGEST_EPSILON = 100.0
_HALVINGS = 50


@final
@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Counts of the auditor's guesses.

    Attributes:
        canaries: m, each included by an independent fair coin flip.
        guesses: r, the number of coins guessed; fixed before the run.
        correct: v, the number of correct guesses; half by chance.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not (0 <= self.correct <= self.guesses <= self.canaries and self.guesses >= 1):
            raise BadValue(
                "audit from one run",
                needs="0 <= correct <= guesses <= canaries, at least one guess",
                got=f"{self.correct} correct of {self.guesses} guesses, {self.canaries} canaries",
                fix="count every canary that had a coin, guessed or not",
            )


@final
@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """A lower bound on ε from one run; larger is less private.

    Attributes:
        epsilon: ε is at least this, with confidence ``level``; 0: the run shows nothing.
        delta: δ of the guarantee.
        level: one-sided confidence level.
        assumes: ``any``: any (ε, δ) guarantee; ``gaussian``: that of a Gaussian mechanism.
        counts: the guesses that the bound is computed from.
    """

    epsilon: float
    delta: float
    level: float
    assumes: Literal["any", "gaussian"]
    counts: Guesses


def count_guesses(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    guesses: int,
    out: int | None = None,
    rng: np.random.Generator,
) -> Guesses:
    """Guess "in" for the highest scores and "out" for the lowest, and count correct guesses; half by chance.

    Args:
        scores: (m,), finite; higher is more likely in. They may depend on the releases and on the canaries,
            not on the coins.
        included: (m,), the coins.
        guesses: r, at most m; fixed before the run.
        out: number of guesses "out"; fixed before the run. None: half, of an even number.
        rng: breaks ties, so that the order of the canaries does not matter.

    Raises:
        BadValue: shapes differ, a score is not finite, or ``guesses`` or ``out`` is out of range.

    Source:
        Steinke, Nasr & Jagielski 2023, arXiv:2305.08846, Algorithm 1.

    Examples:
        >>> scores, coins = np.array([0.1, 2.0, 1.5, -1.0]), np.array([False, True, False, False])
        >>> count_guesses(scores, coins, guesses=2, rng=np.random.default_rng(0))
        Guesses(canaries=4, guesses=2, correct=2)
    """
    if scores.ndim != 1 or scores.shape != included.shape or not np.isfinite(scores).all():
        raise BadValue(
            "audit from one run",
            needs="scores and coins of one shape (m,), every score finite",
            got=f"shapes {scores.shape} and {included.shape}, {int((~np.isfinite(scores)).sum())} not finite",
            fix="score every canary that had a coin",
        )
    lowest = guesses // 2 if out is None else out
    if not (2 <= guesses <= len(scores) and 0 <= lowest <= guesses) or (out is None and guesses % 2):
        raise BadValue(
            "audit from one run",
            needs=f"an even number of guesses, from 2 to {len(scores)}, or how many of them say 'out'",
            got=f"{guesses}" + ("" if out is None else f", {out} of them 'out'"),
            fix="about a tenth of the canaries is a good number",
        )
    order = np.lexsort((rng.permutation(len(scores)), scores))
    said_in, said_out = order[len(order) - guesses + lowest :], order[:lowest]
    right = int(included[said_in].sum()) + int((~included[said_out]).sum())
    return Guesses(canaries=len(scores), guesses=guesses, correct=right)


def one_run_p_value(counts: Guesses, *, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of at least this many correct guesses if the mechanism is (ε, δ)-DP.

    Args:
        counts: the auditor's guesses.
        epsilon: the hypothesis, >= 0, for one canary more or less.
        delta: in [0, 1).

    Raises:
        BadValue: ``epsilon`` or ``delta`` is out of range.

    Source:
        Steinke, Nasr & Jagielski 2023, arXiv:2305.08846, Theorem 5.2 and Appendix D.

    Examples:
        >>> counts = Guesses(canaries=1000, guesses=100, correct=100)
        >>> round(one_run_p_value(counts, epsilon=3.4915, delta=0.0), 3)
        0.05
    """
    check_delta(delta, lowest_allowed=True)
    check_value("audit from one run", "epsilon", epsilon, NotNegative, fix="give a finite number")
    v, r = counts.correct, counts.guesses
    right = float(expit(epsilon))
    tail = float(scipy.stats.binom.sf(v - 1, r, right))
    if v == 0 or delta == 0:
        return min(1.0, tail)
    below = np.cumsum(scipy.stats.binom.pmf(np.arange(v - 1, -1, -1), r, right)) / np.arange(1, v + 1)
    return min(1.0, tail + 2 * counts.canaries * delta * float(below.max()))


def one_run_epsilon(counts: Guesses, *, delta: float, level: float = 0.95) -> LowerBound:
    """The largest ε that the run rejects, for any mechanism.

    Args:
        counts: the auditor's guesses.
        delta: δ of the guarantee, in [0, 1). Far above 1 / (2 m) nothing is ever rejected.
        level: confidence, in (0, 1).

    Returns:
        A lower bound on ε. At δ = 0 it is the logit of the lower Clopper-Pearson limit for v of r.

    Raises:
        BadValue: ``delta`` or ``level`` is out of range.

    Source:
        Steinke, Nasr & Jagielski 2023, arXiv:2305.08846, Theorem 5.2.

    Examples:
        >>> counts = Guesses(canaries=1000, guesses=100, correct=100)
        >>> round(one_run_epsilon(counts, delta=0.0).epsilon, 2)
        3.49
    """
    check_level(level)
    epsilon = largest_rejected(lambda e: one_run_p_value(counts, epsilon=e, delta=delta) <= 1 - level)
    return LowerBound(epsilon=epsilon, delta=delta, level=level, assumes="any", counts=counts)


def gaussian_run_rejects(counts: Guesses, *, mu: float, level: float = 0.95) -> bool:
    """Whether the run shows that the mechanism is not μ-GDP.

    Let A be the probability that a canary is guessed correctly while at least i guesses are correct, averaged
    over canaries, and B that it is guessed wrongly while at least i - 1 are correct. Flipping the canary's
    coin turns one event into the other, so A <= Φ(Φ⁻¹(B) + μ). If v or more are correct with probability 5 %,
    these inequalities, from i = v down to 1, imply a lower bound on the total probability of guessing a
    canary. If it exceeds r / m, then v or more correct guesses have a probability below 5 %.

    Args:
        counts: the auditor's guesses.
        mu: the hypothesis, >= 0, for one canary more or less.
        level: confidence, in (0, 1).

    Raises:
        BadValue: ``mu`` or ``level`` is out of range.

    Source:
        Mahloujifar, Melis & Chaudhuri 2024, "Auditing f-differential privacy in one run", arXiv:2410.22235,
        the recursive bound on the number of correct guesses and the audit built on it.

    Examples:
        >>> counts = Guesses(canaries=1000, guesses=100, correct=90)
        >>> gaussian_run_rejects(counts, mu=0.3), gaussian_run_rejects(counts, mu=0.9)
        (True, False)
    """
    check_level(level)
    check_value("audit from one run", "mu", mu, NotNegative, fix="give a finite number")
    v, r, m = counts.correct, counts.guesses, counts.canaries
    right, wrong = (1 - level) * v / m, (1 - level) * (r - v) / m
    for i in range(v - 1, -1, -1):
        least = float(ndtr(ndtri(right) - mu))
        if least > wrong:
            right += i / (r - i) * (least - wrong)
            wrong = least
        if right + wrong > r / m:
            return True
    return False


def gaussian_run_epsilon(counts: Guesses, *, delta: float, level: float = 0.95) -> LowerBound:
    """The largest ε at δ that the run rejects, if its guarantee is that of a Gaussian one.

    Tighter than :func:`one_run_epsilon`, because it tests the whole trade-off curve, not one point of it.
    Not a valid bound for mechanisms whose curve is not Gaussian (sampled ones, for instance).

    Args:
        counts: the auditor's guesses.
        delta: δ at which ε is stated, in (0, 1).
        level: confidence, in (0, 1).

    Raises:
        BadValue: ``delta`` or ``level`` is out of range.

    Source:
        Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235; ε from μ by Balle & Wang 2018, Theorem 8.

    Examples:
        >>> counts = Guesses(canaries=1000, guesses=100, correct=90)
        >>> round(gaussian_run_epsilon(counts, delta=1e-5).epsilon, 2)
        2.46
    """
    check_delta(delta, lowest_allowed=False)
    mu = largest_rejected(lambda mu: gaussian_run_rejects(counts, mu=mu, level=level))
    return gaussian_bound(mu, counts, delta=delta, level=level)


def gaussian_bound(mu: float, counts: Guesses, *, delta: float, level: float) -> LowerBound:
    """The bound on ε at δ where ``mu`` is the largest rejected hypothesis."""
    epsilon = gaussian_epsilon(mu, delta=delta) if mu > 1e-9 else 0.0
    return LowerBound(epsilon=epsilon, delta=delta, level=level, assumes="gaussian", counts=counts)


def check_level(level: float) -> None:
    """Raise unless ``level`` is a confidence level.

    Raises:
        BadValue: it is not in (0, 1).
    """
    check_value("audit from one run", "level", level, Annotated[Probability, Fix("give 0.95")])


def largest_rejected(
    rejects: Callable[[float], bool], *, least: float = 0.0, halvings: int = _HALVINGS
) -> float:
    """The largest rejected hypothesis between 0 and 100, by bisection; always a rejected one, or 0.

    Args:
        rejects: whether a hypothesis is rejected.
        least: where this is not rejected, the result is 0; else 0 counts as rejected.
        halvings: bisections of the interval of length 1, 2, 4, ... that contains the result.
    """
    if not rejects(least):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST_EPSILON and rejects(high):
        low, high = high, 2 * high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low

"""A tighter lower bound on a Gaussian mechanism's ε from one run: the most confident guesses count twice.

:func:`.one_run.gaussian_run_epsilon` uses the number of correct guesses. Here the bound uses the total
w: the number of correct guesses plus the number of correct ones among the most confident. Let x(w, k) be the
expected number of correct guesses of kind k in runs with total w, and y(w, k) that of wrong ones. Flipping
the coin of a canary that was guessed correctly makes the guess wrong and lowers w by the guess's weight g. So
for every factor s >= 1 the sum over w and k of max(0, x(w, k) - s y(w - g, k)) is at most m δ(log s), where
δ(ε) is that of the trade-off curve. A linear program finds the largest probability of a total of w or more
under these inequalities. It omits the inequalities for totals far below w and for factors between those of a
grid: both make the bound looser, never invalid.

Source: Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235: their inequalities on the number of correct
guesses, without the recursion that follows; the weights are ours.

Shape letters: L totals, K kinds of guesses, S factors.
"""

from typing import Any, final

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from glasshouse.errors import BadValue, Undefined
from glasshouse.privacy.gaussian import check_delta, gaussian_delta
from glasshouse.privacy.one_run import Guesses, LowerBound, check_level, gaussian_bound, largest_rejected

FACTORS = np.arange(0.0, 5.01, 0.25)
"""Logarithms of the factors s."""
_REACH = 3.0  # omit totals further below w than this times the root of the summed squared weights
_SCALE = 100.0  # scale of expected numbers per canary, which keeps them far above the solver's tolerance
_HALVINGS = 9


def numbers_of_sure_guesses(canaries: int) -> tuple[int, int]:
    """How many canaries to guess, and how many of them count twice: 16 % and 6 %, even numbers.

    Chosen on simulated Gaussian releases with 1,000 canaries at ε = 4 and 8, before any audited run.

    Args:
        canaries: m, at least 50.

    Examples:
        >>> numbers_of_sure_guesses(1000)
        (160, 60)
    """
    return 2 * round(0.08 * canaries), 2 * round(0.03 * canaries)


def weighted_tail(guesses: Guesses, sure: Guesses, *, mu: float) -> float:
    """Upper bound on the probability of at least this total under a μ-GDP mechanism.

    Args:
        guesses: all guesses.
        sure: the most confident of them.
        mu: the hypothesis, > 0, for one canary more or less.

    Raises:
        BadValue: ``sure`` cannot be a subset of ``guesses``, or ``mu`` is out of range.
        Undefined: the solver failed.

    Examples:
        >>> every = Guesses(canaries=200, guesses=32, correct=29)
        >>> round(weighted_tail(every, Guesses(canaries=200, guesses=12, correct=12), mu=0.9), 2)
        0.3
    """
    _check_parts(guesses, sure)
    result = _Program(guesses, sure, mu=mu).solve()
    if result.status != 0:
        raise Undefined(
            "audit from one run",
            needs="a solved linear program",
            got=f"{result.message} (mu = {mu:.3g})",
            fix="count all guesses once: gaussian_run_epsilon",
        )
    return float(-result.fun)


def weighted_run_epsilon(guesses: Guesses, sure: Guesses, *, delta: float, level: float = 0.95) -> LowerBound:
    """The largest ε at δ that the run rejects, if its guarantee is that of a Gaussian one.

    With 1,000 canaries 5 % larger than :func:`.one_run.gaussian_run_epsilon`, for one or two CPU seconds.

    Args:
        guesses: all guesses; their number was fixed before the run.
        sure: the most confident of them, which count twice; their number was fixed before the run, too.
        delta: δ at which ε is stated, in (0, 1).
        level: confidence, in (0, 1).

    Returns:
        A lower bound on ε.

    Raises:
        BadValue: ``sure`` cannot be a subset of ``guesses``, or ``delta`` or ``level`` is out of range.
        Undefined: the solver failed.

    Source:
        As :func:`weighted_tail`; ε from μ by Balle & Wang 2018, Theorem 8.

    Examples:
        >>> every = Guesses(canaries=200, guesses=32, correct=29)
        >>> sure = Guesses(canaries=200, guesses=12, correct=12)
        >>> round(weighted_run_epsilon(every, sure, delta=1e-5).epsilon, 2)
        2.34
    """
    _check_parts(guesses, sure)
    check_level(level)
    check_delta(delta, lowest_allowed=False)
    mu = largest_rejected(
        lambda mu: weighted_tail(guesses, sure, mu=mu) <= 1 - level, least=1e-3, halvings=_HALVINGS
    )
    return gaussian_bound(mu, guesses, delta=delta, level=level)


def _check_parts(guesses: Guesses, sure: Guesses) -> None:
    others, right = guesses.guesses - sure.guesses, guesses.correct - sure.correct
    if sure.canaries != guesses.canaries or others < 1 or not 0 <= right <= others:
        raise BadValue(
            "audit from one run",
            needs="sure guesses that are a part of all guesses of the same canaries",
            got=f"{sure.correct} correct of {sure.guesses} sure ones (of {sure.canaries} canaries), "
            f"{guesses.correct} of {guesses.guesses} (of {guesses.canaries})",
            fix="count both with the same scores and coins",
        )


@final
class _Program:
    """The linear program: columns p (L,), x (K, L) as fractions of a kind's guesses, excess (S, K, L)."""

    def __init__(self, guesses: Guesses, sure: Guesses, *, mu: float) -> None:
        self.kinds = ((2, sure.guesses), (1, guesses.guesses - sure.guesses))
        top = guesses.guesses + sure.guesses
        reach = _REACH * sum(g * g * r for g, r in self.kinds) ** 0.5
        self.first = max(0, int(guesses.correct + sure.correct - reach))
        self.levels = top + 1 - self.first
        self.start = guesses.correct + sure.correct - self.first
        self.share = [_SCALE * r / guesses.canaries for _, r in self.kinds]
        self.most = [_SCALE * gaussian_delta(float(e), mu=mu) for e in FACTORS]
        self.columns = self.levels * (1 + len(self.kinds) * (1 + len(FACTORS)))

    def solve(self) -> Any:
        """Maximise the probability of the total or more; returns scipy's result, with the sign reversed."""
        upper, limits = self._inequalities()
        objective, zeros = np.zeros(self.columns), np.zeros(self.levels)
        objective[self.start : self.levels] = -1.0
        solver: Any = scipy.optimize.linprog  # its type stub lacks sparse matrices
        return solver(objective, A_ub=upper, b_ub=limits, A_eq=self._means(), b_eq=zeros, method="highs-ds")

    def _means(self) -> csr_array:
        """Weighted correct guesses add up to the total: per level, sum of g r x = w p."""
        at, one = np.arange(self.levels), np.ones(self.levels)
        blocks = [(at, at, -(self.first + at).astype(float))]
        blocks += [(at, self._right(k, at), g * r * one) for k, (g, r) in enumerate(self.kinds)]
        return _matrix(blocks, (self.levels, self.columns))

    def _right(self, kind: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.levels * (1 + kind) + at

    def _inequalities(self) -> tuple[csr_array, NDArray[np.float64]]:
        """Probabilities sum to at most 1; x <= p; excess >= x - s y, and sums of excesses <= m δ."""
        at, one = np.arange(self.levels), np.ones(self.levels)
        blocks, limits, row = [(0 * at, at, one)], [1.0], 1
        for k in range(len(self.kinds)):
            blocks += [(row + at, self._right(k, at), one), (row + at, at, -one)]
            limits += [0.0] * self.levels
            row += self.levels
        column = self.levels * (1 + len(self.kinds))
        for log, most in zip(FACTORS, self.most, strict=True):
            total = row + self.levels * len(self.kinds)
            for k, (g, _) in enumerate(self.kinds):
                share, wrong = self.share[k] * one, np.exp(log) * self.share[k] * one[g:]
                blocks += [
                    (row + at[g:], self._right(k, at[g:]), share[g:]),
                    (row + at, column + at, -one),
                    (row + at[g:], at[:-g], -wrong),
                    (row + at[g:], self._right(k, at[:-g]), wrong),
                    (total + 0 * at, column + at, one),
                ]
                limits += [0.0] * self.levels
                row, column = row + self.levels, column + self.levels
            limits.append(most)
            row += 1
        return _matrix(blocks, (row, self.columns)), np.array(limits)


def _matrix(
    blocks: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]], shape: tuple[int, int]
) -> csr_array:
    rows, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return coo_array((values, (rows, columns)), shape=shape).tocsr()

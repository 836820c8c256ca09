"""Guesses of two kinds from one run: the surest count twice, which shows more of a Gaussian mechanism's ε.

:func:`.one_run.gaussian_run_epsilon` rests on how many guesses are right. Here the bound rests on the total
w: the number of right guesses plus the number of right ones among the surest. Let x(w, k) be the expected
number of right guesses of kind k in runs with total w, and y(w, k) that of wrong ones. Turning the coin of a
canary that was guessed rightly makes the guess wrong and lowers w by the guess's weight g. So for every
factor s >= 1 the sum over w and k of max(0, x(w, k) - s y(w - g, k)) is at most m δ(log s), where δ(ε) is the
trade-off curve's. A linear program finds the largest probability of a total of w or more under these
inequalities. It leaves out those of totals far below and those between the factors of a grid: both make the
bound weaker, never wrong.

Source: Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235, whose inequalities on the number of right
guesses these are, before their recursion; the weights are ours.

Shape letters: L totals, K kinds of guesses, S factors.
"""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from glasshouse.errors import BadValue, Undefined
from glasshouse.privacy.gaussian import check_delta, gaussian_delta, gaussian_epsilon
from glasshouse.privacy.one_run import Guesses, LowerBound, check_level, largest_rejected

FACTORS = np.arange(0.0, 5.01, 0.25)
"""Logarithms of the factors s."""
_REACH = 3.0  # totals this many times the root of the summed squares of the weights below are left out
_SCALE = 100.0  # of expected numbers per canary, so that the solver's tolerance stays far below them
_HALVINGS = 9


def numbers_of_sure_guesses(canaries: int) -> tuple[int, int]:
    """How many canaries to guess, and how many of them count twice: 16 % and 6 %, even numbers.

    Chosen on simulated Gaussian releases with 1,000 canaries at ε = 4 and 8, before any run that is judged.

    Args:
        canaries: m, at least 50.

    Examples:
        >>> numbers_of_sure_guesses(1000)
        (160, 60)
    """
    return 2 * round(0.08 * canaries), 2 * round(0.03 * canaries)


def weighted_tail(guesses: Guesses, sure: Guesses, *, mu: float) -> float:
    """How likely a total as large as this one is, at most, under a μ-GDP mechanism.

    Args:
        guesses: all of them.
        sure: the surest among them.
        mu: the hypothesis, > 0; one canary more or less.

    Raises:
        BadValue: ``sure`` cannot be a part of ``guesses``, or ``mu`` is out of range.
        Undefined: the solver gave up.

    Examples:
        >>> every = Guesses(canaries=200, guesses=32, correct=29)
        >>> round(weighted_tail(every, Guesses(canaries=200, guesses=12, correct=12), mu=0.9), 2)
        0.3
    """
    _check_parts(guesses, sure)
    program = _Program(guesses, sure, mu=mu)
    result = program.solve()
    if result.status != 0:
        raise Undefined(
            "audit from one run",
            needs="a solved linear program",
            got=f"{result.message} (mu = {mu:.3g})",
            fix="count all guesses once: gaussian_run_epsilon",
        )
    return float(-result.fun)


def weighted_run_epsilon(guesses: Guesses, sure: Guesses, *, delta: float, level: float = 0.95) -> LowerBound:
    """The largest ε at δ that the run rejects, if the mechanism's guarantee is that of a Gaussian one.

    With 1,000 canaries a twentieth more than :func:`.one_run.gaussian_run_epsilon`, for a CPU second or two.

    Args:
        guesses: all guesses; their number was fixed before the run.
        sure: the surest among them, which count twice; their number was fixed before the run, too.
        delta: δ at which ε is stated, in (0, 1).
        level: confidence, in (0, 1).

    Returns:
        A lower bound on ε.

    Raises:
        BadValue: ``sure`` cannot be a part of ``guesses``, or ``delta`` or ``level`` is out of range.
        Undefined: the solver gave up.

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

    def rejects(mu: float) -> bool:
        return weighted_tail(guesses, sure, mu=mu) <= 1 - level

    mu = largest_rejected(rejects, halvings=_HALVINGS) if rejects(1e-3) else 0.0
    epsilon = gaussian_epsilon(mu, delta=delta) if mu > 1e-9 else 0.0
    return LowerBound(epsilon=epsilon, delta=delta, level=level, assumes="gaussian", counts=guesses)


def _check_parts(guesses: Guesses, sure: Guesses) -> None:
    others = guesses.guesses - sure.guesses
    wrong = sure.guesses - sure.correct <= guesses.guesses - guesses.correct
    if (
        sure.canaries == guesses.canaries
        and others >= 1
        and 0 <= guesses.correct - sure.correct <= others
        and wrong
    ):
        return
    raise BadValue(
        "audit from one run",
        needs="sure guesses that are a part of all guesses of the same canaries",
        got=f"{sure.correct} correct of {sure.guesses} sure ones (of {sure.canaries} canaries), "
        f"{guesses.correct} of {guesses.guesses} (of {guesses.canaries})",
        fix="count both with the same scores and coins",
    )


@final
class _Program:
    """The linear program: columns p (L,), x (K, L) in units of all guesses of a kind, excess (S, K, L)."""

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
        """The largest mass at the total and above, as scipy's result, with its sign turned."""
        upper, limits = self._inequalities()
        objective, zeros = np.zeros(self.columns), np.zeros(self.levels)
        objective[self.start : self.levels] = -1.0
        solver: Any = linprog  # its stub knows no sparse matrices
        return solver(objective, A_ub=upper, b_ub=limits, A_eq=self._means(), b_eq=zeros, method="highs-ds")

    def _means(self) -> csr_array:
        """Weights times right guesses make the total: per level, sum of g r x = w p."""
        at = np.arange(self.levels)
        blocks = [(at, at, -(self.first + at).astype(float))]
        blocks += [
            (at, self._right(k, at), np.full(self.levels, float(g * r)))
            for k, (g, r) in enumerate(self.kinds)
        ]
        return _matrix(blocks, (self.levels, self.columns))

    def _right(self, kind: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.levels * (1 + kind) + at

    def _inequalities(self) -> tuple[csr_array, NDArray[np.float64]]:
        """All masses sum to at most 1; x <= p; excesses above x - s y, and their sums below m δ."""
        at = np.arange(self.levels)
        one = np.ones(self.levels)
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

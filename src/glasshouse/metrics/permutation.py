"""Is a number over clients better than guessing? Exchanging the truth within each run tells.

Without information an attack's scores have nothing to do with who has the property, so every exchange of
the truth is as likely as the truth itself. The share of exchanges that do as well is an exact p-value for
any metric, whatever the scores are and however the clients of one run depend on each other (they share a
detector).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from glasshouse.errors import Undefined
from glasshouse.rng import Rng

EXCHANGES = 1999
"""A p-value of .025 is then known to within .007."""
FEW_RUNS = 4
"""From so many runs on, a difference between runs can be seen and is allowed for."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Values = Callable[[Bools, Bools], Floats]
"""From a choice of clients (N,) and truths (D, N) to the metric over the chosen clients, (D,)."""


@final
@dataclass(frozen=True, kw_only=True)
class GuessTest:
    """How a value compares with guessing.

    Attributes:
        p: one-sided p-value of "no better than chance".
        low: lower end of the gain over chance; above 0 just where ``p`` is below .025.
    """

    p: float
    low: float


def compare_with_guesses(
    values: Values, truth: Bools, runs: Ints, *, chance: float, rng: Rng, level: float = 0.95
) -> GuessTest:
    """Compare the metric under the truth with the metric under exchanged truths.

    Where ``chance`` is above the mean of the exchanges (a guess that is cleverer than the attack's own
    numbers in random order), the exchanges are moved up to it. From ``FEW_RUNS`` runs on, the value must
    also be above chance by Student's t over runs (jackknife), because a detector that works by luck works
    for its whole run.

    Args:
        values: the metric over some of the clients, for several truths; larger leaks more.
        truth: ``(N,)``.
        runs: ``(N,)``, the federation of each client.
        chance: what guessing gets.
        rng: stream of the exchanges.
        level: coverage of the two-sided interval to which ``low`` belongs.
    """
    everyone = np.ones(len(truth), dtype=bool)
    value = float(values(everyone, truth[None])[0])
    guessed = values(everyone, exchange_truth(truth, runs, rng=rng))
    guessed = guessed + max(0.0, chance - float(guessed.mean()))
    p = (1 + int((guessed >= value - 1e-12).sum())) / (1 + len(guessed))
    tail = (1 - level) / 2
    allowed = math.ceil(tail * (1 + len(guessed)) - 1e-9) - 2  # so many may do as well
    low = value - float(np.sort(guessed)[::-1][allowed])
    error, count = _error_over_runs(values, truth, runs)
    if error > 0:
        p = max(p, float(stats.t.sf((value - chance) / error, count - 1)))
        low = min(low, value - chance - float(stats.t.ppf((1 + level) / 2, count - 1)) * error)
    return GuessTest(p=p, low=low if p < tail else min(low, 0.0))


def exchange_truth(truth: Bools, runs: Ints, *, rng: Rng, draws: int = EXCHANGES) -> Bools:
    """``draws`` random exchanges of the truth among the clients of each run, (D, N)."""
    out = np.tile(truth, (draws, 1))
    random = rng.numpy()
    for run in np.unique(runs):
        members = np.flatnonzero(runs == run)
        out[:, members] = random.permuted(out[:, members], axis=1)
    return out


def _error_over_runs(values: Values, truth: Bools, runs: Ints) -> tuple[float, int]:
    """Jackknife standard error of the metric over runs, and how many there are; 0 for few runs.

    Source: Tukey 1958; Efron & Stein 1981, Annals of Statistics 9(3).
    """
    names = np.unique(runs)
    if len(names) < FEW_RUNS:
        return 0.0, len(names)
    try:
        without = np.array([float(values(runs != run, truth[None])[0]) for run in names])
    except Undefined:  # one run holds all members: nothing can be said about the others
        return 0.0, len(names)
    count = len(names)
    return math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum())), count

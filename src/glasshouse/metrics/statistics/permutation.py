"""Permutation test of whether a metric over clients beats guessing; the truth is permuted within runs.

Without information an attack's scores are independent of who has the property, so every permutation of the
truth is as likely as the truth itself. The share of permutations that do as well is an exact p-value for any
metric, whatever the scores are and however the clients of one run depend on each other (they share a
detector).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import Undefined
from glasshouse.metrics.statistics.distributions import student_quantile, student_tail
from glasshouse.rng import Rng

EXCHANGES = 9999
"""Random permutations where they cannot all be enumerated: a p-value of 0.025 is then precise to 0.003."""
LISTED = 5000
"""Up to this many distinct outcomes all are enumerated, and the p-value is exact."""
FEW_RUNS = 4
"""From this many runs on, an interval accounts for the variance between runs; a test does from 2 on."""
SIGNED_RUNS = 6
"""From this many runs on, flipping the signs of their gains can reach 0.025."""

_MOST_SIGNS = 14
"""Above this many runs Student's t needs no help, and there are too many signs to list."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Values = Callable[[Bools, Bools], Floats]
"""Maps a selection of clients (N,) and truths (D, N) to the metric over the selected clients, (D,)."""


@final
@dataclass(frozen=True, kw_only=True)
class GuessTest:
    """Result of a test of a value against guessing.

    Attributes:
        p: one-sided p-value of "no better than chance".
        low: lower end of the gain over chance; above 0 exactly where ``p`` is below 0.025.
    """

    p: float
    low: float


def compare_with_guesses(
    values: Values,
    claimed: Floats,
    truth: Bools,
    runs: Ints,
    *,
    chance: float,
    rng: Rng,
    level: float = 0.95,
) -> GuessTest:
    """Compare the metric under the truth with the metric under permuted truths.

    Where ``chance`` is above the mean over permutations (a guess better than the attack's own numbers in
    random order), the permutation values are shifted up to it. Of several runs, the value must also be above
    chance by Student's t over runs (jackknife), because a detector that works by luck does so for its whole
    run; and from ``SIGNED_RUNS`` runs on by the signs of the runs' own gains, since Student's t is too sure
    of runs that are all lucky or all unlucky.

    Args:
        values: the metric over some of the clients, for several truths; larger leaks more.
        claimed: ``(N,)``, scores or decisions; clients with equal ones are interchangeable.
        truth: ``(N,)``.
        runs: ``(N,)``, the federation of each client.
        chance: expected value under guessing.
        rng: stream of the permutations.
        level: coverage of the two-sided interval to which ``low`` belongs.
    """
    everyone = np.ones(len(truth), dtype=bool)
    value = float(values(everyone, truth[None])[0])
    truths, weights = exchange_truth(claimed, truth, runs, rng=rng)
    guessed = values(everyone, truths)
    guessed = guessed + max(0.0, chance - float(guessed @ weights))
    tail = (1 - level) / 2
    p = min(1.0, float(weights[guessed >= value - 1e-12].sum()))
    order = np.argsort(-guessed)
    first = int((weights[order].cumsum() >= tail - 1e-12).argmax())  # the critical value
    low = value - float(guessed[order[first]])
    error, count = _error_over_runs(values, truth, runs)
    if error > 0:
        p = max(p, student_tail((value - chance) / error, count - 1))
        low = min(low, value - chance - student_quantile((1 + level) / 2, count - 1) * error)
    p = max(p, _signs_p(values, truth, runs, chance))
    return GuessTest(p=p, low=low if p < tail else min(low, 0.0))


def exchange_truth(claimed: Floats, truth: Bools, runs: Ints, *, rng: Rng) -> tuple[Bools, Floats]:
    """Permutations of the truth among the clients of each run, (D, N), and their probabilities, (D,).

    Permutations that differ only among clients with equal claims count as one. All are enumerated where there
    are at most ``LISTED``; else ``EXCHANGES`` random ones are drawn, and the truth is added.

    Source:
        Phipson & Smyth 2010, arXiv:1603.05766 (why the truth is included).
    """
    groups = [_groups(claimed, np.flatnonzero(runs == run)) for run in np.unique(runs)]
    members = [int(truth[runs == run].sum()) for run in np.unique(runs)]
    if math.prod(_outcomes(g, m) for g, m in zip(groups, members, strict=True)) <= LISTED:
        return _list_exchanges(groups, members, len(truth))
    draws = min(EXCHANGES, 20_000_000 // len(truth))
    out = np.tile(truth, (1 + draws, 1))
    random = rng.numpy()
    for run in np.unique(runs):
        clients = np.flatnonzero(runs == run)
        out[1:, clients] = random.permuted(out[1:, clients], axis=1)
    return out, np.full(1 + draws, 1 / (1 + draws))


def _groups(claimed: Floats, clients: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The clients of one run, grouped by what is claimed about them."""
    return [clients[claimed[clients] == level] for level in np.unique(claimed[clients])]


def _outcomes(groups: list[NDArray[np.intp]], members: int) -> float:
    """Number of ways to distribute the members over the groups."""
    ways = np.ones(1)
    for group in groups:
        ways = np.convolve(ways, np.ones(len(group) + 1))
    return float(ways[members])


def _list_exchanges(
    groups: list[list[NDArray[np.intp]]], members: list[int], clients: int
) -> tuple[Bools, Floats]:
    """One truth for each way to distribute every run's members over its groups, with its probability."""
    truths, weights = np.zeros((1, clients), dtype=bool), np.ones(1)
    for run, size in zip(groups, members, strict=True):
        remaining = np.full(len(truths), size)
        after = sum(map(len, run))
        total = math.comb(after, size)
        for group in run:
            after -= len(group)
            parts = []
            for count in range(len(group) + 1):
                fits = (remaining >= count) & (remaining - count <= after)
                extended = truths[fits]
                extended[:, group[:count]] = True
                ways = math.comb(len(group), count)
                parts.append((extended, weights[fits] * ways, remaining[fits] - count))
            truths, weights, remaining = (np.concatenate(part) for part in zip(*parts, strict=True))
        weights = weights / total
    return truths, weights


def _signs_p(values: Values, truth: Bools, runs: Ints, chance: float) -> float:
    """p-value of the runs' gains over chance among all choices of their signs; 0 for few runs.

    Exact where a run's luck is as often good as bad.
    """
    names = np.unique(runs)
    if not SIGNED_RUNS <= len(names) <= _MOST_SIGNS:
        return 0.0
    try:
        gains = np.array([float(values(runs == run, truth[None])[0]) for run in names]) - chance
    except Undefined:  # nobody has the property in some run
        return 0.0
    signs = 2 * (np.arange(2 ** len(names))[:, None] >> np.arange(len(names)) & 1) - 1
    return float((signs @ gains >= gains.sum() - 1e-12).mean())


def _error_over_runs(values: Values, truth: Bools, runs: Ints) -> tuple[float, int]:
    """Jackknife standard error of the metric over runs (0 for few runs), and the number of runs.

    Source: Tukey 1958; Efron & Stein 1981, Annals of Statistics 9(3).
    """
    names = np.unique(runs)
    if len(names) < 2:
        return 0.0, len(names)
    try:
        without = np.array([float(values(runs != run, truth[None])[0]) for run in names])
    except Undefined:  # one run holds all members, so the metric is undefined without it
        return 0.0, len(names)
    count = len(names)
    return math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum())), count

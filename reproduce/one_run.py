"""Tables of docs/results/dp.md: ``python -m reproduce.one_run [--runs 300] [--canaries 1000]``.

Bounds on any attack for mechanisms with known noise, and lower bounds on ε from simulated runs: canaries are
orthogonal unit vectors, with one Gaussian release; scores are the released coordinates.
"""

import argparse
import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glasshouse.audit.simulation.epsilon import WEIGHTED
from glasshouse.errors import BadValue
from glasshouse.privacy.bound import Release, attack_ceiling
from glasshouse.privacy.gaussian import check_share, gaussian_mu, gaussian_share
from glasshouse.privacy.one_run import Guesses, count_guesses, gaussian_run_epsilon, one_run_epsilon
from glasshouse.privacy.sure_guesses import numbers_of_sure_guesses, weighted_run_epsilon, weighted_tail

CANARIES, DELTA, GUESSES = 1000, 1e-5, 100
EPSILONS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A Monte Carlo estimate.

    Attributes:
        value: the estimate.
        error: its standard error.
        draws: number of Monte Carlo draws.
    """

    value: float
    error: float
    draws: int


def simulate_share(
    release: Release, chance: float, *, draws: int = 100_000, rng: np.random.Generator
) -> Simulated:
    """Estimate the bound for one kind of release by simulation, to check :meth:`Ceiling.share`; not a bound.

    Args:
        release: noise must be > 0.
        chance: κ, in (0, 1).
        draws: N draws with the unit and N without it; memory grows with draws x steps.
        rng: generator of the draws.

    Returns:
        The fraction of draws with the unit whose likelihood ratio exceeds the (1 - κ) quantile of those
        without. The source averages the largest ratios instead, which has the same expectation, but a
        variance that explodes where the noise is small.

    Raises:
        BadValue: noise 0, or fewer than 100 draws beyond the quantile.

    Source:
        Hayes, Mahloujifar & Balle 2023, Algorithm 1.

    Examples:
        >>> simulated = simulate_share(Release(noise_multiplier=1.0), 0.1, rng=np.random.default_rng(0))
        >>> abs(simulated.value - 0.389) < 4 * simulated.error
        True
    """
    check_share("chance", chance)
    if release.noise_multiplier == 0 or not 100 <= chance * draws <= draws - 100:
        raise BadValue(
            "simulated bound",
            needs="noise > 0 and at least 100 draws on either side of the quantile",
            got=f"noise {release.noise_multiplier}, {draws} draws, chance {chance}",
            fix="ask for more draws",
        )
    without = rng.normal(scale=release.noise_multiplier, size=(draws, release.steps))
    part = rng.random((draws, release.steps)) < release.rate
    present = rng.normal(scale=release.noise_multiplier, size=(draws, release.steps)) + part
    threshold = float(np.quantile(_log_ratios(without, release), 1 - chance))
    value = float((_log_ratios(present, release) > threshold).mean())
    # An error of the quantile shifts the value by the likelihood ratio at the quantile.
    variance = value * (1 - value) + math.exp(2 * threshold) * chance * (1 - chance)
    return Simulated(value=value, error=math.sqrt(variance / draws), draws=draws)


def _log_ratios(outputs: NDArray[np.float64], release: Release) -> NDArray[np.float64]:
    """Log-likelihood ratio of "the unit took part" for each row of outputs (N, T)."""
    losses = (outputs - 0.5) / release.noise_multiplier**2
    ratios = np.logaddexp(
        math.log(release.rate) + losses, np.log1p(-release.rate) if release.rate < 1 else -np.inf
    )
    return np.asarray(ratios.sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Lower bounds at 95 %, one per run, in ε at δ = 1e-5."""

    any_guarantee: NDArray[np.float64]
    gaussian: NDArray[np.float64]


def audit_runs(epsilon: float, *, runs: int, guesses: int, seed: int, canaries: int = CANARIES) -> Runs:
    """Audit ``runs`` Gaussian releases whose true ε is known."""
    mu = gaussian_mu(epsilon, delta=DELTA)
    rng = np.random.default_rng(seed)
    cache: dict[Guesses, tuple[float, float]] = {}
    bounds = []
    for _ in range(runs):
        scores, coins = simulate_release(mu, canaries, rng)
        counts = count_guesses(scores, coins, guesses=guesses, rng=rng)
        if counts not in cache:
            cache[counts] = (
                one_run_epsilon(counts, delta=DELTA).epsilon,
                gaussian_run_epsilon(counts, delta=DELTA).epsilon,
            )
        bounds.append(cache[counts])
    columns = np.array(bounds)
    return Runs(any_guarantee=columns[:, 0], gaussian=columns[:, 1])


def simulate_release(
    mu: float, canaries: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores and coins of one Gaussian release."""
    coins = rng.random(canaries) < 0.5
    return coins + rng.normal(scale=1 / mu, size=canaries), coins


def print_weighted(runs: int, canaries: int, seed: int) -> None:
    """Lower bounds if the most confident guesses count twice; a run's bound depends only on its total."""
    every, surest = numbers_of_sure_guesses(canaries)
    print("| true ε | guesses, of them surest | Gaussian curve, surest twice | exceeded |\n|---|---|---|---|")
    for epsilon in EPSILONS:
        mu, rng = gaussian_mu(epsilon, delta=DELTA), np.random.default_rng(seed)
        counts = []
        for _ in range(runs):
            scores, coins = simulate_release(mu, canaries, rng)
            counts.append([count_guesses(scores, coins, guesses=n, rng=rng) for n in (every, surest)])
        counts.sort(key=lambda pair: pair[0].correct + pair[1].correct)
        above = 0
        while above < runs and weighted_tail(*counts[runs - 1 - above], mu=mu) <= 0.05:
            above += 1
        low, median, high = (
            weighted_run_epsilon(*counts[round(q * (runs - 1))], delta=DELTA).epsilon
            for q in (0.05, 0.5, 0.95)
        )
        shown = f"{median:.2f} ({low:.2f} – {high:.2f}), {median / epsilon:.2f} ε"
        print(f"| {epsilon:g} | {every}, {surest} | {shown} | {above} of {runs} |", flush=True)


def print_bounds() -> None:
    """Upper bounds: closed form against privacy loss distributions, and simulation for sampled ones."""
    print("| release | chance | bound | closed form or simulation |\n|---|---|---|---|")
    for noise, steps, rate in ((1.0, 1, 1.0), (4.0, 50, 1.0), (1.0, 50, 0.1), (0.7, 20, 0.3)):
        release = Release(noise_multiplier=noise, steps=steps, rate=rate)
        ceiling = attack_ceiling([release], unit="example")
        for chance in (0.01, 0.1):
            if rate == 1:
                other = f"{gaussian_share(chance, mu=steps**0.5 / noise):.4f}"
            else:
                simulated = simulate_share(release, chance, rng=np.random.default_rng(0))
                other = f"{simulated.value:.4f} ± {simulated.error:.4f}"
            words = f"σ = {noise}, T = {steps}, q = {rate}"
            print(f"| {words} | {chance} | {ceiling.share(chance).value:.4f} | {other} |")


def print_audits(runs: int, canaries: int, guesses: tuple[int, ...]) -> None:
    """Lower bounds: median, middle 90 %, and how often each exceeds the true ε."""
    print("| true ε | guesses | any guarantee | exceeded | Gaussian curve | exceeded |")
    print("|---|---|---|---|---|---|")
    for epsilon in EPSILONS:
        for count in guesses:
            audits = audit_runs(epsilon, runs=runs, guesses=count, seed=2, canaries=canaries)
            cells = []
            for bounds in (audits.any_guarantee, audits.gaussian):
                low, median, high = np.quantile(bounds, [0.05, 0.5, 0.95])
                cells.append(f"{median:.2f} ({low:.2f} – {high:.2f}), {median / epsilon:.2f} ε")
                cells.append(f"{int((bounds > epsilon).sum())} of {runs}")
            print(f"| {epsilon:g} | {count} | {' | '.join(cells)} |")


def main() -> None:
    """Print all tables and their run time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--canaries", type=int, default=CANARIES)
    parser.add_argument("--guesses", type=int, nargs="+", default=[50, 100, 130, 200, 400])
    parser.add_argument(
        "--weighted", action="store_true", help="only the table in which the surest count twice"
    )
    parser.add_argument("--seed", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.weighted:
        print_bounds()
        print()
        print_audits(arguments.runs, arguments.canaries, tuple(arguments.guesses))
        print()
    if arguments.canaries <= WEIGHTED[1]:
        print_weighted(arguments.runs, arguments.canaries, arguments.seed)
    print(f"\n{time.process_time():.0f} CPU seconds")


if __name__ == "__main__":
    main()

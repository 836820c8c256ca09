"""Kinds of simulated measurements for the study of false leaks, with their exact tests.

Plain arrays, so that the same data can be used with any version of the rules.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from glasshouse.audit.scoring.truth import SHIFTS
from glasshouse.metrics.statistics.shares import proportion_interval

Floats = NDArray[np.float64]
Random = np.random.Generator
POWER = 0.8
"""Power of the exact test if the effect size can be chosen."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One simulated measurement.

    Attributes:
        values: scores of the attack, (n, images).
        null: scores of the null adversary, same shape.
        known: the null is a chance level in closed form.
        most: upper bound on the null's share, from auxiliary data; None: not measured.
        exchanged: (n, others), scores of the same claims on other victims' truth; None: no such control.
        clients: (run, scores, truth) of each claim, for metrics over clients; ``values`` is then empty.
        p: p-value of the exact test; None: no exact test.
    """

    values: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    null: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    known: bool = False
    most: float | None = None
    exchanged: Floats | None = None
    clients: tuple[tuple[str, Floats, NDArray[np.bool_]], ...] = ()
    p: float | None = None


Cell = Callable[[Floats, Floats, Floats], Floats]
"""(claim effect, truth effect, interaction) → score."""
Shape = Callable[[Floats], Floats]
"""Normal noise → scores of another distribution."""
Draw = Callable[[Random, int, bool], Sample]
"""(random stream, number of victims or clients, whether something leaks) → measurement."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of measurement.

    Attributes:
        name: name in the table.
        metric: registered name.
        draw: see ``Draw``.
        exact: an exact test exists, and the power must be close to that of the exact test.
        sizes: possible numbers of victims.
    """

    name: str
    metric: str
    draw: Draw
    exact: bool = False
    sizes: tuple[int, ...] = (3, 4, 8, 20, 50)


@cache
def t_effect(n: int) -> float:
    """Effect size (mean / standard deviation) at which Student's t-test reaches ``POWER``."""
    quantile = stats.t.ppf(0.975, n - 1)
    return float(optimize.brentq(lambda d: stats.nct.sf(quantile, n - 1, d) - POWER, 0.1, 90)) / n**0.5


@cache
def share_effect(n: int, chance: float) -> float:
    """The smallest share at which the exact binomial test reaches ``POWER``; 0.9 if none does."""
    hits = int(stats.binom.isf(0.025, n, chance)) + 1
    grid = np.arange(chance, 1, 0.01)
    enough = grid[stats.binom.sf(hits - 1, n, grid) >= POWER]
    return float(enough[0]) if len(enough) else 0.9


def normal_differences(random: Random, n: int, leaks: bool) -> Sample:
    """PSNR with a normal gain; exact test: Student's paired t."""
    null = random.normal(12, 3, n)
    values = null + random.normal(2 * t_effect(n) if leaks else 0, 2, n)
    p = float(stats.ttest_rel(values, null, alternative="greater").pvalue)
    return Sample(values=values[:, None], null=null[:, None], p=p)


def _crossed(random: Random, n: int, cell: Cell) -> tuple[Floats, Floats]:
    """Scores (n, n) of claims on truths, and scores (n,) of the null, a mean of ten guesses."""
    truths = random.normal(size=n)
    scores = cell(random.normal(size=(n, 1)), truths[None], random.normal(size=(n, n)))
    guesses = cell(random.normal(size=(10, n)), truths[None], random.normal(size=(10, n)))
    return scores, guesses.mean(0)


def _exchangeable(scores: Floats, null: Floats, own: Floats) -> Sample:
    """A sample in which each claim is also scored on the next victims, as many as in an audit."""
    n = len(own)
    claims = np.arange(n)[:, None]
    others = (claims + np.arange(1, min(SHIFTS, n - 1) + 1)) % n
    return Sample(values=own[:, None], null=null[:, None], exchanged=scores[claims, others])


def bounded(random: Random, n: int, leaks: bool) -> Sample:
    """SSIM: between -1 and 1, right-skewed."""

    def cell(claim: Floats, truth: Floats, both: Floats) -> Floats:
        return np.asarray(np.tanh(0.25 * np.exp(0.3 * claim + 0.3 * truth + 0.25 * both)))

    scores, null = _crossed(random, n, cell)
    own = np.diag(scores) + (0.16 * t_effect(n) if leaks else 0)
    return _exchangeable(scores, null, np.minimum(own, 1))


def skewed_errors(random: Random, n: int, leaks: bool) -> Sample:
    """MSE: log-normal, so that the gain has a long lower tail."""
    scores, null = _crossed(random, n, lambda a, b, e: 0.05 * np.exp(0.8 * (0.5 * a + 0.62 * b + 0.6 * e)))
    ratio = {3: 0.1, 4: 0.2, 8: 0.4, 20: 0.6, 50: 0.75}[n] if leaks else 1.0
    return _exchangeable(scores, null, np.diag(scores) * ratio)


def independent_pairs(shape: Shape, *, errors: bool) -> Draw:
    """Independent scores for every pair of claim and truth: long-tailed errors or long-tailed scores."""

    def draw(random: Random, n: int, leaks: bool) -> Sample:
        scores, null = _crossed(random, n, lambda a, b, e: shape(e) + 0 * (a + b))
        own = np.diag(scores)
        if leaks:
            ratio = {3: 0.1, 4: 0.15, 8: 0.3, 20: 0.5, 50: 0.65}[n]
            own = own * ratio if errors else own / ratio
        return _exchangeable(scores, null, own)

    return draw


def exponential(noise: Floats) -> Floats:
    """Normal noise as exponential scores."""
    return np.asarray(-stats.norm.logsf(noise))


def log_normal(noise: Floats) -> Floats:
    """Normal noise as log-normal scores; the largest of a hundred is thirty times the median."""
    return np.asarray(np.exp(1.5 * noise))


def gamma(noise: Floats) -> Floats:
    """Normal noise as gamma scores of shape .3: half of them nearly 0."""
    return np.asarray(stats.gamma.isf(stats.norm.sf(noise), 0.3))


def one_in_five(noise: Floats) -> Floats:
    """Nearly constant scores, except for one failure in five."""
    return (noise > stats.norm.ppf(0.8)) + 0.01 * stats.norm.cdf(noise)


def rare_failures(random: Random, n: int, leaks: bool) -> Sample:
    """PSNR of an attack that diverges on one victim in ten."""
    fails = stats.norm.ppf(0.1)
    scores, null = _crossed(random, n, lambda a, b, e: 20 + 2 * b + 2 * e - 10 * (a < fails))
    return _exchangeable(scores, null, np.diag(scores) + (4.5 * t_effect(n) if leaks else 0))


def rare_successes(random: Random, n: int, leaks: bool) -> Sample:
    """PSNR of guesses; one in twenty is close by luck, with a leak every second one."""
    rare = stats.norm.ppf(0.95)
    scores, null = _crossed(random, n, lambda _, b, e: 12 + 2 * b + 1.5 * e + 12 * (e > rare))
    own = np.diag(scores) + (12 * (random.random(n) < 0.5) if leaks else 0)
    return _exchangeable(scores, null, own)


def known_chance(chance: float) -> Draw:
    """One binary outcome per victim against a constant chance level: identification."""

    def draw(random: Random, n: int, leaks: bool) -> Sample:
        share = share_effect(n, chance) if leaks else chance
        hits = random.random((n, 1)) < share
        p = float(stats.binom.sf(hits.sum() - 1, n, chance))
        return Sample(values=hits * 1.0, null=np.full((n, 1), chance), known=True, p=p)

    return draw


def clustered_chance(rho: float) -> Draw:
    """Four images per victim with correlated success (``rho`` of the variance), against a chance of 0.1."""

    def draw(random: Random, n: int, leaks: bool) -> Sample:
        share = {3: 0.8, 4: 0.7, 8: 0.5, 20: 0.3, 50: 0.2}[n] if leaks else 0.1
        size = (1 - rho) / rho
        own = random.beta(share * size, (1 - share) * size, (n, 1))
        return Sample(values=(random.random((n, 4)) < own) * 1.0, null=np.full((n, 4), 0.1), known=True)

    return draw


def paired_shares(draws: int, share: float) -> Draw:
    """One outcome per victim against a null adversary's mean of ``draws`` guesses on the same victims."""

    def draw(random: Random, n: int, leaks: bool) -> Sample:
        rate = random.beta(10 * share, 10 * (1 - share), (n, 1))
        null = random.binomial(draws, rate) / draws
        more = {3: 0.9, 4: 0.9, 8: 0.8, 20: 0.5, 50: 0.35}[n] if leaks else 0.0
        hits = (random.random((n, 1)) < rate + (1 - rate) * more) * 1.0
        if draws > 1:
            return Sample(values=hits, null=null)
        won, lost = int((hits > null).sum()), int((hits < null).sum())
        p = float(stats.binom.sf(won - 1, won + lost, 0.5)) if won else 1.0
        return Sample(values=hits, null=null, p=p)

    return draw


def measured_null(share: float, elsewhere: float) -> Draw:
    """Like a paired share against one guess, whose share on 50 auxiliary examples is known (``elsewhere``).

    The null is the best of four on 40 of these examples. Claims are also scored on up to three other victims.
    """

    def draw(random: Random, n: int, leaks: bool) -> Sample:
        pseudo = random.random((4, 50)) < elsewhere
        result = pseudo[int(pseudo[:, :40].sum(1).argmax())]
        rate = random.beta(10 * share, 10 * (1 - share), (n, 1))
        null = (random.random((n, 1)) < rate) * 1.0
        more = {3: 0.9, 4: 0.9, 5: 0.9, 8: 0.8, 20: 0.5, 50: 0.35}[n] if leaks else 0.0
        hits = (random.random((n, 1)) < rate + (1 - rate) * more) * 1.0
        others = np.stack([np.roll(rate[:, 0], -shift) for shift in range(1, min(SHIFTS, n - 1) + 1)])
        return Sample(
            values=hits,
            null=null,
            most=proportion_interval(int(result.sum()), 50).high,
            exchanged=((random.random(others.shape) < others) * 1.0).T,
        )

    return draw


def _scores(random: Random, n: int, shift: float) -> tuple[Floats, NDArray[np.bool_]]:
    truth = random.permutation(np.arange(n) < max(1, round(n / 3)))
    return random.normal(size=n) + shift * truth, truth


def _shift(n: int, leaks: bool) -> float:
    return {3: 4.0, 4: 4.0, 8: 2.5, 20: 1.5, 50: 0.9}[n] if leaks else 0.0


def _called(scores: Floats, truth: NDArray[np.bool_]) -> Floats:
    """Decisions: the clients with the highest scores, as many as there are members."""
    return (scores >= np.sort(scores)[-int(truth.sum())]) * 1.0


def ranked_clients(random: Random, n: int, leaks: bool) -> Sample:
    """Scores of one federation's clients; exact test: Mann–Whitney."""
    scores, truth = _scores(random, n, _shift(n, leaks))
    p = float(stats.mannwhitneyu(scores[truth], scores[~truth], alternative="greater", method="exact").pvalue)
    return Sample(clients=(("0", scores, truth),), p=p)


def called_clients(random: Random, n: int, leaks: bool) -> Sample:
    """Decisions about one federation's clients; exact test: Fisher's."""
    scores, truth = _scores(random, n, _shift(n, leaks) * 1.3)
    called = _called(scores, truth)
    caught, members = int(called @ truth), int(truth.sum())
    p = float(stats.hypergeom.sf(caught - 1, n, members, members))
    return Sample(clients=(("0", called, truth),), p=p)


def caught_clients(random: Random, n: int, leaks: bool) -> Sample:
    """TPR at an FPR of 0.1; exact test: number of members ranked before the k-th non-member."""
    scores, truth = _scores(random, n, _shift(n, leaks) * 1.3)
    others = int((~truth).sum())
    rank = int(0.1 * (others + 1) + 1e-9)
    above = int((scores[truth] > np.sort(scores[~truth])[-rank]).sum())
    p = float(stats.nhypergeom.sf(above - 1, n, int(truth.sum()), rank))
    return Sample(clients=(("0", scores, truth),), p=p)


def copied_clients(copies: int, decisions: bool) -> Draw:
    """One federation whose clients are scored again after every round, with nearly equal scores."""

    def draw(random: Random, n: int, leaks: bool) -> Sample:
        scores, truth = _scores(random, n, _shift(n, leaks) * (1.3 if decisions else 1.0))
        again = scores + random.normal(0, 0.2, (copies, n))
        claims = tuple(("0", _called(x, truth) if decisions else x, truth) for x in again)
        return Sample(clients=claims)

    return draw


def several_runs(random: Random, n: int, leaks: bool) -> Sample:
    """Five federations with different detectors: by chance one ranks members high, another low."""
    runs = [_scores(random, n, random.normal(1.5 if leaks else 0, 0.4)) for _ in range(5)]
    claims = tuple((str(number), scores, truth) for number, (scores, truth) in enumerate(runs))
    return Sample(clients=claims)


FAMILIES = (
    Family(name="PSNR, normal differences", metric="psnr", draw=normal_differences, exact=True),
    Family(name="SSIM, bounded", metric="ssim", draw=bounded),
    Family(name="MSE, skewed errors", metric="mse", draw=skewed_errors),
    Family(name="PSNR, rare failures", metric="psnr", draw=rare_failures),
    Family(name="PSNR, rare successes", metric="psnr", draw=rare_successes),
    Family(name="MSE, exponential", metric="mse", draw=independent_pairs(exponential, errors=True)),
    Family(name="MSE, log-normal", metric="mse", draw=independent_pairs(log_normal, errors=True)),
    Family(name="MSE, gamma", metric="mse", draw=independent_pairs(gamma, errors=True)),
    Family(name="MSE, one failure in five", metric="mse", draw=independent_pairs(one_in_five, errors=True)),
    Family(name="PSNR, exponential", metric="psnr", draw=independent_pairs(exponential, errors=False)),
    Family(name="PSNR, log-normal", metric="psnr", draw=independent_pairs(log_normal, errors=False)),
    Family(name="share, chance .01", metric="identification", draw=known_chance(0.01), exact=True),
    Family(name="share, chance .1", metric="identification", draw=known_chance(0.1), exact=True),
    Family(name="share, chance .5", metric="identification", draw=known_chance(0.5), exact=True),
    Family(name="share, 4 images per victim", metric="identification", draw=clustered_chance(0.3)),
    Family(name="share, 4 images alike", metric="identification", draw=clustered_chance(0.95)),
    Family(name="share, paired with one guess", metric="rate_blind", draw=paired_shares(1, 0.2), exact=True),
    Family(name="share, paired, weak null", metric="rate_blind", draw=paired_shares(10, 0.1)),
    Family(name="share, paired, strong null", metric="rate_blind", draw=paired_shares(10, 0.9)),
    Family(name="share, null of .02 on 50 others", metric="rate_blind", draw=measured_null(0.02, 0.02)),
    Family(name="share, null of .1 on 50 others", metric="rate_blind", draw=measured_null(0.1, 0.1)),
    Family(name="share, null of .3 on 50 others", metric="rate_blind", draw=measured_null(0.3, 0.3)),
    Family(name="share, null of .1, .3 on victims", metric="rate_blind", draw=measured_null(0.3, 0.1)),
    Family(name="AUC", metric="auc", draw=ranked_clients, exact=True),
    Family(name="F1", metric="f1", draw=called_clients, exact=True),
    Family(name="TPR at FPR .1", metric="tpr_at_fpr", draw=caught_clients, exact=True, sizes=(20, 50)),
    Family(name="AUC, 20 claims on one run", metric="auc", draw=copied_clients(20, False)),
    Family(name="F1, 20 claims on one run", metric="f1", draw=copied_clients(20, True)),
    Family(name="AUC, 5 runs that differ", metric="auc", draw=several_runs),
)

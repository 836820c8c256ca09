"""PROLIN: the most likely assignment of the property, jointly with the features of each client.

The unknowns are the feature X of every client in every round in which it took part, and tau, whether the
client has the property.
MTAdam balances three losses, which are minimised jointly:

- likelihood: X[r, i] is distributed as the features of shadow clients with (tau) or without the property;
- sums: the X of a round sum to the feature of the round's sum, weighted by the detector's separation;
- means: the mean of a client's X is its mean feature by ridge regression.

All prefixes of rounds are solved in parallel, in one pass. X is stored only where a client took part;
gradients are analytic.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 5.2.4. Where we differ: the sums of the two
constraints are inside the norms, as in constraints 1 and 2 and in the authors' code (as printed, the relaxed
losses cannot be satisfied); ``start = "ridge"`` begins at the ridge solution instead of at random.
``variant = "paper"`` is the printed likelihood, a mixture of products over rounds, in log space;
``"reference"`` is the authors' code, in which log(1 + density) is summed over clients and rounds and a
client's mean is weighted by its number of rounds.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from glasshouse.attacks.property.evidence import Evidence
from glasshouse.attacks.property.mtadam import Floats, MTAdam
from glasshouse.attacks.property.readers import SumReader, sums_card
from glasshouse.attacks.property.reg import expected_features
from glasshouse.limits import Count, NotNegative
from glasshouse.progress import track
from glasshouse.registry import Card
from glasshouse.rng import Rng

Ints = NDArray[np.int64]
Variant = Literal["paper", "reference"]

EDGE = 1e-6
"""In the paper's variant tau keeps this distance from 0 and 1, where the logarithms diverge."""
PATIENCE, PROGRESS = 100, 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class Prolin(SumReader):
    """PROLIN; a client has the property when tau > 0.5.

    Args:
        looks_for: name of the registered property.
        settings: arguments of the property.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
        ridge: λ of the ridge regression.
        variant: ``paper`` or ``reference``.
        start: ``ridge``, or ``uniform`` as in the authors' code.
        iterations: maximum number; 200,000 in the authors' code. Both stop after 100 without progress.
    """

    card: ClassVar[Card] = sums_card(
        "PROLIN", "the most likely assignment of a property to clients, from sums over rounds", strength=1.0
    )

    name: ClassVar[str] = "prolin"
    ridge: NotNegative = 5.0
    variant: Variant = "paper"
    start: Literal["ridge", "uniform"] = "ridge"
    iterations: Count = 5000

    def search(self) -> tuple[str, int]:
        """Iterations over all prefixes at once."""
        return "iterations", self.iterations

    def judge(self, evidence: Evidence, lengths: tuple[int, ...], *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Scores are log odds of tau (paper) or tau itself (reference)."""
        problem = Problem.of(evidence, lengths, ridge=self.ridge, variant=self.variant)
        x, tau = problem.begin(self.start, rng=rng)
        solution = solve(problem, x, tau, iterations=self.iterations)
        scores, tau = (x.reshape(len(lengths), -1) for x in (solution.scores, solution.tau))
        return torch.from_numpy(scores), torch.from_numpy(tau > 0.5)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """P prefixes over N clients as flat arrays; an entry is one client in one round of one prefix.

    Attributes:
        starts: (P,), first entry of each prefix.
        who: (E,), index of an entry's prefix and client.
        slot: (E,), index of its prefix and round.
        mean: (2, E, t), of the features' normal densities, without (0) and with the property (1).
        precision: (2, E, t), of the same densities.
        constant: (2, E), log normalising constant of the same densities.
        sums: of the slots, (slots, t).
        weights: of the slots, (slots, t).
        expected: G̃, (clients, t).
        rounds: |R(i)|, (clients,), >= 1.
        variant: of the likelihood and of the means.
    """

    starts: Ints
    who: Ints
    slot: Ints
    mean: Floats
    precision: Floats
    constant: Floats
    sums: Floats
    weights: Floats
    expected: Floats
    rounds: Floats
    variant: Variant

    @classmethod
    def of(cls, evidence: Evidence, lengths: tuple[int, ...], *, ridge: float, variant: Variant) -> "Problem":
        """The problem of every prefix of ``evidence``."""
        present = evidence.participation.numpy() > 0
        n, clients = present.shape
        where = [np.nonzero(present[:length]) for length in lengths]
        round_of = np.concatenate([r for r, _ in where])
        who = np.concatenate([p * clients + i for p, (_, i) in enumerate(where)])
        mean, variance = evidence.mean.numpy(), evidence.variance.numpy()  # (n, 2, t)
        used = np.arange(n)[None] < np.array(lengths)[:, None]  # (P, n)
        return cls(
            starts=np.cumsum([0, *(len(r) for r, _ in where[:-1])]),
            who=who,
            slot=np.concatenate([p * n + r for p, (r, _) in enumerate(where)]),
            mean=mean[round_of].transpose(1, 0, 2).copy(),
            precision=1 / variance[round_of].transpose(1, 0, 2),
            constant=-0.5 * np.log(2 * np.pi * variance).sum(2)[round_of].T.copy(),
            sums=(evidence.features.numpy()[None] * used[:, :, None]).reshape(-1, mean.shape[2]),
            weights=np.tile((1 - evidence.overlap).numpy(), (len(lengths), 1)),
            expected=expected_features(evidence, lengths, ridge=ridge).numpy().reshape(-1, mean.shape[2]),
            rounds=np.maximum(np.bincount(who, minlength=len(lengths) * clients), 1).astype(float),
            variant=variant,
        )

    def begin(self, start: str, *, rng: Rng) -> tuple[Floats, Floats]:
        """Initial X (E, t) and tau (clients,)."""
        if start == "ridge":
            return self.expected[self.who], np.full(len(self.rounds), 0.5)
        draws = rng.child("start").numpy()
        return draws.random(self.mean.shape[1:]), draws.random(len(self.rounds))

    def gradients(self, x: Floats, tau: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Gradients of the losses by X (3, E, t) and by tau; total losses (P,); log odds (clients,)."""
        by_x = np.empty((3, *x.shape))
        slopes = (x[None] - self.mean) * self.precision  # (2, E, t), slope of -log density
        density = self.constant - 0.5 * ((x[None] - self.mean) * slopes).sum(2)  # (2, E), log
        likelihood = self._paper if self.variant == "paper" else self._reference
        loss, by_x[0], by_tau, odds = likelihood(density, slopes, tau)
        gap = self.sums - _sum_groups(x, self.slot, len(self.sums))
        by_x[1] = (-2 * self.weights * gap)[self.slot]
        shortfall = _sum_groups(x, self.who, len(self.rounds)) / self.rounds[:, None] - self.expected
        scale = np.ones_like(self.rounds) if self.variant == "paper" else self.rounds**2
        by_x[2] = (2 * (scale / self.rounds)[:, None] * shortfall)[self.who]
        count = len(self.starts)
        total = loss + (self.weights * gap * gap).reshape(count, -1).sum(1)
        total += (scale[:, None] * shortfall * shortfall).reshape(count, -1).sum(1)
        return by_x, by_tau, total, odds

    def _paper(self, density: Floats, slopes: Floats, tau: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """-sum over clients of log(tau ∏ f+ + (1 - tau) ∏ f-)."""
        without = np.log1p(-tau) + sum_by_group(self.who, density[0], len(tau))
        having = np.log(tau) + sum_by_group(self.who, density[1], len(tau))
        share: Floats = expit(having - without)
        by_tau = (1 - share) / (1 - tau) - share / tau
        loss: Floats = -np.logaddexp(having, without).reshape(len(self.starts), -1).sum(1)
        own = share[self.who][:, None]
        return loss, own * slopes[1] + (1 - own) * slopes[0], by_tau, having - without

    def _reference(
        self, density: Floats, slopes: Floats, tau: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """-sum over clients and rounds of log(1 + tau f+ + (1 - tau) f-)."""
        f = np.exp(density)  # (2, E)
        own = tau[self.who]
        parts = np.stack([(1 - own) * f[0], own * f[1]])
        mixed = 1 + parts.sum(0)
        by_x: Floats = ((parts / mixed)[:, :, None] * slopes).sum(0)
        by_tau = -sum_by_group(self.who, (f[1] - f[0]) / mixed, len(tau))
        loss: Floats = -np.add.reduceat(np.log(mixed), self.starts)
        return loss, by_x, by_tau, tau


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """The best tau and scores (P * N,) of the search, and the last X (E, t)."""

    tau: Floats
    scores: Floats
    x: Floats


def solve(problem: Problem, x: Floats, tau: Floats, *, iterations: int) -> Solution:
    """Minimise from ``x`` and ``tau``; every prefix ends separately when it stops making progress.

    As in the authors' code, the returned tau is the one after the step that started from the lowest total.
    """
    count, features = len(problem.starts), x.shape[1]
    x, tau = x.copy(), tau.copy()
    margin = EDGE if problem.variant == "paper" else 0.0
    # All prefixes are solved side by side, as blocks of one vector.
    for_x = MTAdam(x.size, 3, problem.starts * features)
    for_tau = MTAdam(tau.size, 1, np.arange(count) * (tau.size // count))
    best, stale = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    best_tau, scores, active = tau.copy(), tau.copy(), np.ones(count, dtype=bool)
    for _ in track(range(iterations), "property assignment", total=iterations):
        by_x, by_tau, total, odds = problem.gradients(x, tau)
        x -= for_x.step(by_x.reshape(3, -1)).reshape(x.shape)
        tau -= for_tau.step(by_tau[None])
        np.clip(tau, margin, 1 - margin, out=tau)
        # A prefix that has made no progress for a while keeps its best values; the others go on.
        better = active & (total < best - PROGRESS)
        stale = np.where(better, 0, stale + 1)
        best = np.where(better, total, best)
        chosen = np.repeat(better, tau.size // count)
        best_tau, scores = np.where(chosen, tau, best_tau), np.where(chosen, odds, scores)
        active &= stale < PATIENCE
        if not active.any():
            break
    return Solution(tau=best_tau, scores=scores, x=x)


def _sum_groups(values: Floats, groups: Ints, count: int) -> Floats:
    """Sums of the rows of ``values`` (E, t) by group: (count, t)."""
    return np.stack([sum_by_group(groups, column, count) for column in values.T], axis=1)


def sum_by_group(groups: Ints, values: Floats, count: int) -> Floats:
    """Sums of ``values`` (E,) by group: (count,)."""
    sums: Floats = np.bincount(groups, values, count).astype(np.float64, copy=False)
    return sums

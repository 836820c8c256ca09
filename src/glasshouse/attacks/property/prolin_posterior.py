"""The exact posterior of the assignment, with the features integrated out.

Shape letters: n rounds, N clients, t features, P prefixes, M chains.

Given the assignment of the property to a round's m clients, the sum of their features is normal, with the
summed means and covariances of the shadow clients' features; so only the number k of clients with it matters:

    G_r | k ~ Normal((m - k) mean- + k mean+, (m - k) cov- + k cov+).

With a prior share of clients that have the property, the posterior over all 2^N assignments is known up to a
constant. The share itself may be unknown: it gets a uniform prior and is integrated out, so that an
assignment of k among N clients has weight B(k + 1, N - k + 1). Marginals are averages of exact conditionals
along Gibbs sweeps (for up to ``EXACT`` clients, all assignments are summed).

Our own; not in the paper, whose relaxation it replaces. Like the paper's likelihood, it treats a client's
rounds as independent given the property, so it is overconfident if a client's data shift its feature in the
same direction in every round. ``persistence`` corrects this: the share of a feature's variance that is
constant per client, estimated on the held-out shadow clients, which also keep their data over the rounds.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from annotated_types import Ge, Le
from scipy.special import betaln, expit, logit
from torch import Tensor

from glasshouse.attacks.property.evidence import Evidence
from glasshouse.attacks.property.mtadam import Floats
from glasshouse.attacks.property.readers import SumReader, sums_card
from glasshouse.limits import Count, Share
from glasshouse.registry import Card
from glasshouse.rng import Rng

EXACT = 13
"""Up to this many clients, all assignments are summed."""


@final
@dataclass(frozen=True, kw_only=True)
class ProlinPosterior(SumReader):
    """Posterior marginals; a client has the property when its marginal is above one half.

    Args:
        looks_for: name of the registered property.
        settings: arguments of the property.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
        prior: expected share of clients with the property; 0: unknown, and inferred from the sums.
        persistence: model deviations that are constant per client (then both kinds of clients share one
            variance in each round); False: the rounds are independent.
        sweeps: Gibbs sweeps per chain, the first quarter discarded.
        chains: number of Gibbs chains.
    """

    card: ClassVar[Card] = sums_card(
        "PROLIN posterior",
        "posterior of a property per client, features integrated out in closed form",
        source="",  # our own
        strength=1.0,
    )

    name: ClassVar[str] = "prolin_posterior"
    prior: Share = 0.0
    persistence: bool = True
    sweeps: Annotated[int, Ge(4), Le(2**31 - 1)] = 200
    chains: Count = 4

    def search(self) -> tuple[str, int]:
        """Sweeps of all chains, per prefix."""
        return "sweeps", self.sweeps * self.chains

    def judge(self, evidence: Evidence, lengths: tuple[int, ...], *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Scores are log odds of the marginals."""
        model = Persistent if self.persistence else Independent
        log_odds, clients = [], evidence.participation.shape[1]
        for n in lengths:
            known = model(evidence.upto(n), prior=self.prior or 0.5)
            density = known if self.prior else UnknownShare(known)
            if clients <= EXACT:
                log_odds.append(convolve_clients(density, clients))
            else:
                sweeps, chains, stream = self.sweeps, self.chains, rng.child(f"prefix/{n}")
                log_odds.append(sample_posterior(density, clients, sweeps=sweeps, chains=chains, rng=stream))
        scores = torch.from_numpy(np.stack(log_odds))
        return scores, scores > 0


@final
class UnknownShare:
    """A density without a prior; the share of clients with the property is uniform and integrated out.

    Args:
        density: with a neutral prior of one half.
    """

    def __init__(self, density: "Independent | Persistent") -> None:
        self._density = density

    def logs(self, assignments: Floats) -> Floats:
        """(M, N) of 0 and 1 → (M,) log densities, up to a common constant."""
        having = assignments.sum(1)
        weight: Floats = betaln(having + 1, assignments.shape[1] - having + 1)
        return self._density.logs(assignments) + weight

    def odds(self, client: int, assignments: Floats) -> Floats:
        """Log odds that ``client`` has the property, given the other clients' assignments (M, N): (M,)."""
        others = assignments.sum(1) - assignments[:, client]
        prior: Floats = np.log(others + 1) - np.log(assignments.shape[1] - others)
        return self._density.odds(client, assignments) + prior


@final
class Independent:
    """Density with rounds independent given the assignment: a table of log likelihoods by round and k.

    Args:
        evidence: features of the sums and of shadow clients.
        prior: share of clients with the property.
    """

    def __init__(self, evidence: Evidence, *, prior: float) -> None:
        self._present = evidence.participation.numpy()
        self._prior = float(logit(prior))
        count = evidence.count.numpy()
        k = np.arange(int(count.max()) + 1)
        weights = torch.from_numpy(
            np.stack([np.maximum(count[:, None] - k, 0.0), np.tile(k, (len(count), 1))])
        )
        heldout_features = evidence.heldout  # (n, 2, H, t)
        centred = heldout_features - heldout_features.mean(2, keepdim=True)
        covariance = torch.einsum("nchs,ncht->ncst", centred, centred) / heldout_features.shape[2]
        covariance = covariance + 1e-12 * torch.eye(heldout_features.shape[3], dtype=heldout_features.dtype)
        mean = torch.einsum("cnk,nct->nkt", weights, evidence.mean)
        spread = torch.einsum("cnk,ncst->nkst", weights, covariance)
        gap = (evidence.features[:, None] - mean)[..., None]
        root = torch.linalg.cholesky(spread)
        scaled = torch.linalg.solve_triangular(root, gap, upper=False)[..., 0]
        size = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        self._table: Floats = (-0.5 * scaled.square().sum(-1) - size).numpy()  # (n, K)
        self._gain = np.diff(self._table, axis=1)

    def logs(self, assignments: Floats) -> Floats:
        k = (assignments @ self._present.T).astype(int)  # (M, n)
        total: Floats = self._table[np.arange(k.shape[1])[None], k].sum(1)
        total += self._prior * assignments.sum(1)
        return total

    def odds(self, client: int, assignments: Floats) -> Floats:
        rows = np.nonzero(self._present[:, client])[0]
        others = assignments.copy()
        others[:, client] = 0
        k = (others @ self._present[rows].T).astype(int)  # (M, rounds of the client)
        gain: Floats = self._gain[rows[None], k].sum(1)
        return gain + self._prior


@final
class Persistent:
    """Density in which part of a client's deviation from the mean feature is constant; it is quadratic.

    In units of a round's pooled standard deviation, with d the distance of the two means,

        y_r = sum over clients in r of (d_r tau_i + sqrt(rho) b_i + sqrt(1 - rho) e_ri),

    b and e standard normal, where rho is the persistence. The mean without the property is estimated from
    only H held-out shadow clients; its error has the same two components, is shared by all m clients of a
    round, and is integrated out, which adds m_r m_s (rho + (1 - rho) [r = s]) / H. Features (t > 1) are
    summed first.

    Args:
        evidence: features of the sums and of shadow clients.
        prior: share of clients with the property.
        rho: persistence; None: estimated on the held-out shadow clients.
    """

    def __init__(self, evidence: Evidence, *, prior: float, rho: float | None = None) -> None:
        heldout_features = evidence.heldout.sum(3).numpy()  # (n, 2, H)
        scale = np.sqrt(heldout_features.var(2).mean(1)) + 1e-12
        rho = persistence(heldout_features) if rho is None else rho
        present = evidence.participation.numpy()
        count = evidence.count.numpy()
        base = heldout_features[:, 0].mean(1)
        y = (evidence.features.sum(1).numpy() - count * base) / scale
        design = ((heldout_features[:, 1].mean(1) - base) / scale)[:, None] * present
        noise = rho * present @ present.T + (1 - rho) * np.diag(count)
        noise += (rho * np.outer(count, count) + (1 - rho) * np.diag(count**2)) / heldout_features.shape[2]
        solved = np.linalg.solve(noise, np.column_stack([design, y]))
        self._pull: Floats = design.T @ solved[:, -1] + float(logit(prior))
        self._tie: Floats = design.T @ solved[:, :-1]

    def logs(self, assignments: Floats) -> Floats:
        total: Floats = assignments @ self._pull
        total -= 0.5 * np.einsum("mi,ij,mj->m", assignments, self._tie, assignments)
        return total

    def odds(self, client: int, assignments: Floats) -> Floats:
        own = self._tie[client, client]
        others = assignments @ self._tie[client] - assignments[:, client] * own
        log_odds: Floats = self._pull[client] - 0.5 * own - others
        return log_odds


Density = Independent | Persistent | UnknownShare
"""The posterior of assignments, up to a constant."""


def persistence(features: Floats) -> float:
    """Share of the features' variance that is constant per client, from n rounds of shadows (n, 2, H).

    Standardised per round and kind, the mean over rounds has variance rho + (1 - rho) / n; rho in [0, 0.99].
    """
    rounds = len(features)
    z = (features - features.mean(2, keepdims=True)) / (features.std(2, keepdims=True) + 1e-12)
    between = float(z.mean(0).var(1, ddof=1).mean())
    return float(np.clip((rounds * between - 1) / (rounds - 1), 0.0, 0.99)) if rounds > 1 else 0.0


def convolve_clients(density: Density, clients: int) -> Floats:
    """Log odds of every client's marginal, by summing over all 2^N assignments: (N,)."""
    every = (np.arange(2**clients)[:, None] >> np.arange(clients) & 1).astype(float)
    logs = density.logs(every)
    weights = np.exp(logs - logs.max())
    odds: Floats = np.log(weights @ every + 1e-300) - np.log(weights @ (1 - every) + 1e-300)
    return odds


def sample_posterior(density: Density, clients: int, *, sweeps: int, chains: int, rng: Rng) -> Floats:
    """Log odds of every client's marginal: its exact conditional, averaged along Gibbs sweeps: (N,).

    One chain starts from no client, the others from random assignments; where the average is 0 or 1 in
    floating point, the mean conditional log odds are returned instead, to order the clients.
    """
    draws = rng.numpy()
    state = (draws.random((chains, clients)) < 0.5).astype(float)
    state[0] = 0
    share, sure, samples = np.zeros(clients), np.zeros(clients), 0
    for sweep in range(sweeps):
        uniform = draws.random((clients, chains))
        late = sweep >= sweeps // 4
        for client in range(clients):
            odds = density.odds(client, state)
            chance = expit(odds)
            state[:, client] = uniform[client] < chance
            if late:
                share[client] += chance.mean()
                sure[client] += odds.mean()
        samples += late
    share, sure = share / samples, sure / samples
    inside = (share > 1e-12) & (share < 1 - 1e-12)
    return np.where(inside, logit(np.clip(share, 1e-12, 1 - 1e-12)), sure)

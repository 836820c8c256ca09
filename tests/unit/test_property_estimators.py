"""Estimators of a property on made-up features: agreement with slow twins, and what they must find."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logit

from glasshouse.attacks.property.disaggregation import votes
from glasshouse.attacks.property.evidence import Evidence
from glasshouse.attacks.property.mtadam import MTAdam
from glasshouse.attacks.property.ols import least_squares
from glasshouse.attacks.property.prolin import Problem, solve
from glasshouse.attacks.property.prolin_posterior import (
    Independent,
    Persistent,
    UnknownShare,
    convolve_clients,
    persistence,
    sample_posterior,
)
from glasshouse.attacks.property.readers import normal_equations, prefixes
from glasshouse.attacks.property.reg import expected_features
from glasshouse.rng import Rng

DOUBLE = torch.float64


def made_up(
    *, rounds=60, clients=20, cohort=4, positive=(1, 5), gap=6.0, features=1, seed=0, held=200
) -> tuple[Evidence, np.ndarray]:
    """Normal features with means ∓gap / 2 and standard deviation 1; every round its own offset from 0."""
    draw = np.random.default_rng(seed)
    present = np.zeros((rounds, clients))
    for row in present:
        row[draw.permutation(clients)[:cohort]] = 1
    truth = np.isin(np.arange(clients), positive)
    x = draw.normal(size=(rounds, clients, features)) + gap * (truth[:, None] - 0.5)
    sums = (present[:, :, None] * x).sum(1)
    kernel = np.zeros((features, rounds, rounds))
    for k in range(features):
        kernel[k][np.diag_indices(rounds)] = sums[:, k]
    shadows = draw.normal(size=(rounds, 2, held, features)) + gap * (np.arange(2) - 0.5)[None, :, None, None]
    evidence = Evidence(
        rounds=tuple(range(rounds)),
        participation=torch.tensor(present),
        count=torch.tensor(present.sum(1)),
        kernel=torch.tensor(kernel),
        offset=torch.zeros(rounds, features, dtype=DOUBLE),
        heldout=torch.tensor(shadows),
        norm=torch.ones(rounds, features, dtype=DOUBLE),
    )
    return evidence, truth


@pytest.mark.parametrize("features", [1, 3])
def test_every_estimator_is_right_when_features_do_not_overlap(features):
    evidence, truth = made_up(
        rounds=100, clients=50, cohort=10, positive=(3, 8, 20, 31, 49), gap=12.0, features=features
    )
    assert float(evidence.overlap.max()) < 1e-6
    a, g = evidence.participation, evidence.features
    assert np.array_equal(least_squares(a, g).numpy() > 0, truth)
    assert np.array_equal(expected_features(evidence, (100,), ridge=5.0)[0].mean(1).numpy() > 0, truth)
    for variant in ("paper", "reference"):
        problem = Problem.of(evidence, (50, 100), ridge=5.0, variant=variant)
        solution = solve(problem, *problem.begin("ridge", rng=Rng.root(0)), iterations=300)
        assert np.array_equal(solution.tau.reshape(2, -1)[1] > 0.5, truth)
    for density in (Independent(evidence, prior=0.1), Persistent(evidence, prior=0.1, rho=0.3)):
        odds = sample_posterior(density, 50, sweeps=40, chains=2, rng=Rng.root(1))
        assert np.array_equal(odds > 0, truth)


def assignments(clients: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=clients)))


def brute_force(evidence: Evidence, prior: float, covariance) -> np.ndarray:
    """Log odds of every client by the definition: normal density of all sums, summed over assignments."""
    a, g = evidence.participation.numpy(), evidence.features[:, 0].numpy()
    mean = evidence.mean[:, :, 0].numpy()
    every = assignments(a.shape[1])
    weights = []
    for tau in every:
        centre = a @ (1 - tau) * mean[:, 0] + a @ tau * mean[:, 1]
        fit = stats.multivariate_normal.logpdf(g, centre, covariance(a, tau))
        weights.append(fit + tau.sum() * logit(prior))
    w = np.exp(np.array(weights) - max(weights))
    return np.log(w @ every) - np.log(w @ (1 - every))


def test_posterior_equals_brute_force():
    evidence, _ = made_up(rounds=12, clients=8, cohort=3, gap=1.5)
    variance = evidence.variance[:, :, 0].numpy()

    def independent(a, tau):
        return np.diag(a @ (1 - tau) * variance[:, 0] + a @ tau * variance[:, 1])

    values = brute_force(evidence, 0.2, independent)
    density = Independent(evidence, prior=0.2)
    np.testing.assert_allclose(convolve_clients(density, 8), values, rtol=1e-8)
    chances = stats.logistic.cdf(sample_posterior(density, 8, sweeps=3000, chains=4, rng=Rng.root(3)))
    np.testing.assert_allclose(chances, stats.logistic.cdf(values), atol=0.02)


def test_posterior_with_persistence_equals_brute_force():
    evidence, _ = made_up(rounds=12, clients=8, cohort=3, gap=1.5)
    pooled = evidence.variance[:, :, 0].mean(1).numpy()

    def persistent(a, tau):
        scale = np.sqrt(np.outer(pooled, pooled))
        m = a.sum(1)
        of_mean = (0.4 * np.outer(m, m) + 0.6 * np.diag(m**2)) / 200
        return scale * (0.4 * a @ a.T + 0.6 * np.diag(m) + of_mean)

    values = brute_force(evidence, 0.2, persistent)
    density = Persistent(evidence, prior=0.2, rho=0.4)
    np.testing.assert_allclose(convolve_clients(density, 8), values, rtol=1e-7)


def test_a_share_that_is_not_known_is_integrated_out():
    """By the definition: the posterior for each of many shares, weighted by how well that share explains."""
    evidence, _ = made_up(rounds=12, clients=8, cohort=3, gap=1.5)
    shares = (np.arange(2000) + 0.5) / 2000
    every = assignments(8)
    likelihood = np.exp(Independent(evidence, prior=0.5).logs(every))
    k = every.sum(1)
    joint = sum(likelihood * s**k * (1 - s) ** (8 - k) for s in shares)
    values = np.log(joint @ every) - np.log(joint @ (1 - every))
    density = UnknownShare(Independent(evidence, prior=0.5))
    np.testing.assert_allclose(convolve_clients(density, 8), values, atol=1e-4)
    chances = stats.logistic.cdf(sample_posterior(density, 8, sweeps=3000, chains=4, rng=Rng.root(3)))
    np.testing.assert_allclose(chances, stats.logistic.cdf(values), atol=0.02)


@pytest.mark.parametrize("members", [1, 5, 20, 45])
def test_an_unknown_share_follows_the_sums(members):
    evidence, truth = made_up(rounds=300, clients=50, cohort=10, positive=range(members), gap=3.0)
    odds = sample_posterior(
        UnknownShare(Persistent(evidence, prior=0.5, rho=0.0)), 50, sweeps=100, chains=4, rng=Rng.root(1)
    )
    assert ((odds > 0) != truth).sum() <= 1


def test_a_mean_from_few_shadows_does_not_move_everybody():
    """Held-out shadows that lie to one side in every round, by chance, must not make members of strangers."""
    wrong = np.zeros(2)
    for seed in range(4):
        evidence, truth = made_up(
            rounds=200, clients=50, cohort=10, positive=(3, 8, 20), gap=4.0, held=12, seed=seed
        )
        few = evidence.heldout - 0.6  # two standard errors of a mean of twelve
        for which, heldout in enumerate((few, few.repeat(1, 1, 1000, 1))):  # the same mean, thought exact
            density = Persistent(dataclasses.replace(evidence, heldout=heldout), prior=0.1, rho=0.3)
            odds = sample_posterior(density, 50, sweeps=60, chains=2, rng=Rng.root(1))
            wrong[which] += ((odds > 0) != truth).sum()
    assert wrong[0] <= 4
    assert wrong[1] > 3 * wrong[0]


@pytest.mark.parametrize("density", [Independent, Persistent])
def test_conditional_odds_are_differences_of_the_density(density):
    evidence, _ = made_up(rounds=15, clients=6, cohort=3, gap=2.0, features=2)
    one = density(evidence, prior=0.3)
    every = assignments(6)
    for client in range(6):
        on, off = every.copy(), every.copy()
        on[:, client], off[:, client] = 1, 0
        np.testing.assert_allclose(one.odds(client, every), one.logs(on) - one.logs(off), atol=1e-8)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_persistence_is_recovered(rho):
    draw = np.random.default_rng(0)
    stays = draw.normal(size=(1, 2, 4000))
    heldout = 3 + 7 * (math.sqrt(rho) * stays + math.sqrt(1 - rho) * draw.normal(size=(50, 2, 4000)))
    assert persistence(heldout) == pytest.approx(rho, abs=0.03)


def test_one_pass_over_prefixes_equals_one_solve_each():
    evidence, _ = made_up(features=2)
    lengths = prefixes(60, 25)
    assert lengths == (25, 50, 60)
    passed = expected_features(evidence, lengths, ridge=5.0)
    for n, result in zip(lengths, passed, strict=True):
        part = evidence.upto(n)
        a, v = part.participation, 1 - part.overlap
        for k in range(2):
            left = a.T @ (v[:, k, None] * a) + 5 * torch.eye(20, dtype=DOUBLE)
            expected = torch.linalg.solve(left, a.T @ (v[:, k] * part.features[:, k]))
            torch.testing.assert_close(result[:, k], expected)
    assert normal_equations(evidence, lengths, 1 - evidence.overlap)[0].shape == (3, 2, 20, 20)


def test_votes_equal_scoring_every_rebuilt_update():
    """The slow twin forms W = A⁺ B and asks every detector about every row."""
    draw = torch.Generator().manual_seed(0)
    n, clients, z = 30, 8, 50
    a = (torch.rand(n, clients, generator=draw, dtype=DOUBLE) < 0.4).double()
    sums, directions = (torch.randn(n, z, generator=draw, dtype=DOUBLE) for _ in range(2))
    offset = torch.randn(n, 1, generator=draw, dtype=DOUBLE)
    evidence = Evidence(
        rounds=tuple(range(n)),
        participation=a,
        count=a.sum(1),
        kernel=(sums @ directions.T)[None],
        offset=offset,
        heldout=torch.zeros(n, 2, 4, 1, dtype=DOUBLE),
        norm=offset,
    )
    rebuilt = torch.linalg.pinv(a[:20]) @ sums[:20]
    expected = torch.stack([(w @ directions[:20].T + offset[:20, 0] > 0).double().mean() for w in rebuilt])
    torch.testing.assert_close(votes(evidence.upto(20)), expected)


def dense_twin(evidence: Evidence, x0, tau0, iterations: int, variant: str):
    """The whole X with autograd, and MTAdam word for word, one tensor and one loss at a time."""
    a, g = evidence.participation, evidence.features[:, 0]
    mean, var = evidence.mean[:, :, 0], evidence.variance[:, :, 0]
    v, expected = 1 - evidence.overlap[:, 0], expected_features(evidence, (len(g),), ridge=5.0)[0, :, 0]
    x, tau = x0.clone().requires_grad_(), tau0.clone().requires_grad_()
    moments: dict[tuple[str, int], list] = {}
    edge = 1e-6 if variant == "paper" else 0.0
    for step in range(1, iterations + 1):
        logs = [
            -0.5 * (x - mean[:, c, None]) ** 2 / var[:, c, None]
            - 0.5 * torch.log(2 * math.pi * var[:, c, None])
            for c in (0, 1)
        ]
        if variant == "paper":
            low, high = (torch.log1p(-tau) + (a * logs[0]).sum(0)), (torch.log(tau) + (a * logs[1]).sum(0))
            ml = -torch.logaddexp(low, high).sum()
        else:
            ml = -torch.log1p(a * (tau * logs[1].exp() + (1 - tau) * logs[0].exp())).sum()
        lstsq = (v * (g - (a * x).sum(1)) ** 2).sum()
        count = a.sum(0)
        means = (a * x).sum(0) - count * expected
        reg = ((means / count if variant == "paper" else means) ** 2).sum()
        for name, p in (("x", x), ("tau", tau)):
            update, widest, norms = torch.zeros_like(p), torch.zeros_like(p), []
            parts = []
            for j, loss in enumerate((ml, lstsq, reg)):
                (grad,) = torch.autograd.grad(loss, p, retain_graph=True, allow_unused=True)
                grad = torch.zeros_like(p) if grad is None else grad
                size = grad.norm()
                state = moments.setdefault((name, j), [size, torch.zeros_like(p), torch.zeros_like(p)])
                state[0] = size if step == 1 else 0.9 * state[0] + 0.1 * size
                norms.append(state[0])
                parts.append((grad, state))
            anchor = next((s for s in norms if s > 1e-10), norms[0])
            for grad, state in parts:
                grad = grad * anchor / state[0] if state[0] > 1e-10 else grad
                state[1] = 0.9 * state[1] + 0.1 * grad
                state[2] = 0.999 * state[2] + 0.001 * grad**2
                widest = torch.maximum(widest, (state[2] / (1 - 0.999**step)).sqrt() + 1e-8)
            for _, state in parts:
                update = update + 1e-3 / (1 - 0.9**step) * state[1] / widest
            if name == "x":
                new_x = (x - update).detach()
            else:
                new_tau = (tau - update).detach().clamp(edge, 1 - edge)
        x, tau = new_x.requires_grad_(), new_tau.requires_grad_()
    return x.detach(), tau.detach()


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_sparse_optimisation_equals_dense_autograd(variant):
    evidence, _ = made_up(rounds=15, clients=8, cohort=3, gap=2.0)
    draw = torch.Generator().manual_seed(1)
    x0, tau0 = torch.rand(15, 8, generator=draw, dtype=DOUBLE), torch.rand(8, generator=draw, dtype=DOUBLE)
    x, tau = dense_twin(evidence, x0, tau0, 150, variant)
    problem = Problem.of(evidence, (15,), ridge=5.0, variant=variant)
    present = evidence.participation.numpy() > 0
    solution = solve(problem, x0.numpy()[present][:, None], tau0.numpy(), iterations=150)
    np.testing.assert_allclose(solution.x[:, 0], x.numpy()[present], atol=1e-8)
    np.testing.assert_allclose(solution.tau, tau.numpy(), atol=1e-8)


def test_prefixes_side_by_side_equal_each_alone():
    evidence, _ = made_up()
    together = Problem.of(evidence, (20, 60), ridge=5.0, variant="paper")
    both = solve(together, *together.begin("ridge", rng=Rng.root(0)), iterations=200)
    for position, n in enumerate((20, 60)):
        alone = Problem.of(evidence.upto(n), (n,), ridge=5.0, variant="paper")
        one = solve(alone, *alone.begin("ridge", rng=Rng.root(0)), iterations=200)
        np.testing.assert_allclose(both.tau.reshape(2, -1)[position], one.tau, atol=1e-10)


def test_mtadam_with_one_loss_is_adam():
    target = torch.tensor([3.0, -2.0], dtype=DOUBLE)
    p = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    adam, mine, q = torch.optim.Adam([p], lr=1e-3), MTAdam(2, 1, np.zeros(1, dtype=np.int64)), np.zeros(2)
    for _ in range(20):
        adam.zero_grad()
        ((p - target) ** 2).sum().backward()
        adam.step()
        # One loss is scaled by anchor / itself = 1.
        q -= mine.step((2 * (q - target.numpy()))[None])
    np.testing.assert_allclose(q, p.detach().numpy(), rtol=1e-5)

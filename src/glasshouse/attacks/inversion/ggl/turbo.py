"""TuRBO-1: Bayesian optimisation inside a box that grows with success and shrinks with failure.

Source: Eriksson, Pearce, Gardner, Turner & Poloczek 2019, "Scalable Global Optimization via Local Bayesian
Optimization", arXiv:1910.01739, algorithm 1, section 2 and the supplement's constants, implemented from the
paper on botorch's Gaussian process. Where we differ: Thompson samples over 1,000 candidates instead of 5,000
(the joint sample dominated the cost); hyperparameters are fitted by a fixed number of Adam steps.

Shape letters: R points evaluated together, n coordinates, m points evaluated so far, c candidates.
"""

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from glasshouse.attacks.inversion.ggl.search import Best, LatentLoss, LatentSearch, Tally
from glasshouse.errors import not_installed
from glasshouse.progress import stage
from glasshouse.rng import Rng

try:
    from botorch.models import SingleTaskGP
    from gpytorch.constraints import Interval
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.mlls import ExactMarginalLogLikelihood
except ImportError as error:
    raise not_installed(
        "the optimizer 'turbo'", "botorch", error, extra="ggl", instead='set search.optimizer = "adam"'
    ) from error

LARGEST, FIRST, SMALLEST = 1.6, 0.8, 0.5**7
"""Side of the trust region in the unit cube: largest, initial, and smallest, below which TuRBO restarts."""


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Constants of the search.

    Attributes:
        half_width: the box is [-half_width, half_width]^n.
        initial: points before the first model.
        batch: points per model.
        candidates: points among which Thompson sampling chooses.
        fit_steps: steps of Adam on the marginal likelihood, from scratch for every model.
    """

    half_width: float = 2.0
    initial: int = 256
    batch: int = 10
    candidates: int = 1000
    fit_steps: int = 50


@final
@dataclass(kw_only=True)
class _Region:
    """The trust region's side, and the consecutive successes and failures that resize it."""

    patience: int
    side: float = FIRST
    won: int = 0
    lost: int = 0
    best: float = field(default=math.inf)

    def saw(self, value: float) -> None:
        if value < self.best - 1e-3 * abs(self.best) or math.isinf(self.best):
            self.won, self.lost = self.won + 1, 0
        else:
            self.won, self.lost = 0, self.lost + 1
        self.best = min(self.best, value)
        if self.won == 3:
            self.side, self.won = min(2 * self.side, LARGEST), 0
        elif self.lost >= self.patience:
            self.side, self.lost = self.side / 2, 0


def minimize(
    loss: LatentLoss, dimension: int, search: LatentSearch, *, rng: Rng, settings: Settings | None = None
) -> Best:
    """One trial in [-half_width, half_width]^n.

    Args:
        loss: over points (R, n).
        dimension: n.
        search: evaluations are spent exactly.
        rng: for designs, masks and Thompson samples.
        settings: see :class:`Settings`.
    """
    how, restarts = settings or Settings(), 0
    tally = Tally(loss, search)
    with stage("searching the latent space"):
        while tally.left:
            _one_region(tally, dimension, how, rng=rng.child(f"turbo/{restarts}"))
            restarts += 1
    return tally.result()


def _one_region(tally: Tally, dimension: int, how: Settings, *, rng: Rng) -> None:
    """Search from a Latin hypercube until the region is too small or the budget is spent."""

    def evaluate(unit: Tensor) -> Tensor:  # points of the unit cube (R, n) → losses (R,)
        return tally(((2 * unit - 1) * how.half_width).float())

    points = _latin_hypercube(min(how.initial, tally.left), dimension, rng=rng.child("design"))
    values = evaluate(points)
    region = _Region(
        patience=math.ceil(max(4.0 / how.batch, dimension / how.batch)), best=float(values.min())
    )
    number = 0
    while tally.left and region.side >= SMALLEST:
        stream = rng.child(f"batch/{number}")
        count = min(how.batch, tally.left)
        proposals = _thompson(points, values, region.side, count=count, how=how, rng=stream)
        new_values = evaluate(proposals)
        region.saw(float(new_values.min()))
        points, values = torch.cat([points, proposals]), torch.cat([values, new_values])
        number += 1


def _latin_hypercube(count: int, dimension: int, *, rng: Rng) -> Tensor:
    """(count, n) in the unit cube, float64: every coordinate has one point in each of ``count`` slices."""
    draws = rng.torch()
    slices = torch.stack([torch.randperm(count, generator=draws) for _ in range(dimension)], 1)
    return (slices + torch.rand(count, dimension, generator=draws, dtype=torch.float64)) / count


def _thompson(points: Tensor, values: Tensor, side: float, *, count: int, how: Settings, rng: Rng) -> Tensor:
    """``count`` new points (count, n): minima of joint posterior samples over random candidates."""
    finite = values.clamp_max(values[values.isfinite()].max() if bool(values.isfinite().any()) else 0.0)
    spread = finite.std() if len(finite) > 1 and float(finite.std()) > 0 else finite.new_ones(())
    scaled = ((finite - finite.median()) / spread).unsqueeze(1)
    model = _fit_process(points, scaled, how.fit_steps)
    lengthscales = model.covar_module.base_kernel.lengthscale.detach().squeeze(0)
    candidates = _candidates(points[values.argmin()], lengthscales, side, how=how, rng=rng)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(rng.child("thompson").seed())
        posterior_draws = model.posterior(candidates).rsample(torch.Size([count])).squeeze(-1)  # (count, c)
    picks: list[int] = []
    for row in posterior_draws:
        order = row.argsort().tolist()
        picks.append(next(i for i in order if i not in picks))
    return candidates[picks]


def _fit_process(points: Tensor, values: Tensor, steps: int) -> SingleTaskGP:
    likelihood = GaussianLikelihood(noise_constraint=Interval(5e-4, 0.2))
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, ard_num_dims=points.shape[1], lengthscale_constraint=Interval(0.005, 2.0)),
        outputscale_constraint=Interval(0.05, 20.0),
    )
    model = SingleTaskGP(points, values, likelihood=likelihood, covar_module=kernel, outcome_transform=None)
    model.covar_module.outputscale = 1.0
    model.covar_module.base_kernel.lengthscale = 0.5
    model.likelihood.noise = 0.005
    marginal = ExactMarginalLogLikelihood(model.likelihood, model)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (-marginal(model(*model.train_inputs), model.train_targets)).backward()
        optimizer.step()
    return model.eval()


def _candidates(centre: Tensor, lengthscales: Tensor, side: float, *, how: Settings, rng: Rng) -> Tensor:
    """(c, n): Sobol points in a box around the best point, differing from it in about 20 coordinates."""
    dimension = len(centre)
    weights = lengthscales / lengthscales.mean()
    weights = weights / weights.log().mean().exp()
    low, high = ((centre + sign * weights * side / 2).clamp(0, 1) for sign in (-1, 1))
    seed = rng.child("sobol").seed() % 2**31
    engine = SobolEngine(dimension, scramble=True, seed=seed)  # type: ignore[no-untyped-call]  # torch's own
    sobol = low + (high - low) * engine.draw(how.candidates, dtype=torch.float64)
    draws = rng.child("mask").torch()
    change = torch.rand(how.candidates, dimension, generator=draws) <= min(20.0 / dimension, 1.0)
    unchanged = ~change.any(1)
    change[unchanged, torch.randint(dimension, (int(unchanged.sum()),), generator=draws)] = True
    return torch.where(change, sobol, centre)

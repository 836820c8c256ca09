"""How near a generator can come to given images: its own latent space searched for each of them.

For the scoring side, where the truth may be used: the ceiling of an attack through a generator.

Shape letters: N images, D latent entries, C channels, H and W pixels.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from glasshouse.rng import Rng

Prior = Callable[[Tensor, Tensor], Tensor]
"""Latent (N, D) and labels (N,) → pixels (N, C, H, W), differentiable."""

STEPS: Final = 300
STARTS: Final = 4


def invert_generator(prior: Prior, images: Tensor, labels: Tensor, *, latent: int, rng: Rng) -> Tensor:
    """The generator's images (N, C, H, W) nearest to ``images`` (mean squared error), as Adam finds them.

    The best of ``STARTS`` starts from N(0, 1), ``STEPS`` steps each; it may miss the optimum, so it is a
    lower bound on the ceiling.
    """
    return search_latents(prior, images, labels, starts=draw_starts(len(images), latent, rng=rng))


def draw_starts(count: int, latent: int, *, rng: Rng) -> Tensor:
    """``STARTS`` points for each of ``count`` images, (STARTS, N, D)."""
    return torch.randn(STARTS * count, latent, generator=rng.torch()).reshape(STARTS, count, latent)


def search_latents(prior: Prior, images: Tensor, labels: Tensor, *, starts: Tensor) -> Tensor:
    """What :func:`invert_generator` finds from given starts (STARTS, N, D); no image depends on another."""
    count = len(images)
    targets, repeated = images.repeat(STARTS, 1, 1, 1), labels.repeat(STARTS)
    points = starts.flatten(0, 1).to(images.device).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.1)
    best, errors = targets.clone(), targets.new_full((STARTS * count,), torch.inf)
    for _ in range(STEPS):
        candidates = prior(points, repeated)
        error = (candidates - targets).square().flatten(1).mean(1)
        (points.grad,) = torch.autograd.grad(error.sum(), points)
        with torch.no_grad():
            better = error < errors
            best = torch.where(better[:, None, None, None], candidates, best)
            errors = torch.where(better, error, errors)
        optimizer.step()
    chosen = errors.reshape(STARTS, count).argmin(0)
    return best.reshape(STARTS, count, *images.shape[1:])[chosen, torch.arange(count)]

"""The images of a generator nearest to given images, found by a search of its latent space.

Used in scoring only, where the ground truth is available: the upper bound of an attack through a generator.

Shape letters: N images, D latent entries, C channels, H and W pixels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from glasshouse.cache import load_or_make
from glasshouse.rng import Rng
from glasshouse.tensors import FUSED

Prior = Callable[[Tensor, Tensor], Tensor]
"""Latent (N, D) and labels (N,) → pixels (N, C, H, W), differentiable."""

STEPS: Final = 300
STARTS: Final = 4
TOGETHER: Final = 16
"""Number of images per batch of the search."""
FOLDER: Final = "nearest"
"""Cache folder in the run directory, since several cells need the same images; removed after the run."""


def nearest_images(prior: Prior, images: Tensor, labels: Tensor, *, latent: int, run: Path) -> Tensor:
    """Run :func:`invert_generator` in batches of ``TOGETHER`` images, each batch only once per run.

    Args:
        prior: the generator; results are cached only if it is a module, not for any other function.
        images: (N, C, H, W).
        labels: (N,).
        latent: D.
        run: run directory, which also holds the private images.
    """
    weights = prior.state_dict() if isinstance(prior, nn.Module) else {}
    device = next(iter(weights.values()), images).device
    parts = []
    for batch, targets in zip(torch.split(images, TOGETHER), torch.split(labels, TOGETHER), strict=True):

        def make(_: object, batch: Tensor = batch, targets: Tensor = targets) -> dict[str, Tensor]:
            return {"images": invert_generator(prior, batch.to(device), targets.to(device), latent=latent)}

        if weights:
            key = {"prior": weights, "images": batch, "labels": targets, "latent": latent}
            parts.append(load_or_make(FOLDER, key, make, root=run)["images"])
        else:
            parts.append(make(None)["images"].cpu())
    return torch.cat(parts)


def invert_generator(prior: Prior, images: Tensor, labels: Tensor, *, latent: int) -> Tensor:
    """The generator's images (N, C, H, W) nearest to ``images`` by mean squared error, found with Adam.

    The best of ``STARTS`` starts from N(0, 1), shared by all images, with ``STEPS`` steps each. The search
    may miss the optimum, so the result is a lower bound on the ceiling. Images do not affect each other.
    """
    count = len(images)
    starts = torch.randn(STARTS, 1, latent, generator=Rng.root(0).child("projection").torch())
    targets, repeated = images.repeat(STARTS, 1, 1, 1), labels.repeat(STARTS)
    points = starts.repeat(1, count, 1).flatten(0, 1).to(images.device).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.1, fused=points.device.type in FUSED)
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

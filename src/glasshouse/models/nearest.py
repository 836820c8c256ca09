"""How near a generator can come to given images: its own latent space searched for each of them.

For the scoring side, where the truth may be used: the ceiling of an attack through a generator.

Shape letters: N images, D latent entries, C channels, H and W pixels.
"""

from collections.abc import Callable, Iterator
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
"""Images that are searched for in one batch."""
FOLDER: Final = "nearest"
"""Of a run, with what was found: several cells ask for the same images. Gone when the run is finished."""


def nearest_images(prior: Prior, images: Tensor, labels: Tensor, *, latent: int, run: Path) -> Tensor:
    """What :func:`invert_generator` finds, ``TOGETHER`` images at a time; each batch once in a run.

    Args:
        prior: kept between calls is what a module finds; another function may find something else each time.
        images: (N, C, H, W).
        labels: (N,).
        latent: D.
        run: folder of the run, which holds the private images too.
    """
    return torch.cat(list(_in_batches(prior, images, labels, latent=latent, run=run)))


def _in_batches(prior: Prior, images: Tensor, labels: Tensor, *, latent: int, run: Path) -> Iterator[Tensor]:
    weights = prior.state_dict() if isinstance(prior, nn.Module) else {}
    device = next(iter(weights.values()), images).device
    for some, their in zip(torch.split(images, TOGETHER), torch.split(labels, TOGETHER), strict=True):

        def make(_: object, some: Tensor = some, their: Tensor = their) -> dict[str, Tensor]:
            return {"images": invert_generator(prior, some.to(device), their.to(device), latent=latent)}

        if weights:
            key = {"prior": weights, "images": some, "labels": their, "latent": latent}
            yield load_or_make(FOLDER, key, make, root=run)["images"]
        else:
            yield make(None)["images"].cpu()


def invert_generator(prior: Prior, images: Tensor, labels: Tensor, *, latent: int) -> Tensor:
    """The generator's images (N, C, H, W) nearest to ``images`` (mean squared error), as Adam finds them.

    The best of ``STARTS`` starts from N(0, 1), the same for all images, ``STEPS`` steps each; it may miss the
    optimum, so it is a lower bound on the ceiling. No image depends on another.
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

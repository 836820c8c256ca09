"""Robustness of a representation: whether a small perturbation can give one image another's features.

Source: Dabholkar et al. 2025 (Maui), section 7.1 and equation 3, after Engstrom et al. 2019,
arXiv:1906.00945. Where we differ: Adam with a cosine schedule; no total variation, since the ball is small;
the distance is divided by the initial one, so that models can be compared.

Shape letters: B pairs of images, C channels, H and W pixels, D features.
"""

import torch
from torch import Tensor

from glasshouse.attacks.parts.search.features import Features, cosine_pace


def preimage_distance(
    features: Features, goals: Tensor, seeds: Tensor, *, radius: float = 4 / 255, iterations: int = 300
) -> Tensor:
    """(B,), remaining share of the squared feature distance after perturbing each seed within ``radius``.

    Args:
        features: images (B, C, H, W) in [0, 1] → (B, D).
        goals: (B, D), of other images.
        seeds: (B, C, H, W), the images to perturb.
        radius: largest change of a pixel.
        iterations: of Adam.
    """
    with torch.no_grad():
        before = (features(seeds) - goals).square().sum(1)
    change = torch.zeros_like(seeds).requires_grad_()
    step = radius / 4
    optimizer = torch.optim.Adam([change], lr=step)
    best = before.clone()
    for i in range(iterations):
        optimizer.param_groups[0]["lr"] = step * cosine_pace(i / iterations)
        distance = (features((seeds + change).clamp(0, 1)) - goals).square().sum(1)
        best = torch.minimum(best, distance.detach())
        # Each pair has its own scale; dividing by it makes Adam's epsilon negligible.
        (change.grad,) = torch.autograd.grad((distance / before).sum(), change)
        optimizer.step()
        with torch.no_grad():
            change.clamp_(-radius, radius)
    return best / before

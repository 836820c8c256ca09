"""Group consistency: register the seeds by translation and pull each one towards their mean.

Shape letters: R seeds, B images of one seed, C channels, H and W pixels.

Source: Yin et al. 2021 (GradInversion), arXiv:2104.07586, section 3.4. Where we differ: they register by
RANSAC-flow, we by whole-pixel translation, the only ambiguity that convolutions leave at 32 × 32.
"""

from typing import final

import torch
from torch import Tensor

REACH = 4
"""Largest shift in pixels that registration tries."""

RENEW = 10
"""Number of calls after which the consensus is recomputed."""


@final
class Group:
    """The group-consistency loss of each seed; caches the consensus between calls.

    Args:
        weight: of the mean squared distance to the registered mean, > 0.
    """

    def __init__(self, weight: float) -> None:
        self._weight, self._calls = weight, 0
        self._towards = torch.empty(0)

    def __call__(self, points: Tensor) -> Tensor:
        """(R,) of candidates (R, B, C, H, W)."""
        if self._calls % RENEW == 0:
            self._towards = consensus(points, reach=min(REACH, (min(points.shape[-2:]) - 1) // 2))
        self._calls += 1
        return self._weight * (points - self._towards).square().flatten(1).mean(1)


def shifts(images: Tensor, reference: Tensor, *, reach: int) -> Tensor:
    """Rows and columns by which each image must be rolled to match ``reference`` best, (N, 2) int64.

    Maximises the cyclic cross-correlation, summed over colour channels, among shifts of at most ``reach``.

    Args:
        images: (N, C, H, W).
        reference: of the same shape.
        reach: pixels, 0 for no shift.

    Examples:
        >>> image = torch.zeros(1, 1, 8, 8)
        >>> image[..., 2, 3] = 1.0
        >>> shifts(image, image.roll((1, -2), (-2, -1)), reach=2).tolist()
        [[1, -2]]
    """
    height, width = images.shape[-2:]
    centred, centred_reference = (t - t.mean((-2, -1), keepdim=True) for t in (images, reference))
    spectrum = torch.fft.rfft2(centred_reference) * torch.fft.rfft2(centred).conj()
    fit = torch.fft.irfft2(spectrum, s=(height, width)).sum(1)  # (N, H, W): fit at each shift, cyclic
    near_shifts = torch.arange(-reach, reach + 1, device=images.device)
    near = fit[:, near_shifts % height][:, :, near_shifts % width].flatten(1).argmax(1)
    side = 2 * reach + 1
    return torch.stack([near // side - reach, near % side - reach], 1)


def roll_images(images: Tensor, by: Tensor) -> Tensor:
    """Each image (N, C, H, W) rolled by its own (rows, columns) of (N, 2)."""
    count, channels, height, width = images.shape
    rows = (torch.arange(height, device=images.device) - by[:, :1]) % height  # (N, H)
    columns = (torch.arange(width, device=images.device) - by[:, 1:]) % width
    image = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return images[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def consensus(points: Tensor, *, reach: int) -> Tensor:
    """For every seed the registered mean of all seeds, shifted back to that seed, (R, B, C, H, W).

    Assumes that image b is the same private image in every seed, which holds if labels differ.
    """
    seeds = len(points)
    flat, mean = points.detach().flatten(0, 1), points.detach().mean(0)
    by = shifts(flat, mean.repeat(seeds, 1, 1, 1), reach=reach)
    registered = roll_images(flat, by).reshape(points.shape).mean(0)
    return roll_images(registered.repeat(seeds, 1, 1, 1), -by).reshape(points.shape)

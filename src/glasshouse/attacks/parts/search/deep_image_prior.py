"""A deep image prior for every representation: a small U-net each, whose weights and seed are optimised.

Source: Ulyanov, Vedaldi & Lempitsky 2018, arXiv:1711.10925; Dabholkar et al. 2025 (Maui), Algorithm 1. Where
we differ: three scales of 32, 64 and 64 channels; noise of 0.1 on the seed, in the first 60 % of the steps
only (unit noise never converges); the networks of a chunk run as one network of grouped convolutions: no
weight, norm or loss is shared between images. A search may start from given images (ours): the networks are
first fitted to those, in so few steps that their noise is not fitted, and then match the representations.

Shape letters: B images of a chunk, C channels, H and W pixels, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.attacks.objective import record_loss
from glasshouse.attacks.parts.search.features import Distance, Features, InvertedImages
from glasshouse.errors import Inapplicable
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import descend

Loss = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) → (B,)."""

WIDTHS: Final = (32, 64, 64)
_CHUNK: Final = 4  # images at a time
# Learning rates of the weights, also while they are fitted to given images, and of the seeds.
_RATE, _PAINTING_RATE, _SEED_RATE = 2e-3, 5e-3, 1e-2
_NOISE, _EVERY = 0.1, 200  # standard deviation of the noise on the seeds, and steps between two additions
_SETTLE: Final = 0.6  # share of the steps after which the rates fall and the seed gets no more noise


@final
class Generators(nn.Module):
    """B independent U-nets: seeds (B, C, H, W) → images in (0, 1). Sides must be multiples of 4."""

    def __init__(self, count: int, channels: int) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.count = count
        self.enter = self._block(channels, first)
        self.down1 = self._block(first, second, stride=2)
        self.down2 = self._block(second, third, stride=2)
        self.up1 = self._block(third + second, second)
        self.up2 = self._block(second + first, first)
        self.leave = nn.Conv2d(count * first, count * channels, 1, groups=count)

    def _block(self, inward: int, outward: int, *, stride: int = 1) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(
                self.count * inward, self.count * outward, 3, stride=stride, padding=1, groups=self.count
            ),
            nn.GroupNorm(self.count * 4, self.count * outward),
            nn.LeakyReLU(0.2),
        )

    def _joined(self, a: Tensor, b: Tensor) -> Tensor:
        """Upsample ``a`` and concatenate the channels of both, image by image."""
        larger = functional.interpolate(a, scale_factor=2.0)
        parts = [x.reshape(1, self.count, -1, *x.shape[2:]) for x in (larger, b)]
        return torch.cat(parts, dim=2).flatten(1, 2)

    def forward(self, seeds: Tensor) -> Tensor:
        """One image per seed."""
        top = self.enter(seeds.reshape(1, -1, *seeds.shape[2:]))
        middle = self.down1(top)
        bottom = self.down2(middle)
        pixels = self.leave(self.up2(self._joined(self.up1(self._joined(bottom, middle)), top)))
        images: Tensor = torch.sigmoid(pixels.float()).reshape(seeds.shape)
        return images


@final
@dataclass(frozen=True, kw_only=True)
class Search:
    """Length of the search: AdamW with two learning rates, both divided by 5 after 60 % of the steps.

    Attributes:
        iterations: steps.
        painting: steps in which the networks are fitted to given images.
    """

    iterations: int = 600
    painting: int = 60


def by_generator(
    features: Features,
    targets: Tensor,
    shape: tuple[int, ...],
    *,
    distance: Distance,
    how: Search,
    rng: Rng,
    start: Tensor | None = None,
) -> InvertedImages:
    """For every target (B, D) the final image of its own generator.

    Args:
        features: of the frozen model.
        targets: (B, D).
        shape: (C, H, W).
        distance: the loss.
        how: the search.
        rng: of weights and seeds.
        start: (B, C, H, W) in [0, 1], the initial images; None: noise, as published.

    Raises:
        Inapplicable: sides that are not multiples of 4.
    """
    if shape[1] % 4 or shape[2] % 4:
        raise Inapplicable(
            "matching of representations by a generator",
            needs="images whose sides are multiples of 4 pixels",
            got=f"{shape[1]} × {shape[2]}",
            fix='set invert = "pixels", or data.resize',
        )
    # A generator per target: as many at a time as memory holds.
    parts = list(torch.split(targets, _CHUNK))
    starts = [None] * len(parts) if start is None else list(torch.split(start, _CHUNK))
    pairs = list(zip(parts, starts, strict=True))
    chunks = []
    for number, (part, begin) in enumerate(track(pairs, "inverting by generators", total=len(pairs))):
        stream = rng.child(f"chunk/{number}")
        # Layers draw their first weights from the global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream.child("weights").seed())
            net = Generators(len(part), shape[0]).to(targets.device)
        draws = stream.child("seeds").torch()
        seeds = torch.randn((len(part), *shape), generator=draws).to(targets.device).requires_grad_()
        # A prior's image is learned first, so that the search begins there and not at noise.
        if begin is not None:
            _learn(net, seeds, begin, distance=distance, how=how)
        loss = partial(distance, features, targets=part)
        _match(net, seeds, loss, distance=distance, how=how, draws=draws)
        with torch.no_grad():
            images = _paint(net, seeds, distance)
            chunks.append((images, loss(images)))
    return InvertedImages(images=torch.cat([x for x, _ in chunks]), losses=torch.cat([v for _, v in chunks]))


def _learn(net: Generators, seeds: Tensor, images: Tensor, *, distance: Distance, how: Search) -> None:
    """Fit the networks to ``images`` roughly: what they miss in few steps is mostly noise."""
    optimizer = torch.optim.AdamW(
        [{"params": net.parameters(), "lr": _PAINTING_RATE}, {"params": [seeds], "lr": _SEED_RATE}]
    )
    for _ in range(how.painting):
        loss = (_paint(net, seeds, distance) - images).square().sum()
        descend(optimizer, loss)


def _match(
    net: Generators, seeds: Tensor, loss: Loss, *, distance: Distance, how: Search, draws: torch.Generator
) -> None:
    """Algorithm 1 on one chunk, in place."""
    optimizer = torch.optim.AdamW(
        [{"params": net.parameters(), "lr": _RATE}, {"params": [seeds], "lr": _SEED_RATE}]
    )
    pace = torch.optim.lr_scheduler.StepLR(optimizer, max(1, round(_SETTLE * how.iterations)), gamma=0.2)
    for i in range(how.iterations):
        if i and i % _EVERY == 0 and i < _SETTLE * how.iterations:
            with torch.no_grad():
                seeds += _NOISE * torch.randn(seeds.shape, generator=draws).to(seeds.device)
        total = loss(_paint(net, seeds, distance)).sum()
        record_loss(i, total / len(seeds))
        descend(optimizer, total)
        pace.step()


def _paint(net: Generators, seeds: Tensor, distance: Distance) -> Tensor:
    with torch.autocast(seeds.device.type, dtype=torch.bfloat16, enabled=distance.bfloat16):
        images: Tensor = net(seeds)
    return images

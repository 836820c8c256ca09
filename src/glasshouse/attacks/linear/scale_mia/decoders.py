"""Decoders: from the latent representation of a target model back to an image.

Source: Shi et al. 2025, arXiv:2311.05808, Section IV-B; layer shapes as in the authors' experiments. Where we
differ: every decoder ends in a sigmoid (theirs partly in a ReLU, which leaves dead pixels, or in nothing);
models that the paper does not know get a general one. In the read-out decoders run in evaluation mode.

Shape letters: B images, C channels, H and W pixels, D latent entries.
"""

import itertools
from collections.abc import Sequence

from torch import nn

from glasshouse.errors import Inapplicable
from glasshouse.wire import Architecture


def decoder_for(architecture: Architecture, latent: int) -> nn.Module:
    """A fresh decoder (B, ``latent``) → (B, C, H, W) in [0, 1] for the models of ``architecture``.

    Raises:
        Inapplicable: the sides are no multiples of 4 pixels and the model has no decoder of its own.
    """
    channels, height, width = architecture.input_shape
    family = architecture.name.removeprefix("scale_mia_")
    if architecture.name == "scale_mia_cnn" and height == width and height in (8, 28, 32, 64):
        return _strided(channels, height, latent)
    if family in ("alexnet", "vgg", "resnet", "vit") and height == width == 32:
        build = {"alexnet": _alexnet, "vgg": _vgg, "resnet": _resnet, "vit": _vit}[family]
        return build(channels)
    return _general(architecture, latent)


def _up(inward: int, outward: int, kernel: int = 4, padding: int = 1, extra: int = 0) -> nn.Module:
    return nn.ConvTranspose2d(inward, outward, kernel, stride=2, padding=padding, output_padding=extra)


def _strided(channels: int, side: int, latent: int) -> nn.Sequential:
    """Mirror of the CNN's encoder: transposed convolutions of stride 2 from 4 × 4 positions."""
    start = latent // 16
    if side == 28:
        stages = [_up(start, 32, 5, 2, 1), _up(32, 8, 5, 2), _up(8, channels, 4, 2)]
    else:
        widths = {8: [], 32: [32, 12], 64: [64, 32, 16]}[side]
        steps = [start, *widths, channels]
        stages = [_up(a, b) for a, b in itertools.pairwise(steps)]
    return _sequence(start, stages)


def _sequence(start: int, stages: Sequence[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Unflatten(1, (start, 4, 4))]
    for stage in stages:
        layers += [stage, nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())


def _alexnet(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (256, 4, 4)),
        nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(256, 64, 4),
        nn.Upsample(scale_factor=2),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.ConvTranspose2d(64, 32, 4),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 24, 4),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 8, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(8, channels, 3),
        nn.Sigmoid(),
    )


def _pairs(start: int, channels: int, *, norms: int) -> nn.Sequential:
    """Two 3 × 3 convolutions per size, doubling between; batch norm after the first ``norms`` pairs."""
    layers: list[nn.Module] = [nn.Unflatten(1, (start, 4, 4))]
    inward = start
    for position, outward in enumerate((128, 64, 32)):
        layers += [nn.Upsample(scale_factor=2)] if position else []
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(outward, outward, 3, padding=1), nn.ReLU()]
        layers += [nn.BatchNorm2d(outward)] if position < norms else []
        inward = outward
    layers += [nn.Upsample(scale_factor=2), nn.Conv2d(inward, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, channels, 3, padding=1), nn.Sigmoid())


def _vgg(channels: int) -> nn.Sequential:
    return _pairs(512, channels, norms=1)


def _resnet(channels: int) -> nn.Sequential:
    return _pairs(256, channels, norms=3)


def _vit(channels: int) -> nn.Sequential:
    return _sequence(32, [_up(32, 32), _up(32, 24), _up(24, channels)])


def _general(architecture: Architecture, latent: int) -> nn.Sequential:
    channels, height, width = architecture.input_shape
    if height % 4 or width % 4:
        raise Inapplicable(
            f"attack 'scale_mia' on model '{architecture.name}'",
            needs="images whose sides are multiples of 4 pixels",
            got=f"{height} × {width}",
            fix="set data.resize",
        )
    return nn.Sequential(
        nn.Linear(latent, 64 * (height // 4) * (width // 4)),
        nn.ReLU(),
        nn.Unflatten(1, (64, height // 4, width // 4)),
        _up(64, 32),
        nn.ReLU(),
        _up(32, 16),
        nn.ReLU(),
        nn.Conv2d(16, channels, 3, padding=1),
        nn.Sigmoid(),
    )

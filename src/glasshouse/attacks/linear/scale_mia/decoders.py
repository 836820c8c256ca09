"""Decoders: from the latent representation of a target model back to an image.

Source: Shi et al. 2025, arXiv:2311.05808, Section IV-B; layer shapes as in the authors' experiments. Where we
differ: every decoder ends in a sigmoid (theirs partly in a ReLU, which leaves dead pixels, or in nothing);
models that the paper does not cover get a general one. In the read-out decoders run in evaluation mode.

Shape letters: B images, C channels, H and W pixels, D latent entries.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.wire import Architecture


def decoder_for(architecture: Architecture, latent: int) -> nn.Sequential:
    """A fresh decoder (B, ``latent``) → (B, C, H, W) in [0, 1] for the models of ``architecture``.

    Raises:
        Inapplicable: the sides are not multiples of 4 pixels and the model has no decoder of its own.
    """
    channels, height, width = architecture.input_shape
    family = architecture.name.removeprefix("scale_mia_")
    if architecture.name == "scale_mia_cnn" and height == width and height in (8, 28, 32, 64):
        return _strided(channels, height, latent)
    if family in _DECODERS and height == width == 32:
        return _DECODERS[family](channels)
    return _general(architecture, latent)


@final
class Interleaved(nn.Module):
    """A transposed convolution (4 × 4, stride 2, padding 1) as one 2 × 2 convolution per output phase.

    Equal up to rounding. With few output channels, as in a layer that outputs an image, libraries run the
    transposed form at a fraction of the speed.
    """

    def __init__(self, of: nn.ConvTranspose2d) -> None:
        super().__init__()
        taps = ((3, 1), (2, 0))  # rows of the kernel that contribute to even and to odd output positions
        phases = [of.weight[:, :, rows][..., columns] for rows in taps for columns in taps]
        self.outward = of.out_channels
        self.weight = nn.Parameter(torch.cat(phases, dim=1).transpose(0, 1).contiguous())  # (4 O, I, 2, 2)
        assert of.bias is not None
        self.bias = nn.Parameter(of.bias.repeat(4))

    def forward(self, x: Tensor) -> Tensor:
        """(B, I, H, W) → (B, O, 2 H, 2 W)."""
        phases = nn.functional.conv2d(x, self.weight, self.bias, padding=1)  # (B, 4 O, H + 1, W + 1)
        height, width = x.shape[2:]
        out = x.new_empty(len(x), self.outward, 2 * height, 2 * width)
        for phase, part in enumerate(torch.split(phases, self.outward, dim=1)):
            row, column = divmod(phase, 2)
            out[:, :, row::2, column::2] = part[:, :, row : row + height, column : column + width]
        return out


@final
class Reader(nn.Module):
    """A decoder for inference only: float32 in and out, ``precision`` in between, channels last.

    bfloat16 cost 0.08 dB of 33.7 (CIFAR-10 train images, 0.5 dB at worst) and halves the time where the
    processor computes it natively.
    """

    def __init__(self, decoder: nn.Sequential, *, precision: torch.dtype) -> None:
        super().__init__()
        layers = [
            Interleaved(one) if isinstance(one, nn.ConvTranspose2d) and _is_slow(one) else one
            for one in decoder
        ]
        self.layers = nn.Sequential(*layers).requires_grad_(requires_grad=False)
        self.layers.to(precision).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.precision = precision

    def forward(self, latent: Tensor) -> Tensor:
        """(B, D) → (B, C, H, W)."""
        images: Tensor = self.layers(latent.to(self.precision))
        return images.float()


def reader(decoder: nn.Sequential, device: torch.device) -> Reader:
    """A :class:`Reader` on ``device``; in bfloat16 on a CPU that computes it natively, else in float32."""
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    fast = device.type == "cpu" and native is not None and native()
    return Reader(decoder, precision=torch.bfloat16 if fast else torch.float32).to(device)


def _is_slow(layer: nn.ConvTranspose2d) -> bool:
    return (
        layer.out_channels <= 4
        and (layer.kernel_size, layer.stride, layer.padding) == ((4, 4), (2, 2), (1, 1))
        and layer.output_padding == (0, 0)
        and layer.bias is not None
    )


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
    layers: list[nn.Module] = [nn.Unflatten(1, (256, 4, 4)), nn.Upsample(scale_factor=2)]
    layers += [nn.ConvTranspose2d(256, 64, 4), nn.Upsample(scale_factor=2), nn.ReLU(), nn.BatchNorm2d(64)]
    for inward, outward, kernel in ((64, 32, 4), (32, 24, 4), (24, 8, 3)):
        layers += [nn.ConvTranspose2d(inward, outward, kernel), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, channels, 3), nn.Sigmoid())


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


_DECODERS: Final[Mapping[str, Callable[[int], nn.Sequential]]] = {
    "alexnet": _alexnet,
    "vgg": partial(_pairs, 512, norms=1),
    "resnet": partial(_pairs, 256, norms=3),
    "vit": lambda channels: _sequence(32, [_up(32, 32), _up(32, 24), _up(24, channels)]),
}
"""For images of 32 x 32 pixels, by the name of the model behind ``scale_mia_``."""


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

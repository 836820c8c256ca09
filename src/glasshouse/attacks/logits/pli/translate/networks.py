"""Small translation networks: an encoder-decoder with skip connections, and a patch discriminator.

Source: Zhu et al. 2017, arXiv:1703.10593 (the parts of CycleGAN). Ours are smaller, have skip connections and
compute nothing at full resolution, for a CPU.

Shape letters: B images, C channels, H and W pixels, both a multiple of 4.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.rng import Rng


def _block(before: int, after: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1),
        nn.InstanceNorm2d(after, affine=True),
        nn.ReLU(),
    )


@final
class EncoderDecoder(nn.Module):
    """Pixel unshuffle by 2, downsampling, a residual block, upsampling, pixel shuffle; images in [-1, 1]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        width = 24  # channels at half size
        self.first = _block(4 * channels, width)
        self.down = _block(width, 2 * width, stride=2)
        self.middle = nn.Sequential(_block(2 * width, 2 * width), _block(2 * width, 2 * width))
        self.up = _block(2 * width, width)
        self.out = nn.Conv2d(2 * width + 4 * channels, 4 * channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → the same shape."""
        blocks = F.pixel_unshuffle(x, 2)
        first = self.first(blocks)
        deep = self.down(first)
        deep = deep + self.middle(deep)
        up = self.up(deep).repeat_interleave(2, 2).repeat_interleave(2, 3)
        return torch.tanh(F.pixel_shuffle(self.out(torch.cat([up, first, blocks], 1)), 2))


def start_network(channels: int, *, rng: Rng) -> EncoderDecoder:
    """A network whose initial weights come from ``rng``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.child("start").seed())
        return EncoderDecoder(channels)


def patch_critic(channels: int) -> nn.Sequential:
    """(B, C, H, W) → one score per patch: large for real images."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.InstanceNorm2d(32, affine=True),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 3, padding=1),
    )

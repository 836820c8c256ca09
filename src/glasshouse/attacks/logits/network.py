"""The inversion network: prediction vectors in, images out.

Source: Yang et al. 2019, "Neural Network Inversion in Adversarial Setting", CCS, arXiv:1902.08552; the
layers as in Takahashi et al. 2023, Code 2. Where we differ: the first transposed convolution has a 1 × 1
input, so it is one matrix product with the same weights; images of other sizes than 64 × 64 take as many
doublings from 4 × 4 as they need and are cut to size around the middle.

Shape letters: B examples, D entries of a prediction vector, C channels, H and W pixels.
"""

import itertools
import math
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.rng import Rng

_FIRST = 4
"""Side of the first map, pixels."""


@final
class InversionNet(nn.Module):
    """Transposed convolutions with batch norm and tanh; the last layer's tanh gives pixels in [-1, 1].

    Args:
        entries: D. shape: (C, H, W) of the images.
        width: channels of the first map, halved by every doubling; 1,024 in the paper.
    """

    def __init__(self, entries: int, shape: tuple[int, int, int], *, width: int = 1024) -> None:
        super().__init__()
        self.shape = shape
        self.doublings = max(1, math.ceil(math.log2(max(shape[1:]) / _FIRST)))
        widths = [max(width >> i, 8) for i in range(self.doublings)]
        first = nn.ConvTranspose2d(entries, widths[0], _FIRST)
        self.weight, self.bias = first.weight, first.bias
        self.norm = nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.BatchNorm2d(after)]
            layers += [nn.Tanh()]
        self.rest = nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], shape[0], 4, stride=2, padding=1))

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) → (B, C, H, W) in [-1, 1]."""
        assert self.bias is not None
        product = vectors @ self.weight.flatten(1)  # the weight is (D, width, 4, 4)
        maps = product.view(len(vectors), -1, _FIRST, _FIRST) + self.bias.view(1, -1, 1, 1)
        images: Tensor = torch.tanh(self.rest(torch.tanh(self.norm(maps))))
        top, left = (images.shape[2] - self.shape[1]) // 2, (images.shape[3] - self.shape[2]) // 2
        return images[:, :, top : top + self.shape[1], left : left + self.shape[2]]


def network(entries: int, shape: tuple[int, int, int], *, width: int, rng: Rng) -> InversionNet:
    """A new network whose initial weights come from ``rng``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.seed())
        return InversionNet(entries, shape, width=width)

"""The inversion network: prediction vectors in, images out.

Source: Yang et al. 2019, "Neural Network Inversion in Adversarial Setting", CCS, arXiv:1902.08552; the
layers as in Takahashi et al. 2023, Code 2. Where we differ: the first transposed convolution has a 1 × 1
input, so it is one matrix product with the same weights; images of other sizes than 64 × 64 take as many
doublings from 4 × 4 as they need and are cut to size around the middle; the other transposed
convolutions are matrix products where that is faster (:class:`Doubling`).

Shape letters: B examples, D entries of a prediction vector, C channels, H and W pixels.
"""

import itertools
import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.rng import Rng

_FIRST = 4
"""Side of the first map, pixels."""


@final
class Doubling(nn.ConvTranspose2d):
    """Maps of twice the side: 4 × 4, stride 2, padding 1.

    In bfloat16, and to a single channel, it is a matrix product and overlapping sums: at the paper's width
    1.7 times as fast as in float32 on a processor that multiplies bfloat16 matrices, where torch's own
    bfloat16 layer gains 1.2; to one channel 1.6 to 2.5 times as fast as torch's layer.
    """

    def __init__(self, before: int, after: int, *, bfloat16: bool) -> None:
        super().__init__(before, after, 4, stride=2, padding=1)
        self._product, self._type = bfloat16 or after == 1, torch.bfloat16 if bfloat16 else torch.float32

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002
        """(B, C, H, W) → (B, channels, 2 H, 2 W)."""
        if not self._product or output_size is not None:
            return super().forward(input, output_size)
        rows = input.to(self._type).permute(0, 2, 3, 1).flatten(1, 2)  # (B, H W, C)
        parts = (rows @ self.weight.to(self._type).flatten(1)).transpose(1, 2)  # (B, 16 × channels, H W)
        size = (2 * input.shape[2], 2 * input.shape[3])
        sums = F.fold(parts, size, kernel_size=4, stride=2, padding=1).float()
        assert self.bias is not None
        return sums + self.bias.view(1, -1, 1, 1)


@final
class InversionNet(nn.Module):
    """Transposed convolutions with batch norm and tanh; the last layer's tanh gives pixels in [-1, 1].

    Args:
        entries: D.
        shape: (C, H, W) of the images.
        width: channels of the first map, halved by every doubling; 1,024 in the paper.
        bfloat16: multiply in it; weights, sums and batch norm stay float32.
    """

    def __init__(
        self, entries: int, shape: tuple[int, int, int], *, width: int = 1024, bfloat16: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self.doublings = max(1, math.ceil(math.log2(max(shape[1:]) / _FIRST)))
        widths = [max(width >> i, 8) for i in range(self.doublings)]
        first = nn.ConvTranspose2d(entries, widths[0], _FIRST)
        self.weight, self.bias = first.weight, first.bias
        self.norm = nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [Doubling(before, after, bfloat16=bfloat16), nn.BatchNorm2d(after), nn.Tanh()]
        self.rest = nn.Sequential(*layers, Doubling(widths[-1], shape[0], bfloat16=bfloat16))

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) → (B, C, H, W) in [-1, 1]."""
        assert self.bias is not None
        product = vectors @ self.weight.flatten(1)  # the weight is (D, width, 4, 4)
        maps = product.view(len(vectors), -1, _FIRST, _FIRST) + self.bias.view(1, -1, 1, 1)
        images: Tensor = torch.tanh(self.rest(torch.tanh(self.norm(maps))))
        top, left = (images.shape[2] - self.shape[1]) // 2, (images.shape[3] - self.shape[2]) // 2
        return images[:, :, top : top + self.shape[1], left : left + self.shape[2]]


def network(
    entries: int, shape: tuple[int, int, int], *, width: int, rng: Rng, bfloat16: bool = False
) -> InversionNet:
    """A new network whose initial weights come from ``rng``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.seed())
        return InversionNet(entries, shape, width=width, bfloat16=bfloat16)

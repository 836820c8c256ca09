"""The inversion network, from prediction vectors to images.

Source: Yang et al. 2019, "Neural Network Inversion in Adversarial Setting", CCS, arXiv:1902.08552; the
layers as in Takahashi et al. 2023, Code 2. Where we differ: the first transposed convolution has a 1 × 1
input, so it is one matrix product with the same weights; images of other sizes than 64 × 64 take as many
doublings from 4 × 4 as they need and are cropped around the centre; the other transposed convolutions are
matrix products where that is faster (:class:`Doubling`).

For small networks overhead dominates a step, so several of one shape share a batch (:class:`InversionNet`)
without interacting.

Shape letters: N networks, B examples, D entries of a prediction vector, C channels, H and W pixels.
"""

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.rng import Rng

_FIRST = 4
"""Side of the first map, pixels."""


@final
class Doubling(nn.ConvTranspose2d):
    """A transposed convolution to twice the side: 4 × 4, stride 2, padding 1; grouped by network.

    In bfloat16, and to a single channel, it is a matrix product and overlapping sums: at the paper's width
    1.7 times as fast as in float32 on a processor that multiplies bfloat16 matrices, where torch's own
    bfloat16 layer gains 1.2; to one channel 1.6 to 2.5 times as fast as torch's layer.
    """

    def __init__(self, before: int, after: int, *, bfloat16: bool, networks: int = 1) -> None:
        super().__init__(networks * before, networks * after, 4, stride=2, padding=1, groups=networks)
        self._product, self._type = bfloat16 or after == 1, torch.bfloat16 if bfloat16 else torch.float32

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002
        """(B, N C, H, W) → (B, N channels, 2 H, 2 W)."""
        if not self._product or output_size is not None:
            return super().forward(input, output_size)
        batch, networks, side = len(input), self.groups, input.shape[2] * input.shape[3]
        maps = input.to(self._type).reshape(batch, networks, -1, side)  # (B, N, C, H W)
        rows = maps.permute(1, 0, 3, 2).flatten(1, 2)  # (N, B H W, C)
        weight = self.weight.to(self._type).flatten(1)
        products = rows @ weight.view(networks, -1, weight.shape[1])
        products = products.view(networks, batch, side, -1)  # (N, B, H W, 16 × channels)
        parts = products.permute(1, 0, 3, 2).flatten(1, 2)
        size = (2 * input.shape[2], 2 * input.shape[3])
        sums = F.fold(parts, size, kernel_size=4, stride=2, padding=1).float()
        assert self.bias is not None
        return sums + self.bias.view(1, -1, 1, 1)


@final
class InversionNet(nn.Module):
    """Transposed convolutions with batch norm and tanh; the last layer's tanh gives pixels in [-1, 1].

    One network, or several that are trained in one batch, with concatenated tensors.

    Args:
        entries: D.
        shape: (C, H, W) of the images.
        width: channels of the first map, halved by every doubling; 1,024 in the paper.
        bfloat16: compute products in bfloat16; weights, sums and batch norm stay float32.
        networks: N.
    """

    def __init__(
        self,
        entries: int,
        shape: tuple[int, int, int],
        *,
        width: int = 1024,
        bfloat16: bool = False,
        networks: int = 1,
    ) -> None:
        super().__init__()
        self.shape, self.networks = shape, networks
        self.doublings = max(1, math.ceil(math.log2(max(shape[1:]) / _FIRST)))
        widths = [max(width >> i, 8) for i in range(self.doublings)]
        first = nn.ConvTranspose2d(networks * entries, networks * widths[0], _FIRST, groups=networks)
        self.weight, self.bias = first.weight, first.bias
        self.norm = nn.BatchNorm2d(networks * widths[0])
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            doubling = Doubling(before, after, bfloat16=bfloat16, networks=networks)
            layers += [doubling, nn.BatchNorm2d(networks * after), nn.Tanh()]
        last = Doubling(widths[-1], shape[0], bfloat16=bfloat16, networks=networks)
        self.rest = nn.Sequential(*layers, last)

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, B, D) → (N, B, C, H, W) in [-1, 1]."""
        assert self.bias is not None
        weight = self.weight.flatten(1)
        weight = weight.view(self.networks, -1, weight.shape[1])  # (N, D, width × 16)
        product = (vectors @ weight).transpose(0, 1)  # (B, N, width × 16)
        maps = product.reshape(vectors.shape[1], -1, _FIRST, _FIRST) + self.bias.view(1, -1, 1, 1)
        images: Tensor = torch.tanh(self.rest(torch.tanh(self.norm(maps))))
        top, left = (images.shape[2] - self.shape[1]) // 2, (images.shape[3] - self.shape[2]) // 2
        cut = images[:, :, top : top + self.shape[1], left : left + self.shape[2]]
        return cut.reshape(len(cut), self.networks, -1, *cut.shape[2:]).transpose(0, 1)


def network(
    entries: int, shape: tuple[int, int, int], *, width: int, rngs: Sequence[Rng], bfloat16: bool = False
) -> InversionNet:
    """New networks in one module; the initial weights of each come from its own stream."""
    states = []
    with torch.random.fork_rng(devices=[]):
        for rng in rngs:
            torch.default_generator.manual_seed(rng.seed())
            states.append(InversionNet(entries, shape, width=width, bfloat16=bfloat16).state_dict())
        every = InversionNet(entries, shape, width=width, bfloat16=bfloat16, networks=len(rngs))
    columns = {name: [state[name] for state in states] for name in states[0]}
    every.load_state_dict({name: torch.cat(c) if c[0].dim() else c[0] for name, c in columns.items()})
    return every

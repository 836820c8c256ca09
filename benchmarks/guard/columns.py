"""A crafted model whose rows are honest: frozen layers let each example into columns of its own.

The frozen layers hold the picture's thumbnail once for each bin of a random projection, and pass it only for
examples in that bin. The trained head has ordinary weights and no row that isolates anything; its gradient in
a bin's columns is the thumbnail of whoever is alone there. A federation that trains heads on a network which
the server sends, as transfer learning does, looks just like it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard import kinds

THUMB = 8
"""Side of the grey thumbnail."""
BINS = 48
_SIZE = THUMB**2
_EDGE = 0.02  # of a bin's width, over which it opens and closes
_CLOSED = 4.0  # more than a grey value


class Gated(nn.Module):
    """Two frozen layers and a head; as initialised, an ordinary network of random features."""

    def __init__(self, bins: int = BINS) -> None:
        super().__init__()
        size = 3 * kinds.SIDE**2
        self.first = nn.Linear(size, _SIZE + 4 * bins)
        self.second = nn.Linear(_SIZE + 4 * bins, bins * _SIZE)
        self.head = nn.Linear(bins * _SIZE, kinds.CLASSES)
        for p in (*self.first.parameters(), *self.second.parameters()):
            p.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(F.relu(self.second(F.relu(self.first(inputs.flatten(1))))))
        return logits


def gated(known: Tensor, seed: int, *, bins: int = BINS) -> Gated:
    """The crafted model.

    Args:
        known: the server's own pictures, (N, 3, H, W), which say where bins are equally full.
        seed: of the projection and the head.
        bins: of the projection.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Gated(bins)
    size = model.first.in_features
    direction = torch.randn(size, generator=generator) / size**0.5
    ordered = (known.flatten(1) @ direction).sort().values
    edges = ordered[torch.linspace(0, len(ordered) - 1, bins + 1).long()]
    every = torch.eye(size).reshape(size, 3, kinds.SIDE, kinds.SIDE)
    first, offsets = torch.zeros_like(model.first.weight), torch.zeros_like(model.first.bias)
    first[:_SIZE] = thumbnails(every).T
    second = torch.zeros_like(model.second.weight)
    for number in range(bins):
        low, high = edges[number : number + 2].tolist()
        edge = _EDGE * (high - low) + 1e-7
        block = slice(number * _SIZE, (number + 1) * _SIZE)
        second[block, :_SIZE] = torch.eye(_SIZE)
        # Four ramps make a bin: it opens, is open, and closes.
        for ramp, (start, sign) in enumerate(((low, 1), (low + edge, -1), (high - edge, -1), (high, 1))):
            row = _SIZE + 4 * number + ramp
            first[row], offsets[row] = direction, -start
            second[block, row] = sign * _CLOSED / edge
    with torch.no_grad():
        model.first.weight.copy_(first)
        model.first.bias.copy_(offsets)
        model.second.weight.copy_(second)
        model.second.bias.fill_(-_CLOSED)
        model.head.weight.normal_(generator=generator).div_(_SIZE**0.5)
        model.head.bias.zero_()
    return model


def thumbnails(pictures: Tensor) -> Tensor:
    """Grey thumbnails, (N, 64), of pictures (N, 3, H, W)."""
    return F.adaptive_avg_pool2d(pictures, THUMB).mean(1).flatten(1)


def read(update: Tensor, pictures: Tensor) -> Tensor:
    """Of which of the pictures (B, 3, H, W) a bin of the head's gradient shows the thumbnail at 30 dB, (B,).

    The scale is the best one: an upper bound on a server that has to guess it.
    """
    aims = thumbnails(pictures).double()
    blocks = update.double().reshape(len(update), -1, _SIZE).transpose(0, 1)
    shown = torch.linalg.svd(blocks, full_matrices=False)[2][:, 0]
    error = (aims.square().sum(1) - (shown @ aims.T).square()).clamp_min(0) / _SIZE
    return error.min(0).values < 10**-3.0

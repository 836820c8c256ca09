"""Crafted models whose rows are honest: frozen layers let each example into columns of its own.

The frozen layers hold the picture's thumbnail once for each bin of a random projection, and pass it only for
examples in that bin. The trained head has ordinary weights and no row that isolates anything; its gradient in
a bin's columns is the thumbnail of whoever is alone there. A federation that trains heads on a network which
the server sends, as transfer learning does, looks just like it. In other forms bins open and do not close, so
that only the difference of two bins' columns shows an example; or rows of a trained layer open for bins of a
second projection, so that an example is alone where a row and a bin cross; or a running mean shows the bins.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
_MIXED = 64  # frozen units behind a normalisation
_OPENS = 1.5  # weight of a row on its gate


@dataclass(frozen=True, kw_only=True)
class Form:
    """How examples are let in.

    Attributes:
        bins: of the projection that gates columns.
        rows: of a trained layer, each of which opens for a bin of a second projection; 0: only the head is.
        closes: bins close again; else each is open for whoever is above its threshold.
        is_normed: a normalisation with running statistics follows, and a frozen layer before the head.
    """

    bins: int = BINS
    rows: int = 0
    closes: bool = True
    is_normed: bool = False


FORMS: Final[Mapping[str, Form]] = {
    "gated": Form(),
    "gated, 128 bins": Form(bins=128),
    "differences": Form(bins=64, closes=False),
    "crossed": Form(bins=10, rows=20),
    "crossed differences": Form(bins=10, rows=20, closes=False),
    "running statistics": Form(bins=64, is_normed=True),
}
"""By name."""


class Gated(nn.Module):
    """Two frozen layers and a head; as initialised, an ordinary network of random features."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        size, ramps = 3 * kinds.SIDE**2, 4 * (form.bins + form.rows)
        features = form.bins * _SIZE + form.rows
        self.first = nn.Linear(size, _SIZE + ramps).requires_grad_(False)
        self.second = nn.Linear(_SIZE + ramps, features).requires_grad_(False)
        self.norm: nn.Module = nn.BatchNorm1d(features, affine=False) if form.is_normed else nn.Identity()
        self.mix: nn.Module = nn.Identity()
        if form.is_normed:
            features, before = _MIXED, features
            self.mix = nn.Sequential(nn.Linear(before, features).requires_grad_(False), nn.ReLU())
        if form.rows:
            self.wide = nn.Linear(features, form.rows)
        self.head = nn.Linear(form.rows or features, kinds.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes)."""
        features = F.relu(self.second(F.relu(self.first(inputs.flatten(1)))))
        read = self.mix(self.norm(features))
        logits: Tensor = self.head(F.relu(self.wide(read)) if self.form.rows else read)
        return logits


def gated(known: Tensor, seed: int, form: Form = FORMS["gated"]) -> Gated:
    """The crafted model.

    Args:
        known: the server's own pictures, (N, 3, H, W), which say where bins are equally full.
        seed: of the projections and the trained layers.
        form: how examples are let in.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Gated(form)
    size = model.first.in_features
    every = torch.eye(size).reshape(size, 3, kinds.SIDE, kinds.SIDE)
    first, offsets = torch.zeros_like(model.first.weight), torch.zeros_like(model.first.bias)
    second, starts = torch.zeros_like(model.second.weight), torch.zeros_like(model.second.bias)
    first[:_SIZE] = thumbnails(every).T
    whole = form.bins * _SIZE
    for count, at in ((form.bins, 0), (form.rows, whole)):
        if not count:
            continue
        low, high = (0.0, 1.0) if form.closes or at else (0.2, 0.8)
        direction, edges = _edges(known, count, generator, low, high)
        for number in range(count):
            place = _SIZE + 4 * (number + (form.bins if at else 0))
            block = slice(at + number, at + number + 1)
            height = 1.0  # a row's gate is open at one
            if not at:
                block, height = slice(number * _SIZE, (number + 1) * _SIZE), _CLOSED
                second[block, :_SIZE] = torch.eye(_SIZE)
                starts[block] = -_CLOSED
            # Four ramps make a bin: it opens, is open, and closes.
            start, end = edges[number : number + 2].tolist()
            edge = _EDGE * (end - start) + 1e-7
            ramps = ((start, 1), (start + edge, -1), (end - edge, -1), (end, 1))
            for ramp, (threshold, sign) in enumerate(ramps if form.closes or at else ramps[:2]):
                first[place + ramp], offsets[place + ramp] = direction, -threshold
                second[block, place + ramp] = sign * height / edge
    with torch.no_grad():
        model.first.weight.copy_(first)
        model.first.bias.copy_(offsets)
        model.second.weight.copy_(second)
        model.second.bias.copy_(starts)
        if form.rows:
            model.wide.weight.normal_(generator=generator).div_(4 * model.wide.in_features**0.5)
            model.wide.weight[:, whole:] = 0.02 * torch.randn(form.rows, form.rows, generator=generator)
            model.wide.weight[:, whole:] += _OPENS * torch.eye(form.rows)
            model.wide.bias.fill_(-_OPENS / 2)
        else:
            model.head.weight.normal_(generator=generator).div_(_SIZE**0.5)
        model.head.bias.zero_()
    return model


def _edges(
    known: Tensor, count: int, generator: torch.Generator, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """A random direction, and edges of bins of equally many pictures along it."""
    direction = torch.randn(known[0].numel(), generator=generator)
    direction = (direction - direction.mean()) / len(direction) ** 0.5
    ordered = (known.flatten(1) @ direction).sort().values
    edges = ordered[((len(ordered) - 1) * torch.linspace(low, high, count + 1)).long()].clone()
    if low == 0 and high == 1:  # whoever is beyond the server's own pictures is in the outer bins
        edges[0], edges[-1] = edges[0] - 1, edges[-1] + 1
    return direction, edges


def thumbnails(pictures: Tensor) -> Tensor:
    """Grey thumbnails, (N, 64), of pictures (N, 3, H, W)."""
    return F.adaptive_avg_pool2d(pictures, THUMB).mean(1).flatten(1)


def update_of(model: Gated, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """What a client sends after one step: gradients, and what its examples add to running statistics."""
    update = kinds.gradient(model, *batch)
    work = copy.deepcopy(model).train()
    norm = work.norm
    if isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None:
        norm.running_mean.zero_()  # the server knows what it was
        with torch.no_grad():
            work(batch[0])
        update["norm.running_mean"] = norm.running_mean
    return update


def read(model: Gated, update: Mapping[str, Tensor], pictures: Tensor) -> Tensor:
    """Of which of the pictures (B, 3, H, W) the update shows the thumbnail at 30 dB, (B,).

    The scale is the best one: an upper bound on a server that has to guess it.
    """
    form, aims = model.form, thumbnails(pictures).double()
    name = "norm.running_mean" if form.is_normed else "wide.weight" if form.rows else "head.weight"
    if name not in update:
        return torch.zeros(len(pictures), dtype=torch.bool)
    rows = update[name].double().reshape(-1, update[name].shape[-1])[:, : form.bins * _SIZE]
    blocks = rows.reshape(len(rows), form.bins, _SIZE).transpose(0, 1)
    if not form.closes:
        blocks = torch.cat([blocks[:-1] - blocks[1:], blocks[-1:]])
    if form.rows:
        shown = F.normalize(blocks.reshape(-1, _SIZE), dim=1)
    else:
        shown = torch.linalg.svd(blocks, full_matrices=False)[2][:, 0]
    error = (aims.square().sum(1) - (shown @ aims.T).square()).clamp_min(0) / _SIZE
    return error.min(0).values < 10**-3.0

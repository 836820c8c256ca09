"""The crafted rows of :mod:`benchmarks.guard.hidden` behind parametrised weights.

A server sets what a weight is computed from: lengths and directions, the matrix behind a spectral norm, the
base of an orthogonal map, a buffer that is added. It knows how the update of these depends on the weight's.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from benchmarks.guard.hidden import ROWS, SIZE, Case, Disguise, Tensors, craft

_PLACE = "layer.parametrizations.weight"


class Lengths(Disguise):
    """Lengths and directions of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(SIZE, ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        out: Tensor = self.layer(flat)
        return out

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.layer.weight = rows
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        lengths = self.get_parameter(f"{_PLACE}.original0").detach()
        directions = self.get_parameter(f"{_PLACE}.original1").detach()
        across = update[f"{_PLACE}.original1"] * directions.norm(dim=1, keepdim=True) / lengths
        return across + update[f"{_PLACE}.original0"] * F.normalize(directions, dim=1)


class Spectral(Lengths):
    """A matrix that is divided by its spectral norm; the server takes off what comes from that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.spectral_norm(nn.Linear(SIZE, ROWS))

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        super().place(rows, offsets)
        for _ in range(100):  # until the estimate of the norm no longer moves
            weight = self.layer.weight
        scale = float((rows * weight).sum() / rows.square().sum())
        self.layer.bias.copy_(scale * offsets)

    def undo(self, update: Tensors) -> Tensor:
        rows, along = update[f"{_PLACE}.original"], self.get_buffer(f"{_PLACE}.0._v")
        return rows - (rows @ along)[:, None] * along


class Base(Lengths):
    """An orthogonal map of a base that is not orthogonal: its first columns are the rows.

    The update has each row's along the other columns. These span all but the directions in which noise with
    the neighbourhoods of pictures varies least.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.orthogonal(nn.Linear(SIZE, ROWS))

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        places = torch.cartesian_prod(torch.arange(16.0), torch.arange(16.0))
        near = torch.exp(-torch.cdist(places, places) / 6)
        common = torch.full((3, 3), 0.9) + 0.1 * torch.eye(3)
        _, across = torch.linalg.eigh(torch.kron(common, near))
        self.get_buffer(f"{_PLACE}.0.base").copy_(torch.cat([rows.T, across[:, ROWS:]], dim=1))
        start = torch.zeros(ROWS, SIZE)
        start.fill_diagonal_(-1.0)
        self.get_parameter(f"{_PLACE}.original").copy_(start)
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        base = self.get_buffer(f"{_PLACE}.0.base")
        return update[f"{_PLACE}.original"][:, ROWS:] @ base[:, ROWS:].T


class Added(nn.Module):
    """A buffer is added."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("added", torch.zeros(ROWS, SIZE))

    def forward(self, weight: Tensor) -> Tensor:
        added: Tensor = self.added  # type: ignore[assignment]  # a registered buffer
        return weight + added


class Buffer(Lengths):
    """A matrix plus a buffer, which is the design."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, ROWS)
        parametrize.register_parametrization(self.layer, "weight", Added())

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.get_parameter(f"{_PLACE}.original").zero_()
        self.get_buffer(f"{_PLACE}.0.added").copy_(rows)
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update[f"{_PLACE}.original"]


def _case(make: Callable[[], Disguise]) -> Callable[[Tensor, int], Case]:
    return lambda known, seed: craft(make, known, seed)


PARAMETRISED: Final[Mapping[str, Callable[[Tensor, int], Case]]] = {
    "lengths and directions": _case(Lengths),
    "divided by the spectral norm": _case(Spectral),
    "base of an orthogonal map": _case(Base),
    "a buffer that is added": _case(Buffer),
}

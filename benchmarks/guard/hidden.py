"""Crafted models by someone who has read the guard: the same pairs of rows, where the guard does not look.

Each disguise is a wide layer in a form of its own: rows that are tensors of their own, layers that read the
same picture in other coordinates, layers whose forward pass is not what their class does, and so on. The
read-outs are those of :mod:`benchmarks.guard.kinds`, after the server has undone the disguise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard import kinds
from glasshouse.guard.pursuit.fresh import initialise_again

SIZE: Final = 3 * kinds.SIDE**2
ROWS: Final = 128
Tensors = Mapping[str, Tensor]


class Disguise(nn.Module):
    """A wide layer of ``ROWS`` rows on flat pictures, (B, n) → (B, ROWS)."""

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        """Set the rows, (ROWS, n), and their offsets, (ROWS,)."""
        raise NotImplementedError

    def undo(self, update: Tensors) -> Tensor:
        """The rows of the update as a plain layer would have them, (ROWS, n)."""
        raise NotImplementedError


class OneRowEach(Disguise):
    """A linear layer of one row for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(SIZE, 1) for _ in range(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        return torch.cat([part(flat) for part in self.parts], dim=1)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        for part, row, offset in zip(self.parts, rows, offsets, strict=True):
            part.weight.copy_(row[None])
            part.bias.copy_(offset[None])

    def undo(self, update: Tensors) -> Tensor:
        return torch.cat([update[f"parts.{number}.weight"] for number in range(ROWS)])


class Vectors(Disguise):
    """A parameter of one dimension for each row, as scales of normalisation layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(SIZE) / SIZE**0.5) for _ in range(ROWS))
        self.offset = nn.Parameter(torch.zeros(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        return torch.stack([(flat * part).sum(1) for part in self.parts], dim=1) + self.offset

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        for part, row in zip(self.parts, rows, strict=True):
            part.copy_(row)
        self.offset.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return torch.stack([update[f"parts.{number}"] for number in range(ROWS)])


class Axes(Disguise):
    """A parameter of four dimensions, of which the last one counts rows, in an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, kinds.SIDE, kinds.SIDE, ROWS) / SIZE**0.5)
        self.offset = nn.Parameter(torch.zeros(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        pictures = flat.unflatten(1, (3, kinds.SIDE, kinds.SIDE))
        return torch.einsum("bchw,chwr->br", pictures, self.matrix) + self.offset

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.matrix.copy_(rows.T.reshape_as(self.matrix))
        self.offset.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["matrix"].flatten(0, 2).T


class Flat(Disguise):
    """One vector that holds the rows, which the forward pass views as a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(ROWS * SIZE) / SIZE**0.5)
        self.offset = nn.Parameter(torch.zeros(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        return F.linear(flat, self.flat.view(ROWS, SIZE), self.offset)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.flat.copy_(rows.flatten())
        self.offset.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["flat"].view(ROWS, SIZE)


class FlatWhole(Disguise):
    """One vector that holds the offsets and then the rows, as flattened models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(ROWS * (SIZE + 1)) / SIZE**0.5)

    def forward(self, flat: Tensor) -> Tensor:
        rows = self.flat[ROWS:].view(ROWS, SIZE)
        return (flat[:, None] * rows).sum(2) + self.flat[:ROWS]

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.flat.copy_(torch.cat([offsets, rows.flatten()]))

    def undo(self, update: Tensors) -> Tensor:
        return update["flat"][ROWS:].view(ROWS, SIZE)


class Foreign(Disguise):
    """A tensor that the forward pass takes for a matrix of another form than its own.

    Rows are multiplied without a matrix product, or gates behind a fixed mixture would be found.

    Args:
        shape: of the tensor.
        take: the rows (``ROWS``, n) that are made of it: its numbers, in other places.
    """

    def __init__(self, *shape: int, take: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tensor, self.take = nn.Parameter(torch.randn(shape) / SIZE**0.5), take
        self.offset = nn.Parameter(torch.zeros(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        return (flat[:, None] * self.take(self.tensor)).sum(2) + self.offset

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        places = self.take(torch.arange(ROWS * SIZE).view(self.tensor.shape))
        self.tensor.view(-1)[places] = rows
        self.offset.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return self.take(update["tensor"])


def shuffled(t: Tensor) -> Tensor:
    """Its numbers in a fixed order of their own, as rows."""
    return t.flatten()[_order().to(t.device)].view(ROWS, SIZE)


def blocks(t: Tensor) -> Tensor:
    """Each block (24, 32) of a matrix (192, 512) as a row."""
    return t.view(8, 24, 16, 32).transpose(1, 2).reshape(ROWS, SIZE)


def axis_apart(t: Tensor) -> Tensor:
    """Of a tensor (12, 16, 16, 32) a third of the first axis is a colour, the rest counts rows."""
    return t.view(4, 3, kinds.SIDE, kinds.SIDE, 32).permute(0, 4, 1, 2, 3).reshape(ROWS, SIZE)


class Halved(Disguise):
    """A matrix of which one half of the columns reads the picture, and the other its square."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(ROWS, 2 * SIZE) / SIZE**0.5)
        self.offset = nn.Parameter(torch.zeros(ROWS))
        self.after = nn.Linear(ROWS, ROWS)

    def forward(self, flat: Tensor) -> Tensor:
        other = self.after(F.relu(F.linear(flat.square(), self.matrix[:, SIZE:])))
        return F.linear(flat, self.matrix[:, :SIZE], self.offset) + 0.1 * other

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.matrix[:, :SIZE] = rows
        self.offset.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["matrix"][:, :SIZE]


class Heads(Disguise):
    """A parameter (heads, n, rows of a head), as attention has them."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, SIZE, ROWS // 4) / SIZE**0.5)
        self.offset = nn.Parameter(torch.zeros(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        return torch.einsum("bn,hnr->brh", flat, self.matrix).flatten(1) + self.offset

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.matrix.copy_(rows.reshape(ROWS // 4, 4, SIZE).permute(1, 2, 0))
        self.offset.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["matrix"].permute(2, 0, 1).flatten(0, 1)


class Transposed(Disguise):
    """A transposed convolution of 1 x 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ConvTranspose2d(SIZE, ROWS, 1)

    def forward(self, flat: Tensor) -> Tensor:
        return self.layer(flat[:, :, None, None]).flatten(1)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.layer.weight.copy_(rows.T[:, :, None, None])
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["layer.weight"].flatten(1).T


class Grouped(Disguise):
    """A convolution in groups, each of which reads the whole picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3 * ROWS // 2, ROWS, kinds.SIDE, groups=ROWS // 2)

    def forward(self, flat: Tensor) -> Tensor:
        pictures = flat.unflatten(1, (3, kinds.SIDE, kinds.SIDE))
        return self.layer(pictures.repeat(1, ROWS // 2, 1, 1)).flatten(1)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.layer.weight.copy_(rows.reshape_as(self.layer.weight))
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["layer.weight"].flatten(1)


class Mirrored(Disguise):
    """Two layers, of which one reads the picture mirrored."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(SIZE, ROWS // 2), nn.Linear(SIZE, ROWS // 2)

    def forward(self, flat: Tensor) -> Tensor:
        return torch.cat([self.left(flat), self.right(flat.flip(1))], dim=1)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        first, second = rows.chunk(2)
        self.left.weight.copy_(first)
        self.right.weight.copy_(second.flip(1))
        self.left.bias.copy_(offsets[: ROWS // 2])
        self.right.bias.copy_(offsets[ROWS // 2 :])

    def undo(self, update: Tensors) -> Tensor:
        return torch.cat([update["left.weight"], update["right.weight"].flip(1)])


class Shifted(Mirrored):
    """Two layers, of which one reads the picture scaled to [-1, 1]."""

    def forward(self, flat: Tensor) -> Tensor:
        return torch.cat([self.left(flat), self.right(2 * flat - 1)], dim=1)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        first, second = rows.chunk(2)
        self.left.weight.copy_(first)
        self.right.weight.copy_(second / 2)
        self.left.bias.copy_(offsets[: ROWS // 2])
        self.right.bias.copy_(offsets[ROWS // 2 :] + second.sum(1) / 2)

    def undo(self, update: Tensors) -> Tensor:
        return torch.cat(
            [update["left.weight"], (update["right.weight"] + update["right.bias"][:, None]) / 2]
        )


class Mixed(nn.Linear):
    """A linear layer whose forward pass also activates and mixes its units."""

    def forward(self, flat: Tensor) -> Tensor:
        return F.relu(super().forward(flat)) @ _mixture()


class OwnForward(Disguise):
    """A subclass of the linear layer that does something else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Mixed(SIZE, ROWS)

    def forward(self, flat: Tensor) -> Tensor:
        return self.layer(flat) @ _mixture().T

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.layer.weight.copy_(rows)
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["layer.weight"]


class Behind(Disguise):
    """A linear layer, and a fixed mixture of its units by ``fixed`` that is no parameter of a client's."""

    def __init__(self, fixed: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(SIZE, ROWS), fixed
        if fixed == "frozen":
            self.after = nn.Linear(ROWS, ROWS, bias=False).requires_grad_(requires_grad=False)
        else:
            self.register_buffer("after", _mixture())

    def forward(self, flat: Tensor) -> Tensor:
        seen = self.layer(flat)
        return self.after(seen) if self.kind == "frozen" else seen @ self.after.T

    @property
    def mixture(self) -> Tensor:
        return self.after.weight if isinstance(self.after, nn.Linear) else self.after

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.mixture.copy_(_mixture())
        self.layer.weight.copy_(_mixture().T @ rows)
        self.layer.bias.copy_(_mixture().T @ offsets)

    def undo(self, update: Tensors) -> Tensor:
        return self.mixture @ update["layer.weight"]


class Ranked(Disguise):
    """Each unit answers for the example of the batch that is largest along a fixed direction."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(SIZE, ROWS) / SIZE**0.5)

    def forward(self, flat: Tensor) -> Tensor:
        along = torch.randn(SIZE, ROWS, generator=torch.Generator().manual_seed(5)).to(flat)
        chosen = torch.softmax(200 * (flat @ along) / SIZE**0.5, dim=0)
        return len(flat) * chosen * (flat @ self.matrix)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        del offsets  # it has none
        self.matrix.copy_(rows.T)

    def undo(self, update: Tensors) -> Tensor:
        return update["matrix"].T


class Gated(Disguise):
    """Units that answer only where a fixed direction is beyond a limit; both are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, ROWS)
        self.register_buffer("along", torch.randn(SIZE, ROWS) / SIZE**0.5)
        self.register_buffer("limit", torch.zeros(ROWS))

    def forward(self, flat: Tensor) -> Tensor:
        return self.layer(flat) * (flat @ self.along > self.limit)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.along.copy_(rows.T)
        self.limit.copy_(-offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["layer.weight"]


class OneStep(Disguise):
    """A recurrent layer with one step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNN(SIZE, ROWS, nonlinearity="relu", batch_first=True)

    def forward(self, flat: Tensor) -> Tensor:
        return self.cell(flat[:, None])[0][:, 0]

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.cell.weight_ih_l0.copy_(rows)
        self.cell.bias_ih_l0.copy_(offsets)
        self.cell.bias_hh_l0.zero_()

    def undo(self, update: Tensors) -> Tensor:
        return update["cell.weight_ih_l0"]


class LowBits(Disguise):
    """Units that are nearly linear: what tells two of them apart is a part in ten thousand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, ROWS)

    def forward(self, flat: Tensor) -> Tensor:
        seen = self.layer(flat)
        return seen + 2e-5 * F.relu(seen)

    def place(self, rows: Tensor, offsets: Tensor) -> None:
        self.layer.weight.copy_(rows)
        self.layer.bias.copy_(offsets)

    def undo(self, update: Tensors) -> Tensor:
        return update["layer.weight"]


def largest(units: Tensor) -> Tensor:
    """The larger of a unit and zero, as the maximum over a window of both."""
    both = torch.stack([units, torch.zeros_like(units)], dim=2)
    return F.max_pool1d(both, 2)[..., 0]


def _mixture() -> Tensor:
    """An orthogonal matrix, (ROWS, ROWS)."""
    return torch.linalg.qr(torch.randn(ROWS, ROWS, generator=torch.Generator().manual_seed(9)))[0]


def _order() -> Tensor:
    return torch.randperm(ROWS * SIZE, generator=torch.Generator().manual_seed(7))


class Net(nn.Module):
    """A disguise, and a small tail.

    Args:
        wide: the disguise.
        activate: whether its units are activated; a disguise may do so itself.
        activation: of its units.
    """

    def __init__(
        self, wide: Disguise, *, activate: bool = True, activation: Callable[[Tensor], Tensor] = F.relu
    ) -> None:
        super().__init__()
        self.wide, self.activate, self.activation = wide, activate, activation
        self.middle, self.head = nn.Linear(ROWS, 32), nn.Linear(32, kinds.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes)."""
        wide = self.wide(inputs.flatten(1))
        logits: Tensor = self.head(F.relu(self.middle(self.activation(wide) if self.activate else wide)))
        return logits

    def rows(self, tensors: Tensors) -> Tensor:
        """The rows of the wide layer, (ROWS, n)."""
        own = {name.removeprefix("wide."): t for name, t in tensors.items() if name.startswith("wide.")}
        return self.wide.undo(own)


@dataclass(frozen=True, kw_only=True)
class Case:
    """As :class:`benchmarks.guard.kinds.Case`, of one round."""

    model: Net
    read_outs: Tensor
    earlier: None = None
    background: Tensor | None = None


def craft(make: Callable[[], Disguise], known: Tensor, seed: int, *, form: str = "pairs") -> Case:
    """Pairs of rows that differ for who is between two thresholds, in a disguise."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    activation = largest if form == "largest" else F.relu
    net = Net(make(), activate=form != "linear", activation=activation)
    model = initialise_again(net, seed=seed)[0]
    assert isinstance(model, Net)
    half = ROWS // 2
    if form == "single":  # the disguise itself lets a row answer for few
        directions, _, _ = kinds._bins(known, ROWS, generator, share=1.3 / kinds.BATCH)
        limit = (known.flatten(1) @ directions.T).quantile(1 - 1.3 / kinds.BATCH, dim=0)
        with torch.no_grad():
            model.wide.place(directions, -limit)
        return Case(model=model, read_outs=torch.eye(ROWS))
    directions, low, high = kinds._bins(known, half, generator, share=1.3 / kinds.BATCH)
    near = directions + 1e-3 * torch.randn(directions.shape, generator=generator) / SIZE**0.5
    outgoing = torch.randn(half, 32, generator=generator) / ROWS**0.5
    noise = 1e-3 * torch.randn(half, 32, generator=generator) / ROWS**0.5
    with torch.no_grad():
        model.wide.place(torch.cat([directions, near]), torch.cat([-low, -high]))
        model.middle.weight.copy_(torch.cat([outgoing, 0.7 * outgoing + noise]).T)
    return Case(model=model, read_outs=torch.cat([0.7 * torch.eye(half), -torch.eye(half)], dim=1))


def _case(make: Callable[[], Disguise], form: str = "pairs") -> Callable[[Tensor, int], Case]:
    return lambda known, seed: craft(make, known, seed, form=form)


HIDDEN: Final[Mapping[str, Callable[[Tensor, int], Case]]] = {
    "a layer for each row": _case(OneRowEach),
    "a vector for each row": _case(Vectors),
    "four axes": _case(Axes),
    "heads": _case(Heads),
    "a flat vector": _case(Flat),
    "a flat vector of all": _case(FlatWhole),
    "a shuffled vector": _case(lambda: Foreign(ROWS * SIZE, take=shuffled)),
    "a shuffled matrix": _case(lambda: Foreign(ROWS, SIZE, take=shuffled)),
    "blocks of a matrix": _case(lambda: Foreign(192, 512, take=blocks)),
    "an axis taken apart": _case(lambda: Foreign(12, 16, 16, 32, take=axis_apart)),
    "rows across rows": _case(lambda: Foreign(96, 1024, take=lambda t: t.view(ROWS, SIZE))),
    "axes turned": _case(lambda: Foreign(16, 96, 64, take=lambda t: t.permute(1, 2, 0).reshape(ROWS, SIZE))),
    "half of the columns": _case(Halved),
    "transposed convolution": _case(Transposed),
    "convolution in groups": _case(Grouped),
    "mirrored": _case(Mirrored),
    "shifted": _case(Shifted),
    "own forward pass": _case(OwnForward, "linear"),
    "behind a frozen layer": _case(lambda: Behind("frozen")),
    "behind a buffer": _case(lambda: Behind("buffer")),
    "behind a buffer, pooled": _case(lambda: Behind("buffer"), "largest"),
    "ranked in the batch": _case(Ranked, "single"),
    "gates in buffers": _case(Gated, "single"),
    "one recurrent step": _case(OneStep),
    "low bits": _case(LowBits, "linear"),
}

"""Crafted models that look honest row by row: seven kinds of read-outs that combine rows, layers or rounds.

They are a test set of the guard, with the read-outs that belong to them. Each is made from a server's own
pictures, and none reads anything of an honest model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, CLASSES = 16, 10
ROWS: Final = 256
"""Rows of the crafted layer."""
BATCH: Final = 64


class Net(nn.Module):
    """One wide layer on the picture, in the form of one of the kinds, and a small tail."""

    def __init__(
        self, form: str, activation: Callable[[Tensor], Tensor] = F.relu, *, rows: int = ROWS, tail: int = 32
    ) -> None:
        super().__init__()
        size = 3 * SIDE * SIDE
        self.form, self.activation, self.count = form, activation, rows
        half = rows // 2
        if form == "parallel":
            self.left, self.right = nn.Linear(size, half), nn.Linear(size, half)
        elif form == "convolution":
            self.wide = nn.Conv2d(3, rows, SIDE)
        elif form == "pointwise":
            self.wide = nn.Conv2d(size, rows, 1)
        elif form == "parameter":
            self.matrix = nn.Parameter(torch.randn(size, rows) / size**0.5)
            self.offset = nn.Parameter(torch.zeros(rows))
        else:
            self.wide = nn.Linear(size, rows)
        self.middle, self.head = nn.Linear(rows, tail), nn.Linear(tail, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes)."""
        flat = inputs.flatten(1)
        if self.form == "parallel":
            wide = torch.cat([self.left(flat), self.right(flat)], dim=1)
        elif self.form == "convolution":
            wide = self.wide(inputs).flatten(1)
        elif self.form == "pointwise":
            wide = self.wide(flat[:, :, None, None]).flatten(1)
        elif self.form == "parameter":
            wide = flat @ self.matrix + self.offset
        else:
            wide = self.wide(flat)
        logits: Tensor = self.head(F.relu(self.middle(self.activation(wide))))
        return logits

    def rows(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The rows of the wide layer in ``tensors``, (R, n)."""
        if self.form == "parallel":
            return torch.cat([tensors["left.weight"], tensors["right.weight"]])
        if self.form == "parameter":
            return tensors["matrix"].T
        return tensors["wide.weight"].flatten(1)

    def put(self, rows: Tensor, offsets: Tensor, outgoing: Tensor) -> None:
        """Set the wide layer and what follows it."""
        with torch.no_grad():
            if self.form == "parallel":
                half = self.count // 2
                self.left.weight.copy_(rows[:half])
                self.left.bias.copy_(offsets[:half])
                self.right.weight.copy_(rows[half:])
                self.right.bias.copy_(offsets[half:])
            elif self.form == "parameter":
                self.matrix.copy_(rows.T)
                self.offset.copy_(offsets)
            else:
                self.wide.weight.copy_(rows.reshape_as(self.wide.weight))
                self.wide.bias.copy_(offsets)
            self.middle.weight.copy_(outgoing.T)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A crafted model and its read-outs.

    Attributes:
        model: what is sent; the last round's.
        earlier: what was sent the round before, to the same batch; None: one round is enough.
        read_outs: (C, rows) of the wide layer, of both rounds side by side where there are two.
        background: the server subtracts its mean picture.
    """

    model: Net
    read_outs: Tensor
    earlier: Net | None = None
    background: Tensor | None = None


def _bins(
    known: Tensor,
    count: int,
    generator: torch.Generator,
    *,
    share: float,
    below: tuple[float, float] = (0.2, 0.8),
) -> tuple[Tensor, ...]:
    """Random directions (count, n) with two thresholds each, between which ``share`` of the pictures are.

    Below the first threshold is a share of the pictures between the two numbers of ``below``.
    """
    flat = known.flatten(1)
    directions = torch.randn(count, flat.shape[1], generator=generator) / flat.shape[1] ** 0.5
    answers = flat @ directions.T
    low = below[0] + (below[1] - below[0]) * torch.rand(count, generator=generator)
    ordered = answers.sort(0).values
    first = (low * (len(flat) - 1)).long()
    second = first + max(1, round(share * len(flat)))
    pick = torch.arange(count)
    return directions, ordered[first, pick], ordered[second.clamp_max(len(flat) - 1), pick]


def pairs(form: str, known: Tensor, seed: int, *, rows: int = ROWS) -> Case:
    """Two rows of one direction: the difference reads who is between their thresholds."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    half = rows // 2
    directions, low, high = _bins(known, half, generator, share=1.3 / BATCH)
    outgoing = torch.randn(half, 32, generator=generator) / rows**0.5
    model = Net(form, rows=rows)
    model.put(directions.repeat(2, 1), torch.cat([-low, -high]), outgoing.repeat(2, 1))
    return Case(model=model, read_outs=torch.cat([torch.eye(half), -torch.eye(half)], dim=1))


def triples(known: Tensor, seed: int) -> Case:
    """Three rows: two with the upper threshold, whose outgoing weights mix to that of the first."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    third = ROWS // 3
    directions, low, high = _bins(known, third, generator, share=1.3 / BATCH)
    one, two = (torch.randn(third, 32, generator=generator) / ROWS**0.5 for _ in range(2))
    rest = ROWS - 3 * third
    spare = torch.randn(rest, directions.shape[1], generator=generator) / directions.shape[1] ** 0.5
    model = Net("linear")
    model.put(
        torch.cat([directions.repeat(3, 1), spare]),
        torch.cat([-low, -high, -high, torch.zeros(rest)]),
        torch.cat([(one + two) * 0.7, one, two, torch.randn(rest, 32, generator=generator) / ROWS**0.5]),
    )
    eye = torch.eye(third)
    return Case(
        model=model, read_outs=torch.cat([eye, -0.7 * eye, -0.7 * eye, torch.zeros(third, rest)], dim=1)
    )


def rounds(known: Tensor, seed: int, *, rows: int = ROWS) -> Case:
    """The lower thresholds in one round, the upper ones in the next, on the same batch."""
    generator = torch.Generator().manual_seed(seed)
    directions, low, high = _bins(known, rows, generator, share=1.3 / BATCH)
    outgoing = torch.randn(rows, 32, generator=generator) / rows**0.5
    models = []
    for offsets in (-low, -high):
        torch.manual_seed(seed)
        model = Net("linear", rows=rows)
        model.put(directions, offsets, outgoing)
        with torch.no_grad():  # the same forces in both rounds: no unit behind falls silent, the logits rest
            model.middle.bias.fill_(10.0)
            model.head.weight.mul_(0.02)
        models.append(model)
    return Case(
        model=models[1],
        earlier=models[0],
        read_outs=torch.cat([-torch.eye(rows), torch.eye(rows)], dim=1),
    )


def background(known: Tensor, seed: int) -> Case:
    """Rows that fire for few, steeply: the server takes its mean picture off what the others leave."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    directions, _, _ = _bins(known, ROWS, generator, share=0.01)
    answers = known.flatten(1) @ directions.T
    spread = answers.std(0)
    limit = answers.sort(0).values[round((1 - 1.0 / BATCH) * len(known))]
    steep = 12 / spread
    model = Net("linear", F.softplus)
    model.put(
        directions * steep[:, None], -limit * steep, torch.randn(ROWS, 32, generator=generator) / ROWS**0.5
    )
    return Case(model=model, read_outs=torch.eye(ROWS), background=known.flatten(1).mean(0))


def windows(
    known: Tensor,
    seed: int,
    *,
    width: int = 5,
    rows: int = ROWS,
    tail: int = 32,
    below: tuple[float, float] = (0.2, 0.8),
) -> Case:
    """Windows of ``width`` rows: one below a window, others above it whose mixture equals it elsewhere.

    Args:
        known: the server's pictures.
        seed: of everything that is drawn.
        width: rows of each read-out.
        rows: of the wide layer.
        tail: units behind it: more than ``width``, or fewer rows cancel as well.
        below: share of the pictures for which no row of a window fires.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    count, others = rows // width, width - 1
    directions, low, high = _bins(known, count, generator, share=1.3 / BATCH, below=below)
    parts = [torch.randn(count, tail, generator=generator) / rows**0.5 for _ in range(others)]
    weights = [0.5 + torch.rand(count, 1, generator=generator) for _ in range(others)]
    first = sum(w * p for w, p in zip(weights, parts, strict=True))
    rest, size = rows - width * count, directions.shape[1]
    spare = torch.randn(rest, size, generator=generator) / size**0.5
    jitter = [
        directions + 1e-3 * torch.randn(count, size, generator=generator) / size**0.5 for _ in range(others)
    ]
    model = Net("linear", rows=rows, tail=tail)
    model.put(
        torch.cat([directions, *jitter, spare]),
        torch.cat([-low, *[-high] * others, torch.zeros(rest)]),
        torch.cat([first, *parts, torch.randn(rest, tail, generator=generator) / rows**0.5]),
    )
    eye = torch.eye(count)
    return Case(
        model=model,
        read_outs=torch.cat([eye, *[-eye * w for w in weights], torch.zeros(count, rest)], dim=1),
    )


def halves(
    known: Tensor,
    seed: int,
    *,
    rows: int = ROWS,
    tail: int = 32,
    paired: bool = False,
    below: tuple[float, float] = (0.2, 0.8),
    wide: tuple[str, float] = ("linear", 0.0),
) -> Case:
    """Rows above a lower and below an upper threshold: less what always fires, their sum is who is between.

    Rows that fire for everybody, as many as units behind, stand for any outgoing weights. All read-outs share
    them, so that each costs a server two rows.

    Args:
        known: the server's pictures.
        seed: of everything that is drawn.
        rows: of the wide layer.
        tail: units behind it.
        paired: what always fires are pairs of rows on both sides of one threshold.
        below: share of the pictures below the lower threshold.
        wide: form of the wide layer, and slope of its activation below zero.
    """
    (form, slope), generator = wide, torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    both = 2 if paired else 1
    count = (rows - both * tail) // 2
    directions, low, high = _bins(known, count, generator, share=1.3 / BATCH, below=below)
    always, middle, _ = _bins(known, tail, generator, share=1.3 / BATCH)
    least = (known.flatten(1) @ always.T).amin(0)
    own, shared = (torch.randn(n, tail, generator=generator) / rows**0.5 for n in (count, tail))
    activation = partial(F.leaky_relu, negative_slope=slope) if slope else F.relu
    model = Net(form, activation, rows=2 * count + both * tail, tail=tail)
    model.put(
        torch.cat([directions, -directions, *([always, -always] if paired else [always])]),
        torch.cat([-low, high, *([-middle, middle] if paired else [0.3 - least])]),
        torch.cat([own, own, *[shared] * both]),
    )
    eye, taken = torch.eye(count), (1 + slope) * _mixture(own, shared)
    return Case(model=model, read_outs=torch.cat([eye, eye, *[-taken] * both], dim=1))


def halves_of_rounds(known: Tensor, seed: int, *, rows: int = ROWS, tail: int = 32) -> Case:
    """The rows above the lower thresholds in one round, those below the upper ones in the next."""
    generator = torch.Generator().manual_seed(seed)
    count = rows - tail
    directions, low, high = _bins(known, count, generator, share=1.3 / BATCH)
    always, _, _ = _bins(known, tail, generator, share=1.3 / BATCH)
    least = (known.flatten(1) @ always.T).amin(0)
    own, shared = (torch.randn(n, tail, generator=generator) / rows**0.5 for n in (count, tail))
    models = []
    for wide, offsets in ((directions, -low), (-directions, high)):
        torch.manual_seed(seed)
        model = Net("linear", rows=rows, tail=tail)
        model.put(torch.cat([wide, always]), torch.cat([offsets, 2 - least]), torch.cat([own, shared]))
        with torch.no_grad():  # the same forces in both rounds
            model.middle.bias.fill_(10.0)
            model.head.weight.mul_(2e-4)
        models.append(model)
    eye, nothing = torch.eye(count), torch.zeros(count, tail)
    read_outs = torch.cat([eye, nothing, eye, -_mixture(own, shared)], dim=1)
    return Case(model=models[1], earlier=models[0], read_outs=read_outs)


def _mixture(own: Tensor, shared: Tensor) -> Tensor:
    """By what rows that always fire, with outgoing weights ``shared``, stand for those of ``own``."""
    return torch.linalg.solve(shared.T.double(), own.T.double()).T.float()


KINDS: Final[Mapping[str, Callable[[Tensor, int], Case]]] = {
    "two parallel layers": lambda known, seed: pairs("parallel", known, seed),
    "three rows": triples,
    "two rounds": rounds,
    "convolution of the picture's size": lambda known, seed: pairs("convolution", known, seed),
    "convolution 1 x 1": lambda known, seed: pairs("pointwise", known, seed),
    "own parameter": lambda known, seed: pairs("parameter", known, seed),
    "background subtracted": background,
    "windows of five rows": windows,
}


def gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean loss, by name."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names, weights = list(trained), list(trained.values())
    found = torch.autograd.grad(F.cross_entropy(model(inputs), labels), weights)
    return dict(zip(names, found, strict=True))


def read(
    case: Case, updates: Sequence[Mapping[str, Tensor]], inputs: Tensor, *, singles: bool = False
) -> tuple[Tensor, Tensor]:
    """Which of the examples (B,) the server's read-outs show at 18 and at 30 dB.

    The scale (and the background's, where it is subtracted) is the best one: an upper bound on a server that
    has to guess it.

    Args:
        case: its read-outs.
        updates: of each round, the last one last.
        inputs: the batch.
        singles: read single rows too.
    """
    rows = torch.cat([case.model.rows(u) for u in updates]).double()
    read_outs = case.read_outs.double()
    if singles:
        read_outs = torch.cat([read_outs, torch.eye(len(rows), dtype=torch.double)])
    seen = read_outs @ rows
    aims = inputs.flatten(1).double()
    parts = [seen]
    if case.background is not None:
        off = F.normalize(case.background.double(), dim=0)
        parts.append(seen - (seen @ off)[:, None] * off)
    least = torch.full((len(aims),), torch.inf, dtype=torch.double)
    for number, vectors in enumerate(parts):
        goal = aims
        if number:
            goal = aims - (aims @ off)[:, None] * off
        unit = F.normalize(vectors, dim=1, eps=1e-300)
        error = (goal.square().sum(1) - (unit @ goal.T).square()).clamp_min(0) / aims.shape[1]
        least = torch.minimum(least, error.min(0).values)
    return least < 10**-1.8, least < 10**-3.0


def read_only_with(case: Case, models: Sequence[nn.Module], batch: tuple[Tensor, Tensor]) -> Tensor:
    """Which examples (B,) are read at 18 dB, and no longer if their own contribution is left out.

    Pictures resemble each other: what is read without an example's contribution is no leak of it.
    """
    inputs, labels = batch
    whole = gradients(models, batch)
    shown, _ = read(case, whole, inputs)
    for example in shown.nonzero()[:, 0].tolist():
        alone = gradients(models, (inputs[example : example + 1], labels[example : example + 1]))
        pairs = zip(whole, alone, strict=True)
        rest = [{name: t - own[name] / len(labels) for name, t in update.items()} for update, own in pairs]
        shown[example] = not bool(read(case, rest, inputs)[0][example])
    return shown


def gradients(models: Sequence[nn.Module], batch: tuple[Tensor, Tensor]) -> list[dict[str, Tensor]]:
    """The update of each round."""
    return [gradient(model, *batch) for model in models]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """CIFAR-10 at 16 x 16: the server's own, the client's, and batches of the client."""

    known: Tensor
    labels: Tensor
    own: tuple[Tensor, Tensor]
    batch: tuple[Tensor, Tensor]
    spare: Mapping[str, Tensor] = field(default_factory=dict)


def pictures(inputs: Tensor, labels: Tensor, seed: int) -> Pictures:
    """Deal pictures (N, 3, H, W): 400 to the server, 512 to the client and another batch of 64 of it."""
    small = F.adaptive_avg_pool2d(inputs, SIDE)
    order = torch.randperm(len(small), generator=torch.Generator().manual_seed(1000 + seed))
    server, own, batch = order[:400], order[400:912], order[912 : 912 + BATCH]
    return Pictures(
        known=small[server],
        labels=labels[server],
        own=(small[own], labels[own]),
        batch=(small[batch], labels[batch]),
    )

"""Train inversion networks over the rounds of a federation: small ones in one batch, others in processes.

Shape letters: N networks, M training examples, n distinct images, D entries of a vector, L queries.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from glasshouse import process
from glasshouse.attacks.logits.network import InversionNet, network
from glasshouse.limits import Count, NotNegative, Positive, check_ranges
from glasshouse.rng import Rng
from glasshouse.tensors import FUSED, descend

QUERIES = 64
"""Maximum number of queries per step of fine-tuning."""
TOGETHER: Final = 8
"""Maximum number of networks that share a batch."""
SMALL: Final = 64
"""Maximum width of networks that share a batch: wider ones use a whole core."""


@final
@dataclass(frozen=True, kw_only=True)
class InversionTraining:
    """Settings of a network's training.

    Attributes:
        epochs: over the public images, per round.
        batch_size: examples per step, at least two, as batch norm needs.
        learning_rate: of Adam, whose state is kept between rounds.
        weight_decay: of Adam, whose state is kept between rounds.
        width: channels of the network's first feature map.
        bfloat16: compute products in bfloat16, for wide networks.
    """

    epochs: Count = 3
    batch_size: Annotated[int, Ge(2), Le(2**31 - 1)] = 8
    learning_rate: Positive = 3e-5
    weight_decay: NotNegative = 1e-4
    width: Count = 1024
    bfloat16: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "training of an inversion network")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One network to train, as plain data.

    Attributes:
        how: the training.
        images: (n, C, H, W) in [-1, 1]; example i shows image i modulo n.
        vectors: prediction vectors (M, D), one table per round.
        queries: (L, D).
        priors: prior image of each image, (n, C, H, W) or (1, ...); None without a prior.
        goals: prior image of each query, likewise.
        prior_weight: the paper's γ, weight of the distance to the prior images; 0: no prior.
        tuning: after each epoch, fine-tune the queries' images towards their priors (Eq. 10).
        key: of the network's random stream.
    """

    how: InversionTraining
    images: Tensor
    vectors: tuple[Tensor, ...]
    queries: Tensor
    priors: Tensor | None = None
    goals: Tensor | None = None
    key: bytes
    prior_weight: float = 0.0
    tuning: bool = False


def invert_queries(tasks: Sequence[Task]) -> list[Tensor]:
    """For each task images of its queries after each round, (rounds, L, C, H, W) in [-1, 1].

    Args:
        tasks: of one kind (:func:`_kind`): they differ only in their tensors' values and their streams.
    """
    first, data = tasks[0], _Stacked(tasks)
    rngs, how = [Rng(task.key) for task in tasks], first.how
    shape = (int(first.images.shape[1]), int(first.images.shape[2]), int(first.images.shape[3]))
    starts = [rng.child("start") for rng in rngs]
    net = network(first.queries.shape[1], shape, width=how.width, rngs=starts, bfloat16=how.bfloat16)
    net.to(first.images.device)
    fused = first.images.device.type in FUSED
    optimizer = torch.optim.Adam(
        net.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay, fused=fused
    )
    # One network per task goes on from round to round: later logits refine what earlier ones showed.
    images_by_round = []
    for number in range(len(first.vectors)):
        vectors = torch.stack([task.vectors[number] for task in tasks])
        for epoch in range(how.epochs):
            streams = [rng.child(f"round/{number}/epoch/{epoch}") for rng in rngs]
            _epoch(net, optimizer, data, vectors, rngs=streams)
            if first.tuning and first.prior_weight and data.goals is not None:
                _tune(net, optimizer, data)
        net.eval()
        with torch.no_grad():
            images_by_round.append(net(data.queries))
        net.train()
    return list(torch.stack(images_by_round, 1))


@final
class _Stacked:
    """The training data of several tasks, stacked along a first axis of networks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.how, self.prior_weight = tasks[0].how, tasks[0].prior_weight
        self.images = torch.stack([task.images for task in tasks])
        self.queries = torch.stack([task.queries for task in tasks])
        self.priors = _stack([task.priors for task in tasks])
        self.goals = _stack([task.goals for task in tasks])
        self.each = torch.arange(len(tasks), device=self.images.device)[:, None]


def _stack(every: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [one for one in every if one is not None]
    return torch.stack(tensors) if tensors else None


def _epoch(
    net: InversionNet,
    optimizer: torch.optim.Optimizer,
    data: _Stacked,
    vectors: Tensor,
    *,
    rngs: Sequence[Rng],
) -> None:
    """One epoch of Eq. 3, with squared distances; the loss is the sum over networks of their mean losses."""
    count = vectors.shape[1]
    orders = torch.stack([torch.randperm(count, generator=rng.torch()) for rng in rngs]).to(vectors.device)
    for rows in torch.split(orders, data.how.batch_size, 1):
        if rows.shape[1] < 2:
            continue  # batch norm needs two
        rebuilt, which = net(vectors[data.each, rows]), rows % data.images.shape[1]
        loss = F.mse_loss(rebuilt, data.images[data.each, which])
        if data.prior_weight and data.priors is not None:
            single = data.priors.shape[1] == 1
            prior = data.priors.expand_as(rebuilt) if single else data.priors[data.each, which]
            loss = loss + data.prior_weight * F.mse_loss(rebuilt, prior)
        descend(optimizer, len(rngs) * loss)


def _tune(net: InversionNet, optimizer: torch.optim.Optimizer, data: _Stacked) -> None:
    """Fine-tune by Eq. 10, in batches of nearly equal size."""
    assert data.goals is not None
    networks, queries = data.queries.shape[:2]
    for rows in torch.arange(queries).tensor_split(-(-queries // QUERIES)):
        if len(rows) < 2:
            continue
        rebuilt = net(data.queries[:, rows])
        goal = data.goals.expand_as(rebuilt) if data.goals.shape[1] == 1 else data.goals[:, rows]
        descend(optimizer, networks * data.prior_weight * F.mse_loss(rebuilt, goal))


def each(tasks: Sequence[Task], *, processes: int, label: str) -> list[Tensor]:
    """The images of every task, in order; independent of ``processes``, which is 1 on a GPU."""
    on_gpu = bool(tasks) and tasks[0].images.device.type != "cpu"
    groups = list(_groups(tasks))
    every = process.each(invert_queries, groups, processes=1 if on_gpu else processes, label=label)
    return [images for group in every for images in group]


def _groups(tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Tasks in order; consecutive ones of one kind are grouped if their networks are small."""
    for kind, same in itertools.groupby(tasks, key=_kind):
        alike, most = list(same), TOGETHER if kind[0].width <= SMALL else 1
        yield from (tuple(alike[i : i + most]) for i in range(0, len(alike), most))


def _kind(task: Task) -> tuple[InversionTraining, object]:
    """The settings and shapes that tasks in one batch must share."""
    tensors = (task.images, *task.vectors, task.queries, task.priors, task.goals)
    return task.how, (task.prior_weight, task.tuning, [None if t is None else t.shape for t in tensors])

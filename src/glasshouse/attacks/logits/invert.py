"""Train inversion networks over the rounds of a federation, several of them in parallel processes.

Shape letters: N training examples, n distinct images, D entries of a prediction vector, L queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

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
"""Queries per step of the fine-tuning, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class InversionTraining:
    """How a network is trained.

    Attributes:
        epochs: over the public images, per round.
        batch_size: examples per step, two at least: batch norm needs them.
        learning_rate: of Adam, whose state is carried over the rounds.
        weight_decay: of Adam, whose state is carried over the rounds.
        width: channels of the network's first map.
        bfloat16: multiply its maps in it, for wide networks.
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
        vectors: prediction vectors (N, D), one table per round.
        queries: (L, D).
        priors: of each image, (n, C, H, W) or (1, ...); None without a prior.
        wanted: of each query.
        prior_weight: the paper's γ, of the distance to the prior images; 0: no prior.
        tuning: after each epoch, pull the queries' images to their priors (Eq. 10).
        key: of the network's stream of randomness.
    """

    how: InversionTraining
    images: Tensor
    vectors: tuple[Tensor, ...]
    queries: Tensor
    priors: Tensor | None
    goals: Tensor | None
    key: bytes
    prior_weight: float = 0.0
    tuning: bool = False


def invert_queries(task: Task) -> Tensor:
    """Images of the queries after each round, (rounds, L, C, H, W) in [-1, 1]."""
    rng, how = Rng(task.key), task.how
    shape = (int(task.images.shape[1]), int(task.images.shape[2]), int(task.images.shape[3]))
    net = network(
        task.queries.shape[1], shape, width=how.width, rng=rng.child("start"), bfloat16=how.bfloat16
    ).to(task.images.device)
    fused = task.images.device.type in FUSED
    optimizer = torch.optim.Adam(
        net.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay, fused=fused
    )
    images_by_round = []
    for number, vectors in enumerate(task.vectors):
        for epoch in range(how.epochs):
            stream = rng.child(f"round/{number}/epoch/{epoch}")
            _epoch(net, optimizer, task, vectors, rng=stream)
            if task.tuning and task.prior_weight and task.goals is not None:
                _tune(net, optimizer, task)
        net.eval()
        with torch.no_grad():
            images_by_round.append(net(task.queries))
        net.train()
    return torch.stack(images_by_round)


def _epoch(
    net: InversionNet, optimizer: torch.optim.Optimizer, task: Task, vectors: Tensor, *, rng: Rng
) -> None:
    """Eq. 3, with squared distances."""
    weight = task.prior_weight if task.priors is not None else 0.0
    order = torch.randperm(len(vectors), generator=rng.torch()).to(vectors.device)
    for rows in torch.split(order, task.how.batch_size):
        if len(rows) < 2:
            continue  # batch norm needs two
        rebuilt, which = net(vectors[rows]), rows % len(task.images)
        loss = F.mse_loss(rebuilt, task.images[which])
        if weight and task.priors is not None:
            prior = task.priors[which] if len(task.priors) > 1 else task.priors.expand_as(rebuilt)
            loss = loss + weight * F.mse_loss(rebuilt, prior)
        descend(optimizer, loss)


def _tune(net: InversionNet, optimizer: torch.optim.Optimizer, task: Task) -> None:
    """Eq. 10, in batches of as equal a size as possible."""
    assert task.goals is not None
    parts = -(-len(task.queries) // QUERIES)
    for rows in torch.arange(len(task.queries)).tensor_split(parts):
        if len(rows) < 2:
            continue
        rebuilt = net(task.queries[rows])
        goal = task.goals[rows] if len(task.goals) > 1 else task.goals.expand_as(rebuilt)
        descend(optimizer, task.prior_weight * F.mse_loss(rebuilt, goal))


def each(tasks: Sequence[Task], *, processes: int, label: str) -> list[Tensor]:
    """The images of every task, in order; the same whatever ``processes`` is. On a GPU it is one."""
    here = bool(tasks) and tasks[0].images.device.type != "cpu"
    return process.each(invert_queries, tasks, processes=1 if here else processes, label=label)

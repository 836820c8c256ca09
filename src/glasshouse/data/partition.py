"""Partition the private pool into clients."""

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, final

import torch
from torch import Tensor

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.rng import Rng

BELONGS: Final = {"alpha": "dirichlet", "ratio": "unequal"}
"""The partitioner that a setting of ``[data]`` belongs to."""


@final
@dataclass(frozen=True, kw_only=True)
class Demand:
    """Requirements of a partitioner, declared as its class attribute ``demand``; ``check`` reads it.

    Attributes:
        classes: classes per client.
        examples: minimal number of examples per client.
        whole_classes: no class is split between clients.
    """

    classes: int = 1
    examples: int = 1
    whole_classes: bool = False


class Partitioner(Protocol):
    """Distributes images over clients."""

    demand: ClassVar[Demand]

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """Row indices of each client, disjoint and non-empty."""


def partition(
    labels: Tensor,
    clients: int,
    *,
    kind: str = "iid",
    alpha: float | None = None,
    ratio: float | None = None,
    examples: int | None = None,
    rng: Rng,
) -> tuple[Tensor, ...]:
    """Index tensors into the pool, one per client; disjoint and non-empty.

    Args:
        labels: labels of the pool, (N,) int64.
        clients: number of clients.
        kind: registered partitioner: ``iid``, ``unequal``, ``dirichlet``, ``pathological``, ``shards``.
        alpha: concentration, only for ``dirichlet``.
        ratio: of the largest client to the smallest, only for ``unequal``.
        examples: use a random subset of ``clients × examples`` images of the pool: exactly ``examples`` per
            client under ``iid``, at most that many on average under the others. None: the whole pool.
        rng: decides the assignment.

    Raises:
        UnknownName: no such partitioner.
        BadValue: more clients or examples than images, ``alpha`` or ``ratio`` for another partitioner, or a
            client without images.

    Examples:
        >>> [len(part) for part in partition(torch.zeros(7), 3, rng=Rng.root(0))]
        [3, 2, 2]
    """
    factory = registry.load("partitioners", kind)
    needed = clients * (examples or 1)
    if clients < 1 or needed < clients or needed > len(labels):
        raise BadValue(
            "partition of the private data",
            needs=f"clients >= 1 and {needed} images ({clients} clients with at least {examples or 1} each)",
            got=f"{len(labels)} images",
            fix="lower federation.clients or data.examples, or take a larger split",
        )
    settings = {name: value for name, value in (("alpha", alpha), ("ratio", ratio)) if value is not None}
    if foreign := [name for name in settings if BELONGS[name] != kind]:
        raise BadValue(
            f"partition '{kind}'",
            needs=f'no {foreign[0]} (it belongs to "{BELONGS[foreign[0]]}")',
            got=f"{foreign[0]} = {settings[foreign[0]]}",
            fix="leave it out",
        )
    pool = torch.randperm(len(labels), generator=rng.child("pool").torch())
    pool = pool if examples is None else pool[:needed]
    divide: Partitioner = factory(**settings)
    parts = divide(labels[pool], clients, rng=rng.child(kind))
    if empty := sum(len(part) == 0 for part in parts):
        raise BadValue(
            f"partition '{kind}'",
            needs="at least one image for each client",
            got=f"{empty} of {clients} clients without",
            fix="raise data.examples, or use fewer clients",
        )
    return tuple(pool[part] for part in parts)

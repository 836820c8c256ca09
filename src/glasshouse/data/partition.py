"""Who holds what: the private pool cut into clients."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a partitioner asks of the data, declared as the class attribute ``demand``; ``check`` reads it.

    Attributes:
        classes: that each client gets.
        examples: of each client at least.
        whole_classes: no class is dealt to two clients.
    """

    classes: int = 1
    examples: int = 1
    whole_classes: bool = False


class Partitioner(Protocol):
    """Deals images to clients."""

    demand: ClassVar[Demand]

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """Rows of each client, disjoint and not empty."""
        ...


def partition(
    labels: Tensor,
    clients: int,
    *,
    kind: str = "iid",
    alpha: float | None = None,
    examples: int | None = None,
    rng: Rng,
) -> tuple[Tensor, ...]:
    """Index tensors into the pool, one per client; disjoint, none empty, labels as mixed as they fell.

    Args:
        labels: (N,) int64, of the pool.
        clients: their number.
        kind: registered partitioner: ``iid``, ``dirichlet``, ``pathological``, ``shards``.
        alpha: concentration, for ``dirichlet`` alone.
        examples: only ``clients × examples`` images of the pool, drawn at random, are dealt: exactly so
            many to each client under ``iid``, at most so many in the mean under the others. None: all.
        rng: decides who gets what.

    Raises:
        UnknownName: no such partitioner.
        BadValue: more clients or examples than images, ``alpha`` where it has no meaning, or a client
            that would be left without images.

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
    if alpha is not None and kind != "dirichlet":
        raise BadValue(
            f"partition '{kind}'",
            needs='no alpha (it belongs to "dirichlet")',
            got=f"alpha = {alpha}",
            fix="leave it out",
        )
    pool = torch.randperm(len(labels), generator=rng.child("pool").torch())
    pool = pool if examples is None else pool[:needed]
    divide: Partitioner = factory() if alpha is None else factory(alpha=alpha)
    parts = divide(labels[pool], clients, rng=rng.child(kind))
    if empty := sum(len(part) == 0 for part in parts):
        raise BadValue(
            f"partition '{kind}'",
            needs="at least one image for each client",
            got=f"{empty} of {clients} clients without",
            fix="raise data.examples, or use fewer clients",
        )
    return tuple(pool[part] for part in parts)

"""Heterogeneous clients, by the partitioners of Flower Datasets.

Imported on demand only: Flower imports Hugging Face's ``datasets``, which takes a second.
"""

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from glasshouse.data.partition import Demand
from glasshouse.errors import BadValue, not_installed
from glasshouse.limits import Fix, Positive, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng

try:
    import datasets
    from flwr_datasets import partitioner as flower
except ImportError as error:
    raise not_installed(
        "this partition of the data",
        "flwr-datasets",
        error,
        extra="flower-data",
        instead='set data.partition = "iid"',
    ) from error


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """For every class, client shares drawn from Dirichlet(alpha, ..., alpha); client sizes differ.

    A client that already has more images than the mean gets none of the next class (Flower's balancing, not
    in the paper), and every client has at least one image.

    Args:
        alpha: > 0. Small: each client holds few classes; large: nearly iid.
    """

    card: ClassVar[Card] = Card(
        summary="shares of each class from a Dirichlet distribution; sizes differ",
        source="Yurochkin et al. 2019, arXiv:1905.12022; Flower Datasets' DirichletPartitioner",
        extra="flower-data",
    )
    demand: ClassVar[Demand] = Demand()

    alpha: Annotated[Positive, Fix("set data.alpha")] = 0.5

    def __post_init__(self) -> None:
        check_ranges(self, "partition 'dirichlet'")

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """One index tensor per client.

        Raises:
            BadValue: ten draws left some client without an image.
        """
        maker = flower.DirichletPartitioner(
            clients, "label", self.alpha, min_partition_size=1, self_balancing=True, seed=rng.seed()
        )
        return _parts(maker, labels, clients, name="dirichlet", fix="raise data.alpha or data.examples")


@final
@dataclass(frozen=True, kw_only=True)
class Pathological:
    """Each client holds a few random classes; a class is divided equally among the clients that hold it.

    Images of a class that no client holds are left out.

    Args:
        classes: per client, at least 1.
    """

    card: ClassVar[Card] = Card(
        summary="every client holds only a few classes",
        source="McMahan et al. 2017, arXiv:1602.05629; Flower Datasets' PathologicalPartitioner",
        extra="flower-data",
    )
    demand: ClassVar[Demand] = Demand(classes=2)

    classes: int = 2

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """One index tensor per client.

        Raises:
            BadValue: more classes per client than exist, or a client without images.
        """
        available = len(torch.unique(labels))
        if not 1 <= self.classes <= available:
            raise BadValue(
                "partition 'pathological'",
                needs=f"classes per client from 1 to {available}: so many are in the private data",
                got=str(self.classes),
                fix="ask for fewer classes, or for more private images",
            )
        maker = flower.PathologicalPartitioner(clients, "label", self.classes, seed=rng.seed())
        return _parts(maker, labels, clients, name="pathological", fix="raise data.examples")


@final
@dataclass(frozen=True, kw_only=True)
class Shards:
    """Images sorted by label and cut into equal shards, ``shards`` of them per client, assigned at random.

    Images that do not fill a shard are left out.

    Args:
        shards: shards per client, at least 1.
    """

    card: ClassVar[Card] = Card(
        summary="label-sorted pieces, a few per client",
        source="McMahan et al. 2017, arXiv:1602.05629; Flower Datasets' ShardPartitioner",
        extra="flower-data",
    )
    demand: ClassVar[Demand] = Demand(examples=2)

    shards: int = 2

    def __call__(self, labels: Tensor, clients: int, *, rng: Rng) -> tuple[Tensor, ...]:
        """One index tensor per client.

        Raises:
            BadValue: fewer images than shards.
        """
        if self.shards < 1 or len(labels) < clients * self.shards:
            raise BadValue(
                "partition 'shards'",
                needs="shards >= 1 and at least one image per piece",
                got=f"{len(labels)} images for {clients} clients with {self.shards} pieces each",
                fix="ask for fewer pieces, or raise data.examples",
            )
        maker = flower.ShardPartitioner(
            clients, "label", num_shards_per_partition=self.shards, seed=rng.seed()
        )
        return _parts(maker, labels, clients, name="shards", fix="raise data.examples")


def _parts(
    maker: flower.partitioner.Partitioner, labels: Tensor, clients: int, *, name: str, fix: str
) -> tuple[Tensor, ...]:
    """Let Flower divide a table of labels and row numbers, and read the row numbers back."""
    maker.dataset = datasets.Dataset.from_dict({"label": labels.tolist(), "row": list(range(len(labels)))})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about repeated draws; a failure is raised below
            warnings.simplefilter("ignore", FutureWarning)  # by pyarrow, about how datasets calls it
            return tuple(
                torch.tensor(maker.load_partition(i)["row"], dtype=torch.int64) for i in range(clients)
            )
    except ValueError as error:
        raise BadValue(
            f"partition '{name}'",
            needs="at least one image for each client",
            got=f"{len(labels)} images for {clients} clients: {str(error).splitlines()[0]}",
            fix=fix,
        ) from error

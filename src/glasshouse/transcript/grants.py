"""Side knowledge granted to the adversary; every grant used is printed beside the finding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from glasshouse.wire import Batch, Mechanism

__all__ = ["NAMES", "Cohort", "Grants"]

NAMES = ("auxiliary", "labels", "batch_norm", "defense", "challenge", "cohorts")


@final
@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The participants of a round and the size of their work.

    Attributes:
        selected: ids of the cohort.
        dropped: ids of the clients in the cohort that did not answer.
        examples: number of private examples used in the round.
        steps: local steps of each client.
    """

    selected: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    examples: int
    steps: int = 1


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Grants:
    """The side knowledge of an adversary; None or empty: not granted.

    Attributes:
        auxiliary: data from the same or a stated other distribution, disjoint from every client's.
        labels: true labels of an update, (B,), by (round, client); client -1: of an aggregate.
        batch_norm: batch statistics that the client computed, by (round, client) and layer:
            ``"layer.mean"`` and ``"layer.var"``, (channels,).
        defense: the mechanisms that the clients run, in order; empty tuple: known to be none.
        challenge: examples whose membership the adversary must decide.
        cohorts: by round; they let a client compute the sums from successive models (see ``cut``).
    """

    auxiliary: Batch | None = None
    labels: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)
    batch_norm: Mapping[tuple[int, int], Mapping[str, Tensor]] = field(default_factory=dict)
    defense: tuple[Mechanism, ...] | None = None
    challenge: Batch | None = None
    cohorts: Mapping[int, Cohort] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Names of the grants present, in the order of ``NAMES``."""
        return tuple(name for name in NAMES if getattr(self, name) not in (None, {}))

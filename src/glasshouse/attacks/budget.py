"""How long an attack searches, as ``glasshouse check`` counts and times it.

Shape letters: B images, C channels, H and W pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, final

from torch import Tensor

from glasshouse.wire import Architecture, Value

__all__ = ["LONGER", "PROBE", "Budget", "Piece", "Pieces", "Search", "search_budget"]


class Search(Protocol):
    """Settings of a search, a dataclass: so many iterations from each of so many starts."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def iterations(self) -> int: ...

    @property
    def restarts(self) -> int: ...


PROBE = 3
"""Iterations of a search that is run only to be timed."""
LONGER = 12
"""Of the longer one."""
LONGEST = 48
"""Of one that is run where what a call does once hides the difference of both."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """A short piece of an attack's work, to be timed.

    Attributes:
        run: does it; what it returns is not used.
        times: how often the full budget is that piece.
    """

    run: Callable[[], object]
    times: float


Pieces = Callable[[Architecture, Mapping[str, Tensor], Tensor], tuple[Piece, ...]]
"""From the agreed model, its tensors and images (B, C, H, W): the pieces of what is done to these images.

Raises Inapplicable where the attack cannot run behind this model.
"""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """How long an attack searches, and how to time a short piece of it; ``glasshouse check`` reads it.

    Attributes:
        unit: what is counted, in the plural: ``iterations``, ``evaluations``.
        amount: how many in one search; 0: no search, only training beforehand.
        restarts: independent searches, of which the attack's own loss picks one.
        images: the amount is spent on each of at most so many images read from one update; 0: on each call.
        probe: arguments that make one call short enough to be timed, tables as a whole; empty: calls are not
            timed.
        longer: the same for a longer call: both together tell the units from what each call does once.
        longest: the same again, for where the units of a longer call are lost in what it does once.
        pieces: times the work on each image instead of a whole call; None: there is none.
        training: steps of training before the first call, which is done once and cached; 0: none.
        trained: what is trained by them, in words. Attacks that say the same share it.
        every_round: it is trained anew for every round's model.
        recipe: settings that what is trained depends on; another attack with the same finds it in the cache.
        behind: what else it depends on beside auxiliary images: the agreed ``model``, the size of a ``sum``.
    """

    unit: str
    amount: int
    restarts: int = 1
    images: int = 0
    probe: Mapping[str, Value | Mapping[str, Any]] = field(default_factory=dict)
    longer: Mapping[str, Value | Mapping[str, Any]] = field(default_factory=dict)
    longest: Mapping[str, Value | Mapping[str, Any]] = field(default_factory=dict)
    pieces: Pieces | None = None
    training: int = 0
    trained: str = ""
    every_round: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)
    behind: frozenset[Literal["model", "sum"]] = frozenset({"model"})

    @property
    def units(self) -> int:
        """Units of work in one call, or on one image."""
        return self.amount * self.restarts


def search_budget(search: Search, *, probes: tuple[int, int] = (PROBE, LONGER)) -> Budget:
    """The budget of an attack whose argument ``search`` says how long it searches.

    Args:
        search: in full.
        probes: iterations of both searches that are run only to be timed.
    """
    lengths = (*probes, LONGEST)
    short, longer, longest = (asdict(replace(search, iterations=min(n, search.iterations))) for n in lengths)
    return Budget(
        unit="iterations",
        amount=search.iterations,
        restarts=search.restarts,
        probe={"search": short},
        longer={"search": longer},
        longest={"search": longest},
    )

"""The search budget of an attack, which ``glasshouse check`` reads to estimate its run time.

Shape letters: B images, C channels, H and W pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, final

from torch import Tensor

from glasshouse.interfaces import Piece
from glasshouse.wire import Architecture, Value

__all__ = ["LONGER", "PROBE", "Budget", "Piece", "Pieces", "Search", "search_budget"]


class Search(Protocol):
    """Settings of a search, a dataclass: the number of iterations, and of restarts."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def iterations(self) -> int: ...

    @property
    def restarts(self) -> int: ...


PROBE = 3
"""Iterations of the short search that is run only for timing."""
LONGER = 12
"""Iterations of the longer timing run."""
LONGEST = 48
"""Iterations of a third timing run, used where a call's fixed cost hides the difference of the first two."""


Pieces = Callable[[Architecture, Mapping[str, Tensor], Tensor], tuple[Piece, ...]]
"""(agreed model, its tensors, images (B, C, H, W)) → the pieces of work on these images.

Raises Inapplicable where the attack cannot run on this model.
"""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """How long an attack searches, and how to time a short piece of it; ``glasshouse check`` reads it.

    Attributes:
        unit: the unit of work, in the plural: ``iterations``, ``evaluations``.
        amount: units in one search; 0: no search, only training beforehand.
        restarts: independent searches, of which the attack picks one by its own loss.
        images: at most this many images of one update, each costing ``amount``; 0: ``amount`` is per call.
        probe: arguments that make one call short enough to be timed, whole tables; empty: calls are not
            timed.
        longer: the same for a longer call: the two together separate cost per unit from fixed cost per call.
        longest: the same for a third call, used where fixed cost hides the units of the longer call.
        pieces: times the work per image instead of a whole call; None: whole calls are timed.
        training: training steps before the first call, done once and cached; 0: none.
        trained: what these steps train, in words. Attacks with the same text share it.
        every_round: it is trained anew for every round's model.
        recipe: settings that the trained result depends on; attacks with equal settings share the cache.
        behind: what else it depends on besides auxiliary images: the agreed ``model``, the size of a ``sum``.
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


def shorten(settings: Any, **most: int) -> dict[str, Any]:
    """``settings`` as a table for a timing run: each number named is at most ``most``."""
    return asdict(settings) | {name: min(n, getattr(settings, name)) for name, n in most.items()}


def search_budget(search: Search, *, probes: tuple[int, int] = (PROBE, LONGER)) -> Budget:
    """The budget of an attack whose argument ``search`` holds its number of iterations and restarts.

    Args:
        search: the full search.
        probes: iterations of the two searches that are run only for timing.
    """
    lengths = (*probes, LONGEST)
    short, longer, longest = ({"search": shorten(search, iterations=n)} for n in lengths)
    return Budget(
        unit="iterations",
        amount=search.iterations,
        restarts=search.restarts,
        probe=short,
        longer=longer,
        longest=longest,
    )

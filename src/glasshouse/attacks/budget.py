"""The search budget of an attack, which ``glasshouse check`` counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, final

__all__ = ["MATCHING", "Budget", "Search", "search_budget"]

MATCHING: Final = 3.0
"""Gradients that one step of gradient matching costs: the gradient, and its derivative by the inputs."""


class Search(Protocol):
    """Settings of a search, a dataclass: the number of iterations, and of restarts."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def iterations(self) -> int: ...

    @property
    def restarts(self) -> int: ...


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """How long an attack searches; ``glasshouse check`` counts it.

    Attributes:
        unit: the unit of work, in the plural: ``iterations``, ``evaluations``.
        amount: units in one search; 0: no search, only training beforehand.
        restarts: independent searches, of which the attack picks one by its own loss.
        images: at most this many images of one update, each costing ``amount``; 0: ``amount`` is per call.
        gradients: of the agreed network, over the examples of an update, that one unit costs; 0: a unit does
            not go through that network.
        training: training steps before the first call, done once and cached; 0: none.
        trained: what these steps train, in words. Attacks with the same text share it.
        every_round: it is trained anew for every round's model.
        recipe: settings that the trained result depends on; attacks with equal settings share the cache.
        behind: what else it depends on besides auxiliary images: the agreed ``model``, the size of a ``sum``.
        simulated: share of the units that repeat a client's local steps one by one, where it took several;
            the others read its update as one gradient.
        ordered: share of the units that do so where every step had the same examples, so that no order is
            sought; None: as ``simulated``.
        tries: most candidates that one search simulates besides, without a derivative, for the order of
            the examples.
    """

    unit: str
    amount: int
    restarts: int = 1
    images: int = 0
    gradients: float = 0.0
    training: int = 0
    trained: str = ""
    every_round: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)
    behind: frozenset[Literal["model", "sum"]] = frozenset({"model"})
    simulated: float = 0.0
    ordered: float | None = None
    tries: int = 0

    @property
    def units(self) -> int:
        """Units of work in one call, or on one image."""
        return self.amount * self.restarts

    def gradients_of(self, units: int, *, steps: int, batches: int) -> tuple[float, float]:
        """Gradients that ``units`` take over all examples of an update, and over those of one local step.

        Args:
            units: of work, over any number of searches.
            steps: local steps behind the update.
            batches: those of one pass; where it is 1, every step has all examples.

        Examples:
            >>> Budget(unit="iterations", amount=10, gradients=3, simulated=0.5, tries=4).gradients_of(
            ...     20, steps=2, batches=2
            ... )
            (30.0, 76.0)
        """
        if steps == 1 or not self.simulated:
            return units * self.gradients, 0.0
        if batches == 1 and self.ordered is not None:
            share, tries = self.ordered, 0.0
        else:
            share, tries = self.simulated, self.tries * units / max(self.amount, 1)
        return units * self.gradients * (1 - share), (units * self.gradients * share + tries) * steps


def search_budget(search: Search) -> Budget:
    """The budget of an attack on gradients whose ``search`` holds its number of iterations and restarts."""
    return Budget(unit="iterations", amount=search.iterations, restarts=search.restarts, gradients=MATCHING)

"""Attacks whose victims share a batch: clients who answered one broadcast, and differ in their updates."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.budget import Budget, Search, search_budget
from glasshouse.limits import check_ranges
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

__all__ = ["SearchAttack", "TogetherAttack"]


@runtime_checkable
class TogetherAttack(Protocol):
    """An attack that can take several victims at once, and claims of each what it claims alone.

    Up to rounding: a batch of another size adds in another order, and a long search may end elsewhere.
    """

    @property
    def budget(self) -> Budget | None:
        """As of every attack: its restarts are rows of the batch, too."""
        ...

    @property
    def needs(self) -> Needs:
        """As of every attack."""
        ...

    @property
    def shares(self) -> bool:
        """Whether it takes several victims with these settings."""
        ...

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """As of every attack."""
        ...

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """For every view the claims of :meth:`Attack.run`; nothing where they cannot share a batch.

        Args:
            views: of one update each, of one round.
            rngs: for every view the stream that ``run`` would get.

        Raises:
            GlasshouseError: what ``run`` raises for one of them; each is then run alone.
        """
        ...


class SearchAttack(TogetherAttack, Protocol):
    """Base class of attacks that search, as their table ``search`` says; one victim is a batch of one."""

    name: ClassVar[str]
    shares: ClassVar[bool] = True
    search: Search

    def __post_init__(self) -> None:
        check_ranges(self, f"attack '{self.name}'")

    @property
    def budget(self) -> Budget:
        """Iterations of every restart."""
        return search_budget(self.search)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One reconstruction of the B images behind the update.

        Raises:
            Inapplicable: the view does not hold exactly one update of parameters, or it is zero.
        """
        (claims,) = self.run_together((view,), rngs=(rng,))
        return claims

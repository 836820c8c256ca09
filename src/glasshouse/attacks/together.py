"""Attacks that process several victims in one batch: clients that answered the same broadcast."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from glasshouse.attacks.base import Attack, Claim
from glasshouse.attacks.budget import Budget, Search, search_budget
from glasshouse.limits import check_ranges
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

__all__ = ["SearchAttack", "TogetherAttack"]


@runtime_checkable
class TogetherAttack(Attack, Protocol):
    """An attack that can process several victims at once, with the same claims as one at a time.

    The same up to rounding: batch size changes the order of summation, and a long search may end elsewhere.
    Restarts are rows of the batch, too.
    """

    @property
    def shares(self) -> bool:
        """Whether it processes several victims at once under these settings."""

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """For every view the claims of :meth:`Attack.run`; empty where the views cannot share a batch.

        Args:
            views: of one update each, all of the same round.
            rngs: for every view the stream that ``run`` would get.

        Raises:
            GlasshouseError: what ``run`` raises for one of them; the caller then runs them one by one.
        """


class SearchAttack(TogetherAttack, Protocol):
    """Base class of attacks that search under their table ``search``; one victim is a batch of one."""

    name: ClassVar[str]
    shares: ClassVar[bool] = True
    search: Search

    def __post_init__(self) -> None:
        check_ranges(self, f"attack '{self.name}'")

    @property
    def budget(self) -> Budget:
        """Iterations and restarts of the search."""
        return search_budget(self.search)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One reconstruction of the B images behind the update.

        Raises:
            Inapplicable: the view does not hold exactly one update of parameters, or it is zero.
        """
        (claims,) = self.run_together((view,), rngs=(rng,))
        return claims

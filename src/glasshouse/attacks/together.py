"""Attacks whose victims share a batch: clients who answered one broadcast, and differ in their updates."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

__all__ = ["TogetherAttack"]


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

"""Attacks whose victims share a batch: clients who answered one broadcast, and differ in their updates."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from glasshouse.attacks.base import Attack, Claim
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

__all__ = ["TogetherAttack", "each_alone"]


@runtime_checkable
class TogetherAttack(Protocol):
    """An attack that can take several victims at once, and claims of each what it claims alone.

    Up to rounding: a batch of another size adds in another order, and a long search may end elsewhere.
    """

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """For every view the claims of :meth:`Attack.run`.

        Args:
            views: of one update each, of one round.
            rngs: for every view the stream that ``run`` would get.

        Raises:
            GlasshouseError: what ``run`` raises for one of them; each is then run alone.
        """
        ...


def each_alone(attack: Attack, views: Sequence[View], rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
    """The claims of victims that cannot share a batch."""
    return tuple(attack.run(view, rng=rng) for view, rng in zip(views, rngs, strict=True))

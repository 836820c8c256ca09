"""What an attack minimises, for the judge: was the search finished?

After the claims are filed, the judge evaluates an attack's own loss at the truth. A claim that is left with a
larger loss is an unfinished search: a better point is known to exist, and the attack did not find it.

Shape letters: R candidates, B images or sentences of one candidate, C channels, H and W pixels, L tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

from torch import Tensor

from glasshouse.attacks.base import About, Claim
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

__all__ = [
    "SearchedLoss",
    "SearchingAttack",
    "SearchingTogether",
    "collect_losses",
    "record_loss",
    "thinned",
]

POINTS: Final = 64
"""Points of a curve that are kept, at most."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SearchedLoss:
    """The loss that an attack minimises, as a function of images or sentences.

    Attributes:
        loss: pixels (R, B, C, H, W), or tokens (R, B, L), and labels (R, B) → (R,); smaller is better.
            Deterministic, in float32 whatever the search computes in, and nothing else happens when it is
            called.
        noise: losses that differ by no more than this are alike: the rounding of the arithmetic, or the
            distance at which the attack itself stops.
        reached: the loss of the point behind a claim, where the claim had to be changed to be an image
            (clipped, or read as tokens); None: the loss of the claim.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    noise: float
    reached: Callable[[Claim], float] | None = None


@runtime_checkable
class SearchingAttack(Protocol):
    """An attack that searches, and shows the judge what for."""

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """What :meth:`Attack.run` minimises on this view for its claim about ``about``.

        Args:
            view: as ``run`` got it.
            about: of the claim.
            rng: the stream that ``run`` got, from its start.
        """
        ...


@runtime_checkable
class SearchingTogether(Protocol):
    """A ``SearchingAttack`` that prepares once what updates of a round share: the model that they answer."""

    def objectives(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[SearchedLoss, ...]:
        """For every view what :meth:`objective` says of it, to the last bit.

        Args:
            views: of one update each.
            rngs: for every view the stream that ``run`` got, from its start.

        Raises:
            GlasshouseError: what ``objective`` raises for one of them; each is then asked for alone.
        """
        ...

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """Of one view; a claim can only be about its update."""
        del about
        (one,) = self.objectives((view,), rngs=(rng,))
        return one


_curve: ContextVar[list[tuple[int, Tensor]] | None] = ContextVar("glasshouse_losses", default=None)


@contextmanager
def collect_losses() -> Iterator[list[tuple[int, Tensor]]]:
    """Within the block, collect the losses that searches report: a step, and the smallest loss by victim."""
    points: list[tuple[int, Tensor]] = []
    token = _curve.set(points)
    try:
        yield points
    finally:
        _curve.reset(token)


def record_loss(step: int, losses: Tensor) -> None:
    """Report how far a search is after ``step`` steps. Changes nothing, and makes no GPU wait.

    Args:
        step: iteration or evaluation.
        losses: of one search (R,) or (), or of several (V, R): the smallest counts.
    """
    if (points := _curve.get()) is not None:
        smallest = losses.detach().amin(1) if losses.ndim == 2 else losses.detach().amin()[None]
        points.append((step, smallest))


def thinned(points: list[tuple[int, Tensor]], victim: int = 0) -> tuple[tuple[int, float], ...]:
    """At most ``POINTS`` points of one victim's curve, evenly spaced, the last among them.

    Examples:
        >>> import torch
        >>> thinned([(i, torch.zeros(1)) for i in range(200)])[-2:]
        ((195, 0.0), (199, 0.0))
    """
    stride = -(-len(points) // POINTS) or 1
    return tuple((step, float(losses[victim])) for step, losses in points[len(points) - 1 :: -stride][::-1])

"""The loss that an attack minimises, with which the judge checks whether the search was finished.

Once the claims are filed, the judge evaluates an attack's own loss at the true data. If the claim has a
larger loss, the search was unfinished: a better point exists, and the attack did not find it. The loss is
asked about held-out examples too, in random order and in a sealed process: one that cannot tell them from the
truth certifies nothing.

Shape letters: R candidates, B images or sentences of one candidate, C channels, H and W pixels, L tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

from torch import Tensor

from glasshouse.attacks.base import About
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
"""Maximum number of points kept of a loss curve."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SearchedLoss:
    """The loss that an attack minimises, as a function of images or sentences.

    Attributes:
        loss: pixels (R, B, C, H, W), or tokens (R, B, L), and labels (R, B) → (R,); smaller is better.
            Deterministic, in float32 whatever precision the search uses, and without side effects.
        noise: losses that differ by no more than this count as equal: rounding error, or the distance at
            which the attack itself stops. The judge takes no more than a twentieth of the distance between
            the truth and a typical held-out example.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    noise: float


@runtime_checkable
class SearchingAttack(Protocol):
    """An attack that searches, and exposes its loss to the judge."""

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The loss that :meth:`Attack.run` minimises on this view for its claim about ``about``.

        Args:
            view: the one passed to ``run``.
            about: of the claim.
            rng: the stream passed to ``run``, from its start.
        """


@runtime_checkable
class SearchingTogether(Protocol):
    """A ``SearchingAttack`` that prepares the broadcast model once for all updates that answer it."""

    def objectives(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[SearchedLoss, ...]:
        """For every view the same result as :meth:`objective`, bit for bit.

        Args:
            views: of one update each.
            rngs: for every view the stream passed to ``run``, from its start.

        Raises:
            GlasshouseError: what ``objective`` raises for one of them; the caller then asks one by one.
        """

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The loss for one view; a claim can only be about its update."""
        del about
        (one,) = self.objectives((view,), rngs=(rng,))
        return one


_curve: ContextVar[list[tuple[int, Tensor]] | None] = ContextVar("glasshouse_losses", default=None)


@contextmanager
def collect_losses() -> Iterator[list[tuple[int, Tensor]]]:
    """Within the block, collect the losses that searches report: step, and smallest loss of each victim."""
    points: list[tuple[int, Tensor]] = []
    token = _curve.set(points)
    try:
        yield points
    finally:
        _curve.reset(token)


def record_loss(step: int, losses: Tensor) -> None:
    """Report the losses of a search after ``step`` steps. Changes nothing, and does not synchronise the GPU.

    Args:
        step: number of the iteration or evaluation.
        losses: of one search (R,) or (), or of several (V, R); the smallest of each is recorded.
    """
    if (points := _curve.get()) is not None:
        smallest = losses.detach().amin(1) if losses.ndim == 2 else losses.detach().amin()[None]
        points.append((step, smallest))


def thinned(points: list[tuple[int, Tensor]], victim: int = 0) -> tuple[tuple[int, float], ...]:
    """At most ``POINTS`` evenly spaced points of one victim's loss curve, including the last.

    Examples:
        >>> import torch
        >>> thinned([(i, torch.zeros(1)) for i in range(200)])[-2:]
        ((195, 0.0), (199, 0.0))
    """
    stride = -(-len(points) // POINTS) or 1
    return tuple((step, float(losses[victim])) for step, losses in points[len(points) - 1 :: -stride][::-1])

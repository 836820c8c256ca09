"""What the three optimisers share: a loss over latent points, a budget, the best point ever evaluated.

Shape letters: R points evaluated together, n coordinates of a point.

Adam runs here; CMA-ES and TuRBO have a file each, as they need the extra ``ggl``. All of them return the best
point that they evaluated, never the last or the mean.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from glasshouse.attacks.objective import record_loss
from glasshouse.attacks.parts.search.adam import stepwise
from glasshouse.errors import BadValue, Undefined
from glasshouse.progress import track
from glasshouse.rng import Rng


class LatentLoss(Protocol):
    """Points (R, n) → losses (R,); smaller is better."""

    def __call__(self, points: Tensor, *, differentiable: bool = False) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one trial may spend.

    Attributes:
        evaluations: candidates whose loss is computed, exactly unless the seconds run out.
        seconds: of the wall clock; no limit by default. A limit makes the result depend on the machine.
    """

    evaluations: int
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.evaluations < 1 or not self.seconds > 0:
            raise BadValue(
                "budget of a search",
                needs="evaluations >= 1 and seconds > 0",
                got=f"{self.evaluations} and {self.seconds}",
                fix="leave seconds out for no limit",
            )


@final
class Tally:
    """Evaluates points under a budget and remembers the best one.

    Args:
        loss: see :class:`LatentLoss`.
        budget: of this trial.
    """

    def __init__(self, loss: LatentLoss, budget: Budget) -> None:
        self._loss, self._budget, self._started = loss, budget, time.monotonic()
        self.spent, self.best, self.value = 0, torch.zeros(0), math.inf

    @property
    def left(self) -> int:
        """Evaluations that may still be spent; 0 as soon as the seconds are over."""
        over = time.monotonic() - self._started > self._budget.seconds
        return 0 if over else max(0, self._budget.evaluations - self.spent)

    def __call__(self, points: Tensor) -> Tensor:
        """Losses (R,) float64 of points (R, n), without gradients; what is not finite counts as infinite."""
        values = self._loss(points).detach().double().cpu().nan_to_num(nan=math.inf)
        self.spent += len(points)
        lowest = int(values.argmin())
        if float(values[lowest]) < self.value:
            self.best, self.value = points[lowest].detach().clone(), float(values[lowest])
        record_loss(self.spent, torch.tensor(self.value))
        return values

    def found(self) -> "Best":
        """The best point so far.

        Raises:
            Undefined: no point had a finite loss.
        """
        if not math.isfinite(self.value):
            raise Undefined(
                "search in the latent space",
                needs="at least one point with a finite loss",
                got=f"{self.spent} points, none",
                fix="use float32 instead of bf16, or another generator",
            )
        return Best(point=self.best, loss=self.value, evaluations=self.spent)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Best:
    """The best point (n,) of a trial, its loss, and how many candidates were evaluated for it."""

    point: Tensor
    loss: float
    evaluations: int


def adam(
    loss: LatentLoss, starts: Tensor, budget: Budget, *, learning_rate: float, signed: bool = False
) -> tuple[Best, ...]:
    """Adam from every row of ``starts`` (R, n), all in one batch; a tenth of the rate at 3/8, 5/8 and 7/8.

    ``signed``: Adam sees the sign of the gradient only, as in the authors' code (their paper does not say
    so).
    """
    here = starts.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([here], lr=learning_rate)
    points, losses = here.detach().clone(), torch.full((len(here),), math.inf, dtype=torch.float64)
    started, spent = time.monotonic(), 0
    for i in track(range(budget.evaluations), "searching the latent space"):
        if time.monotonic() - started > budget.seconds:
            break
        values = loss(here, differentiable=True)
        (slope,) = torch.autograd.grad(values.sum(), here)
        spent += 1
        with torch.no_grad():
            reached = values.double().cpu()
            better = reached < losses  # False for NaN
            points[better], losses[better] = here.detach()[better], reached[better]
            record_loss(i, losses)
            here.grad = slope.sign() if signed else slope
            optimizer.param_groups[0]["lr"] = learning_rate * stepwise(i / budget.evaluations)
            optimizer.step()
    trials = zip(points, losses.tolist(), strict=True)
    return tuple(Best(point=point, loss=value, evaluations=spent) for point, value in trials)


def normal_starts(streams: Sequence[Rng], dimension: int) -> Tensor:
    """(R, n) from N(0, 1), a row from each stream."""
    return torch.stack([torch.randn(dimension, generator=rng.torch()) for rng in streams])

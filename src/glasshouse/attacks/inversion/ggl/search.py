"""Shared code of the three optimizers: a loss over latent points, a budget, the best point evaluated.

Shape letters: R points evaluated together, n coordinates of a point.

Adam is implemented here; CMA-ES and TuRBO have a file each, as they need the extra ``ggl``. All of them
return the best point that they evaluated, not the last or the mean.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from glasshouse.attacks.objective import record_loss
from glasshouse.attacks.parts.search.adam import stepwise
from glasshouse.attacks.parts.search.rows import Evaluation, Rows
from glasshouse.errors import Undefined
from glasshouse.limits import Count, NotNegative, Positive, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import wide_type


class LatentLoss(Protocol):
    """Points (R, n) → losses (R,); smaller is better.

    ``rows``: the rows of the batch that these points are; None: all, equally many for each victim.
    """

    def __call__(
        self, points: Tensor, *, differentiable: bool = False, rows: Rows | None = None
    ) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class LatentSearch:
    """Settings of the search in the latent space: the table ``search`` of GGL.

    Attributes:
        optimizer: ``adam``, ``cma_es`` or ``turbo``; the last two need the extra ``ggl``.
        evaluations: candidates evaluated per trial, exactly, unless the time limit ends it.
        seconds: time limit per trial, 0 for none; makes results machine-dependent.
        restarts: trials; which of them is claimed, the attack decides.
        processes: trials run in parallel, each in its own process, with the same result; Adam runs all of its
            trials in one batch instead.
        population: candidates evaluated together by CMA-ES, at least 2.
        learning_rate: of Adam.
        signed: Adam gets only the sign of the gradient, as in the authors' code (not in their paper).
    """

    optimizer: Literal["adam", "cma_es", "turbo"] = "cma_es"
    evaluations: Count = 2500
    seconds: NotNegative = 0.0
    restarts: Count = 1
    processes: Count = 1
    population: Count = 50
    learning_rate: Positive = 0.1
    signed: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "search in the latent space")

    def out_of_time(self, started: float) -> bool:
        """Whether a trial that began at ``started``, by the monotonic clock, has reached its time limit."""
        return 0 < self.seconds < time.monotonic() - started


@final
class Tally:
    """Evaluates points within a budget and records the best one.

    Args:
        loss: see :class:`LatentLoss`.
        search: of this trial.
    """

    def __init__(self, loss: LatentLoss, search: LatentSearch) -> None:
        self._loss, self._search, self._started = loss, search, time.monotonic()
        self.spent, self.best, self.value = 0, torch.zeros(0), math.inf

    @property
    def left(self) -> int:
        """Remaining evaluations; 0 once the time limit is reached."""
        over = self._search.out_of_time(self._started)
        return 0 if over else max(0, self._search.evaluations - self.spent)

    def __call__(self, points: Tensor) -> Tensor:
        """Losses (R,) float64 of points (R, n), without gradients; NaN counts as infinite."""
        values = self._loss(points).detach().cpu().double().nan_to_num(nan=math.inf)
        self.spent += len(points)
        lowest = int(values.argmin())
        if float(values[lowest]) < self.value:
            self.best, self.value = points[lowest].detach().clone(), float(values[lowest])
        record_loss(self.spent, torch.tensor(self.value))
        return values

    def result(self) -> "Best":
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
    """The best point (n,) of a trial, its loss, and the number of candidates evaluated."""

    point: Tensor
    loss: float
    evaluations: int


def adam(loss: LatentLoss, starts: Tensor, search: LatentSearch, *, victims: int = 1) -> tuple[Best, ...]:
    """Adam from every row of ``starts`` (N, n), in one batch; the rate is divided by 10 at 3/8, 5/8 and 7/8.

    Every victim has equally many rows, victim after victim.
    """
    iterate = starts.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([iterate], lr=search.learning_rate)
    points = iterate.detach().clone()
    losses = iterate.new_full((len(iterate),), math.inf, dtype=wide_type(iterate.device))
    rows = Rows.of(iterate, victims=victims)
    evaluate = Evaluation(lambda some, which: loss(some, differentiable=True, rows=which))
    started, spent = time.monotonic(), 0
    for i in track(range(search.evaluations), "searching the latent space"):
        if search.out_of_time(started):
            break
        values, slope = evaluate(iterate, rows)
        spent += 1
        with torch.no_grad():
            better = values < losses  # False for NaN
            points = torch.where(better[:, None], iterate, points)
            losses = torch.where(better, values.to(losses.dtype), losses)
            record_loss(i, losses.reshape(victims, -1))
            iterate.grad = slope.sign() if search.signed else slope
            optimizer.param_groups[0]["lr"] = search.learning_rate * stepwise(i / search.evaluations)
            optimizer.step()
    trials = zip(points, losses.tolist(), strict=True)
    return tuple(Best(point=point, loss=value, evaluations=spent) for point, value in trials)


def normal_starts(streams: Sequence[Rng], dimension: int) -> Tensor:
    """(R, n) from N(0, 1), one row per stream."""
    return torch.stack([torch.randn(dimension, generator=rng.torch()) for rng in streams])

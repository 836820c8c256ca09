"""The first-order search that image attacks share: Adam on all restarts at once, inside the image range.

Shape letters: R restarts, B images, C channels, H and W pixels.

Candidates live in the units that the model's first real layer sees (see ``replica``); the box is the
declared image range in these units. Restarts are independent: they share a batch, not a gradient.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.attacks.parts.replica import Replica
from glasshouse.errors import Undefined
from glasshouse.images import total_variation
from glasshouse.limits import Count, NotNegative, Positive, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng

Loss = Callable[[Tensor], Tensor]
"""(R, B, C, H, W) → (R,), differentiable."""

Pace = Callable[[float], float]
"""Share of the iterations done, in [0, 1) → factor on the learning rate."""

DECAYS: Final = (3 / 8, 5 / 8, 7 / 8)
WARM_UP: Final = 1 / 20
SETTLED: Final = 0.01
"""At this factor on the learning rate, or a smaller one, a search may end before its last iteration."""


def stepwise(done: float) -> float:
    """A tenth less at 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020).

    Examples:
        >>> [stepwise(x) for x in (0.0, 0.5, 0.99)]
        [1.0, 0.1, 0.001]
    """
    return float(f"1e-{sum(done >= at for at in DECAYS)}")


def warm_cosine(done: float) -> float:
    """Linear rise over the first twentieth, then half a cosine down to 0.

    Examples:
        >>> [round(warm_cosine(x), 2) for x in (0.025, 0.05, 0.525, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
    """
    if done < WARM_UP:
        return max(done, 1e-3) / WARM_UP
    return (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))) / 2


Schedule = Literal["constant", "stepwise", "warm_cosine"]
PACES: Final[Mapping[Schedule, Pace]] = {
    "constant": lambda _: 1.0,
    "stepwise": stepwise,
    "warm_cosine": warm_cosine,
}


@final
@dataclass(frozen=True, kw_only=True)
class Descent:
    """A search by Adam: the table ``search`` of the attacks that match gradients with it.

    Attributes:
        iterations: evaluations of the loss.
        restarts: independent starts from N(0, 1), of which the attack's own loss picks one.
        learning_rate: the highest of the schedule, in units of the model input.
        schedule: ``constant``; ``stepwise``: a tenth at 3/8, 5/8 and 7/8 of the iterations; ``warm_cosine``:
            a rise over the first twentieth, then down to 0 along a cosine.
        signed: Adam sees the sign of the gradient only.
        noise: standard deviation added to every value after each step, as a multiple of the learning rate.
        patience: iterations without progress after which the search ends, once the schedule has brought the
            learning rate to a hundredth.
    """

    iterations: Count = 600
    restarts: Count = 4
    learning_rate: Positive = 0.1
    schedule: Schedule = "stepwise"
    signed: bool = False
    noise: NotNegative = 0.0
    patience: Count = 50

    def __post_init__(self) -> None:
        check_ranges(self, "search by Adam")

    @property
    def pace(self) -> Pace:
        """Factor on the learning rate, of the share of the iterations done."""
        return PACES[self.schedule]

    def step(
        self, optimizer: torch.optim.Optimizer, gradient: Tensor, *, iteration: int, noise: torch.Generator
    ) -> None:
        """Move the optimizer's one tensor down its gradient, in place."""
        group = optimizer.param_groups[0]
        (here,) = group["params"]
        here.grad = gradient.sign() if self.signed else gradient
        group["lr"] = rate = self.learning_rate * self.pace(iteration / self.iterations)
        optimizer.step()
        if self.noise:
            drawn = torch.randn(here.shape, generator=noise).to(here.device)
            with torch.no_grad():
                here.add_(drawn, alpha=self.noise * rate)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The best iterate of every restart by the attack's own loss.

    Attributes:
        points: (R, B, C, H, W), model input.
        losses: (R,) float64, there.
    """

    points: Tensor
    losses: Tensor

    def best(self) -> int:
        """The restart with the smallest loss.

        Raises:
            Undefined: no restart ever had a finite loss.
        """
        if not bool(self.losses.isfinite().any()):
            raise Undefined(
                "gradient matching",
                needs="at least one restart with a finite loss",
                got=f"{len(self.losses)} restarts, none",
                fix="lower the learning rate of the attack, or use float32 instead of bf16",
            )
        return int(self.losses.nan_to_num(nan=torch.inf).argmin())


def random_start(replica: Replica, search: Descent, *, rng: Rng) -> Tensor:
    """(R, B, C, H, W) from N(0, 1), in model input units."""
    shape = (search.restarts, replica.images, *replica.shape)
    return torch.randn(shape, generator=rng.child("starts").torch()).to(replica.device)


def adam(
    loss: Loss,
    start: Tensor,
    search: Descent,
    *,
    box: tuple[Tensor, Tensor],
    rng: Rng,
    pull: Loss | None = None,
) -> Found:
    """Descend from ``start`` (R, B, C, H, W) inside ``box`` and keep the best iterate of every restart.

    ``pull`` is a further loss to go down that does not count when iterates are compared.
    """
    low, high = box
    here = start.detach().clamp(low, high).requires_grad_()
    points, losses = here.detach().clone(), here.new_full((len(start),), torch.inf, dtype=torch.float64)
    optimizer = torch.optim.Adam([here], lr=search.learning_rate)
    generator = rng.child("noise").torch()
    marks, since = losses.clone(), 0
    for i in track(range(search.iterations), "matching the gradient"):
        values = loss(here)
        (gradient,) = torch.autograd.grad((values if pull is None else values + pull(here)).sum(), here)
        with torch.no_grad():
            better = values < losses  # False for NaN
            points[better], losses[better] = here.detach()[better], values.detach().double()[better]
            fell = losses < 0.999 * marks
            marks, since = torch.where(fell, losses, marks), 0 if bool(fell.any()) else since + 1
            if since >= search.patience and search.pace(i / search.iterations) <= SETTLED:
                break
            search.step(optimizer, gradient, iteration=i, noise=generator)
            here.clamp_(low, high)
    return Found(points=points, losses=losses)


def roughness(points: Tensor) -> Tensor:
    """(R,) total variation of candidates (R, B, C, H, W), averaged over their B images."""
    return total_variation(points.flatten(0, 1)).reshape(points.shape[:2]).mean(1)

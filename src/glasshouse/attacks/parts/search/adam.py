"""The first-order search that image attacks share: Adam on all restarts at once, inside the image range.

Shape letters: R restarts, B images, C channels, H and W pixels.

Candidates live in the units that the model's first real layer sees (see ``replica``); the box is the
declared image range in these units. Restarts are independent: they share a batch, not a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.objective import record_loss
from glasshouse.attacks.parts.replica import Replica
from glasshouse.errors import Undefined
from glasshouse.images import total_variation
from glasshouse.progress import track
from glasshouse.rng import Rng

Loss = Callable[[Tensor], Tensor]
"""(R, B, C, H, W) → (R,), differentiable."""

Pace = Callable[[float], float]
"""Share of the iterations done, in [0, 1) → factor on the learning rate."""

DECAYS = (3 / 8, 5 / 8, 7 / 8)

SETTLED, PATIENCE = 0.01, 50
"""An end before the last iteration: at this factor on the learning rate or a smaller one, when no restart's
best loss has fallen by a thousandth for so many iterations."""


def stepwise(done: float) -> float:
    """A tenth less at 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020).

    Examples:
        >>> [stepwise(x) for x in (0.0, 0.5, 0.99)]
        [1.0, 0.1, 0.001]
    """
    return float(f"1e-{sum(done >= at for at in DECAYS)}")


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


def random_start(replica: Replica, *, restarts: int, rng: Rng) -> Tensor:
    """(R, B, C, H, W) from N(0, 1), in model input units."""
    shape = (restarts, replica.images, *replica.shape)
    return torch.randn(shape, generator=rng.child("starts").torch()).to(replica.device)


@final
@dataclass(frozen=True, kw_only=True)
class Descent:
    """How to go down.

    Attributes:
        iterations: evaluations of the loss.
        learning_rate: of Adam, in model input units, before ``pace``.
        pace: share of the iterations done → factor on the learning rate.
        signed: Adam sees the sign of the gradient only.
        noise: standard deviation added to every value after each step, as a multiple of the learning rate.
    """

    iterations: int
    learning_rate: float
    pace: Pace = stepwise
    signed: bool = False
    noise: float = 0.0


def adam(
    loss: Loss,
    start: Tensor,
    how: Descent,
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
    optimizer = torch.optim.Adam([here], lr=how.learning_rate)
    generator = rng.child("noise").torch()
    marks, since = losses.clone(), 0
    for i in track(range(how.iterations), "matching the gradient"):
        values = loss(here)
        (gradient,) = torch.autograd.grad((values if pull is None else values + pull(here)).sum(), here)
        with torch.no_grad():
            better = values < losses  # False for NaN
            points[better], losses[better] = here.detach()[better], values.detach().double()[better]
            record_loss(i, losses)
            fell = losses < 0.999 * marks
            marks, since = torch.where(fell, losses, marks), 0 if bool(fell.any()) else since + 1
            if since >= PATIENCE and how.pace(i / how.iterations) <= SETTLED:
                break
            here.grad = gradient.sign() if how.signed else gradient
            optimizer.param_groups[0]["lr"] = rate = how.learning_rate * how.pace(i / how.iterations)
            optimizer.step()
            if how.noise:
                noise = torch.randn(here.shape, generator=generator).to(here.device)
                here.add_(noise, alpha=how.noise * rate)
            here.clamp_(low, high)
    return Found(points=points, losses=losses)


def roughness(points: Tensor) -> Tensor:
    """(R,) total variation of candidates (R, B, C, H, W), averaged over their B images."""
    return total_variation(points.flatten(0, 1)).reshape(points.shape[:2]).mean(1)

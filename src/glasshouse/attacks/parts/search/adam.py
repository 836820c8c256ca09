"""The first-order search that attacks share: Adam on all restarts at once, among the valid examples.

Shape letters: V victims, R restarts of each, N = V * R rows, B images, C channels, H and W pixels.

Candidates are in model input units (see ``replica``).
Restarts are independent: they share a batch, not a gradient.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.attacks.objective import record_loss
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search.rows import LOOKS, Evaluation, RowLoss, Rows
from glasshouse.errors import Undefined
from glasshouse.limits import Count, NotNegative, Positive, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import wide_type

Loss = Callable[[Tensor], Tensor]
"""(R, B, C, H, W) → (R,), differentiable."""

Pace = Callable[[float], float]
"""Share of the iterations done, in [0, 1) → factor on the learning rate."""

DECAYS: Final = (3 / 8, 5 / 8, 7 / 8)
WARM_UP: Final = 1 / 20
SETTLED: Final = 0.01
"""Once the factor on the learning rate is this small, a search may stop early."""


def stepwise(progress: float) -> float:
    """Divide by 10 at 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020).

    Examples:
        >>> [stepwise(x) for x in (0.0, 0.5, 0.99)]
        [1.0, 0.1, 0.001]
    """
    return float(f"1e-{sum(progress >= at for at in DECAYS)}")


def warm_cosine(progress: float) -> float:
    """Linear rise over the first twentieth, then half a cosine down to 0.

    Examples:
        >>> [round(warm_cosine(x), 2) for x in (0.025, 0.05, 0.525, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
    """
    if progress < WARM_UP:
        return max(progress, 1e-3) / WARM_UP
    return (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2


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
        learning_rate: the highest of the schedule, in model input units.
        schedule: ``constant``; ``stepwise``: divided by 10 at 3/8, 5/8 and 7/8 of the iterations;
            ``warm_cosine``: a linear rise over the first twentieth, then a cosine decay to 0.
        signed: Adam gets only the sign of the gradient.
        noise: standard deviation added to every value after each step, as a multiple of the learning rate.
        patience: iterations without progress after which the search ends, once the schedule has brought the
            learning rate to a hundredth.
        race: at 3/8, 5/8 and 7/8 of the iterations only the better half of the restarts continues, by the
            attack's own loss; the others keep their best iterate.
    """

    iterations: Count = 600
    restarts: Count = 4
    learning_rate: Positive = 0.1
    schedule: Schedule = "stepwise"
    signed: bool = False
    noise: NotNegative = 0.0
    patience: Count = 50
    race: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "search by Adam")

    @property
    def pace(self) -> Pace:
        """Factor on the learning rate, as a function of the share of the iterations done."""
        return PACES[self.schedule]

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        gradient: Tensor,
        *,
        iteration: int,
        noise: Sequence[torch.Generator],
    ) -> None:
        """Update the optimizer's one tensor in place; ``noise``: one generator per victim."""
        group = optimizer.param_groups[0]
        (candidates,) = group["params"]
        candidates.grad = gradient.sign() if self.signed else gradient
        group["lr"] = rate = self.learning_rate * self.pace(iteration / self.iterations)
        optimizer.step()
        if self.noise:
            shape = (len(candidates) // len(noise), *candidates.shape[1:])
            steps = torch.cat([torch.randn(shape, generator=one) for one in noise])
            with torch.no_grad():
                candidates.add_(steps.to(candidates.device), alpha=self.noise * rate)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The best iterate of every row by the attack's own loss.

    Attributes:
        points: (N, B, C, H, W), model input; of a search by L-BFGS (N, D).
        losses: of the points, (N,) float64 (float32 on MPS).
    """

    points: Tensor
    losses: Tensor

    def by_victim(self, victims: int) -> list["Found"]:
        """Split the result by victim."""
        parts = zip(self.points.chunk(victims), self.losses.chunk(victims), strict=True)
        return [Found(points=points, losses=losses) for points, losses in parts]

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


def random_starts(clients: Sequence[Replica], search: Descent, *, rngs: Sequence[Rng]) -> Tensor:
    """(N, B, C, H, W) from N(0, 1), in model input units: R for every client, from its own stream."""
    shape = (search.restarts, clients[0].images, *clients[0].shape)
    starts = [torch.randn(shape, generator=rng.child("starts").torch()) for rng in rngs]
    return torch.cat(starts).to(clients[0].device)


def adam(
    loss: RowLoss,
    start: Tensor,
    search: Descent,
    *,
    onto: Callable[[Tensor], Tensor],
    rngs: Sequence[Rng],
    pulls: Sequence[Loss] = (),
    before: int = 0,
) -> Found:
    """Descend from ``start`` (N, B, C, H, W) and keep the best iterate of every row.

    Candidates may have other axes behind N: those of sentences are (N, B, L, D).

    Args:
        loss: the loss to minimise, by which iterates are compared.
        start: R restarts for every victim, victim after victim.
        search: of every victim; victims share a batch and nothing else.
        onto: moves candidates to the nearest ones that a search may visit: into a box, onto a simplex.
        rngs: a stream for every victim.
        pulls: for every victim an additional loss over all its rows together, which is minimised but ignored
            when iterates are compared.
        before: iterations of an earlier part of the same search, to offset its loss curve.
    """
    rows, evaluate = Rows.of(start, victims=len(rngs)), Evaluation(loss)
    iterate = onto(start.detach()).clone().requires_grad_()
    points = iterate.detach().clone()
    losses = iterate.new_full((len(start),), torch.inf, dtype=wide_type(iterate.device))
    optimizer = torch.optim.Adam([iterate], lr=search.learning_rate)
    cuts = {round(at * search.iterations) for at in DECAYS} if search.race else set()
    noise = [rng.child("noise").torch() for rng in rngs]
    reference = losses.reshape(len(rngs), -1)
    stale = torch.zeros(len(rngs), device=iterate.device)
    for i in track(range(search.iterations), "matching the gradient"):
        values, slope = evaluate(iterate, rows)
        if pulls:
            slope = slope + _slope_of(pulls, iterate)
        with torch.no_grad():
            active = (stale < search.patience).repeat_interleave(len(iterate) // len(rngs))
            best, best_points = rows.pick(losses), rows.pick(points)
            better = (values < best) & active  # False for NaN
            chosen = better.reshape(-1, *[1] * (iterate.ndim - 1))
            points = rows.put(torch.where(chosen, iterate, best_points), into=points)
            losses = rows.put(torch.where(better, values.to(best.dtype), best), into=losses)
            by_victim = losses.reshape(reference.shape)
            record_loss(before + i, by_victim)
            fell = by_victim < 0.999 * reference
            settled = search.pace(i / search.iterations) <= SETTLED
            reference, stale = torch.where(fell, by_victim, reference), torch.where(fell.any(1), 0, stale + 1)
            if settled and i % LOOKS == 0 and bool((stale >= search.patience).all()):
                break
            stale = stale if settled else stale.clamp_max(search.patience - 1)
            search.step(optimizer, slope, iteration=i, noise=noise)
            iterate.copy_(onto(iterate))
        if i + 1 in cuts and len(rows) > len(rngs):
            ahead = _better_half(rows.pick(losses), victims=len(rngs))
            rows, optimizer = rows.keep(ahead), _narrowed(optimizer, ahead)
            (iterate,) = optimizer.param_groups[0]["params"]
    return Found(points=points, losses=losses)


def _better_half(losses: Tensor, *, victims: int) -> Tensor:
    """Indices of each victim's better half among losses (N,), rounded up, in ascending order."""
    by_victim = losses.reshape(victims, -1)
    each = by_victim.shape[1]
    places = by_victim.argsort(1)[:, : -(-each // 2)].sort(1).values
    return (places + each * torch.arange(victims, device=losses.device)[:, None]).flatten()


def _narrowed(optimizer: torch.optim.Adam, places: Tensor) -> torch.optim.Adam:
    """The optimizer restricted to the rows ``places`` of its one tensor, with their moments."""
    (tensor,) = optimizer.param_groups[0]["params"]
    result = torch.optim.Adam([tensor.detach()[places].requires_grad_()], lr=optimizer.param_groups[0]["lr"])
    moments = optimizer.state_dict()["state"]
    state = {name: t[places] if t.ndim else t for name, t in moments.get(0, {}).items()}
    result.load_state_dict({**result.state_dict(), "state": {0: state} if state else {}})
    return result


FLAT: Final = 1e-3
"""Smallest deviation of a candidate's numbers by which its roughness is divided."""


def _slope_of(pulls: Sequence[Loss], candidates: Tensor) -> Tensor:
    """The gradient of losses that depend on all rows of one victim together."""
    points = candidates.detach().requires_grad_()
    parts = zip(pulls, points.chunk(len(pulls)), strict=True)
    (slope,) = torch.autograd.grad(torch.cat([pull(part) for pull, part in parts]).sum(), points)
    return slope


def roughness(client: Replica, points: Tensor) -> Tensor:
    """(R,) roughness of candidates (R, B, ...) as their modality measures it, averaged over their examples.

    Where batch norm uses the statistics of the batch, the update hardly depends on the contrast of the
    examples, and a smoothness prior alone would pull it to zero: roughness is then relative to the contrast.
    """
    rough = client.inputs.roughness(points.flatten(0, 1)).reshape(points.shape[:2]).mean(1)
    if not client.uses_batch_statistics:
        return rough
    return rough / points.flatten(1).std(1).clamp_min(FLAT)

"""What DLG and iDLG share: L-BFGS on the squared distance of gradients, restarts batched, best one claimed.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Reconstruction
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.matching.distance import ROUNDING, Objective, objective
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search import lbfgs
from glasshouse.attacks.parts.search.adam import Found
from glasshouse.attacks.parts.search.rows import Rows
from glasshouse.limits import Count, NotNegative, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng

INNER = 20
"""Iterations in one step of ``torch.optim.LBFGS``, the unit in which the papers count."""


@final
@dataclass(frozen=True, kw_only=True)
class QuasiNewton:
    """A search by L-BFGS with unit steps: the table ``search`` of DLG and iDLG.

    Attributes:
        iterations: outer steps, each of at most 20 evaluations.
        restarts: independent starts from N(0, 1), in one batch, of which the attack's own loss picks one.
        goal: all restarts end when one is this close; squared distance, as a share of the received norm.
    """

    iterations: Count = 300
    restarts: Count = 4
    goal: NotNegative = 1e-8

    def __post_init__(self) -> None:
        check_ranges(self, "search by L-BFGS")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """The best candidate of all restarts of one victim.

    Attributes:
        inputs: (B, C, H, W) in pixel units, clipped into the image range.
        scores: class scores (B, K) when labels were searched too, else None.
        loss: squared distance as a share of the received update's squared norm.
    """

    inputs: Tensor
    scores: Tensor | None
    loss: float


def exact_distance(clients: Sequence[Replica], *, adaptive: bool, rngs: Sequence[Rng]) -> Objective:
    """The squared distance to each update, read as one gradient; ``rngs``: of the attack."""
    adaptations = detect.adaptation_of_each(clients, adaptive=adaptive, rngs=rngs)
    return objective(*clients, distance="squared", steps="one_step", adaptive=adaptations, form="explicit")


def searched_loss(distance: Objective, *, goal: float) -> SearchedLoss:
    """What the search minimises, as a share of the received squared norm; its point is not clipped."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        return distance(pixels, labels, create_graph=False) / distance.target_square

    def reached(claim: Claim) -> float:
        assert isinstance(claim, Reconstruction)
        return -float(claim.confidence[0])

    return SearchedLoss(loss=loss, noise=max(goal, ROUNDING**2), reached=reached)


def minimize_distance(
    clients: Sequence[Replica],
    distance: Objective,
    search: QuasiNewton,
    *,
    labels: Sequence[Tensor] | None,
    rngs: Sequence[Rng],
) -> list[Match]:
    """Minimise ``distance`` over the images of every client, and over soft labels where none are known.

    Args:
        clients: the model and the update behind ``distance``, of each; they share a batch and nothing else.
        distance: what is minimised.
        search: how long.
        labels: (B,) of each; None: soft labels are searched, too.
        rngs: of the starts.
    """
    first = clients[0]
    shape, classes = (first.images, *first.shape), first.classes
    size = torch.Size(shape).numel()
    unknowns = size if labels is not None else size + first.images * classes
    starts = [torch.randn(search.restarts, unknowns, generator=rng.child("starts").torch()) for rng in rngs]
    known = None if labels is None else torch.stack(list(labels)).repeat_interleave(search.restarts, 0)

    def loss(points: Tensor, rows: Rows) -> Tensor:
        images = first.to_pixels(points[:, :size].reshape(-1, *shape))
        if known is not None:
            return distance(images, rows.pick(known), victims=rows.victims)
        scores = points[:, size:].reshape(-1, first.images, classes)
        return distance(images, scores.softmax(-1), victims=rows.victims)

    optimum = lbfgs.minimize(
        loss,
        torch.cat(starts).to(first.device),
        iterations=track(range(search.iterations * INNER), "matching the gradient"),
        goal=search.goal,
        units=distance.target_squares,
    )
    low, high = first.terms.image_range
    each = (optimum.points.chunk(len(clients)), optimum.losses.chunk(len(clients)), distance.target_squares)
    matches = []
    for points, losses, unit in zip(*each, strict=True):
        best = int(losses.argmin())
        point = points[best]
        matches.append(
            Match(
                inputs=first.to_pixels(point[:size].reshape(shape)).clamp(low, high),
                scores=None if labels is not None else point[size:].reshape(-1, classes),
                loss=float(losses[best]) / unit,
            )
        )
    return matches


def best_claim(client: Replica, found: Found, labels: Tensor) -> tuple[Claim, ...]:
    """The claim about ``client``: what the search by Adam found best, in the image range."""
    best = found.best()
    low, high = client.terms.image_range
    pixels = client.to_pixels(found.points[best]).clamp(low, high)
    return (claim_images(client, pixels, labels, loss=float(found.losses[best])),)


def claim_images(replica: Replica, inputs: Tensor, labels: Tensor, *, loss: float) -> Reconstruction:
    """The claim about one client's update; confidence is minus the attack's loss, for all images alike."""
    update = replica.update
    return Reconstruction(
        about=About(rounds=(update.round,), client=update.client),
        inputs=inputs.detach().float(),
        labels=labels,
        confidence=torch.full((len(inputs),), -loss),
    )

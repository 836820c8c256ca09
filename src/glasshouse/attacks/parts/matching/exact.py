"""What DLG and iDLG share: L-BFGS on the squared distance of gradients, restarts batched, best one claimed.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.attacks.parts.matching.distance import Objective
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search import lbfgs
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
    """The best candidate of all restarts.

    Attributes:
        inputs: (B, C, H, W) in pixel units, clipped into the image range.
        scores: class scores (B, K) when labels were searched too, else None.
        loss: squared distance as a share of the received update's squared norm.
    """

    inputs: Tensor
    scores: Tensor | None
    loss: float


def minimize_distance(
    replica: Replica, objective: Objective, search: QuasiNewton, *, labels: Tensor | None, rng: Rng
) -> Match:
    """Minimise ``objective`` over images, and over soft labels where ``labels`` (B,) are not known.

    Args:
        replica: the model and the update behind ``objective``.
        objective: what is minimised.
        search: how long.
        labels: (B,); None: soft labels are searched, too.
        rng: of the starts.
    """
    shape, classes = (replica.images, *replica.shape), replica.classes
    size = torch.Size(shape).numel()
    unknowns = size if labels is not None else size + replica.images * classes
    start = torch.randn(search.restarts, unknowns, generator=rng.child("starts").torch()).to(replica.device)

    def loss(points: Tensor) -> Tensor:
        images = points[:, :size].reshape(-1, *shape)
        if labels is not None:
            return objective(replica.to_pixels(images), labels.expand(len(points), -1))
        scores = points[:, size:].reshape(-1, replica.images, classes)
        return objective(replica.to_pixels(images), scores.softmax(-1))

    iterations: Iterable[int] = track(range(search.iterations * INNER), "matching the gradient")
    descent = lbfgs.minimize(loss, start, iterations=iterations, goal=search.goal * objective.target_square)
    best = int(descent.losses.argmin())
    point = descent.points[best]
    low, high = replica.terms.image_range
    return Match(
        inputs=replica.to_pixels(point[:size].reshape(shape)).clamp(low, high),
        scores=None if labels is not None else point[size:].reshape(-1, classes),
        loss=float(descent.losses[best]) / objective.target_square,
    )


def claim_images(replica: Replica, inputs: Tensor, labels: Tensor, *, loss: float) -> Reconstruction:
    """The claim about one client's update; confidence is minus the attack's loss, for all images alike."""
    update = replica.update
    return Reconstruction(
        about=About(rounds=(update.round,), client=update.client),
        inputs=inputs.detach().float(),
        labels=labels,
        confidence=torch.full((len(inputs),), -loss),
    )

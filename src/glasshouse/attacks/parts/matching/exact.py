"""Shared code of the attacks that match gradients in pixel space: batched restarts, the best one claimed.

DLG and iDLG minimise the squared distance by L-BFGS; Inverting Gradients and GradInversion, with a prior, use
Adam.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, Reconstruction
from glasshouse.attacks.budget import MATCHING, Budget, search_budget
from glasshouse.attacks.objective import SearchedLoss, SearchingTogether
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import Rule, labels_of_each
from glasshouse.attacks.parts.matching import step_order
from glasshouse.attacks.parts.matching.distance import (
    ROUNDING,
    Distance,
    Objective,
    Steps,
    can_share,
    objective,
    objectives,
)
from glasshouse.attacks.parts.replica import Replica, replicas
from glasshouse.attacks.parts.search import lbfgs
from glasshouse.attacks.parts.search.adam import Descent, Found, Loss, adam, random_starts
from glasshouse.attacks.parts.search.rows import Labelled, Rows, with_labels
from glasshouse.attacks.together import SearchAttack
from glasshouse.limits import Count, NotNegative, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

INNER = 20
"""Iterations in one step of ``torch.optim.LBFGS``, the papers' unit of iterations."""


@final
@dataclass(frozen=True, kw_only=True)
class QuasiNewton:
    """A search by L-BFGS with unit steps: the table ``search`` of DLG and iDLG.

    Attributes:
        iterations: outer steps, each of at most 20 evaluations.
        restarts: independent starts from N(0, 1), in one batch, of which the attack's own loss picks one.
        goal: squared distance at which all restarts end, as a share of the received squared norm.
    """

    iterations: Count = 300
    restarts: Count = 4
    goal: NotNegative = 1e-8

    def __post_init__(self) -> None:
        check_ranges(self, "search by L-BFGS")


class ExactAttack(SearchAttack, SearchingTogether, Protocol):
    """Base class of DLG and iDLG: iDLG infers labels, where they are not granted."""

    search: QuasiNewton
    adaptive: bool

    @property
    def budget(self) -> Budget:
        """Outer steps of 20 iterations each, and restarts."""
        return Budget(
            unit="iterations",
            amount=self.search.iterations,
            restarts=self.search.restarts,
            gradients=MATCHING * INNER,
        )

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """The claims of :meth:`run` for each view, from one search; see ``TogetherAttack``.

        The distance is minimised over the images of every client, and over soft labels if they are not
        inferred. The claims are about each client's best restart, clipped into the image range; their loss is
        the squared distance as a share of the received update's squared norm.
        """
        clients = replicas(views, subject=f"attack '{self.name}'")
        # Clients whose steps differ cannot be one batch; the caller runs them one by one.
        if not can_share(clients, "one_step"):
            return ()
        labels = labels_of_each(views, clients, rngs=rngs) if "labels" in self.needs.uses else None
        adaptive = detect.adaptation_of_each(clients, adaptive=self.adaptive, rngs=rngs)
        distance = objective(
            *clients, distance="squared", steps="one_step", adaptive=adaptive, form="explicit"
        )
        first, search = clients[0], self.search
        shape, classes = (first.images, *first.shape), first.classes
        size = torch.Size(shape).numel()
        # Labels that could not be inferred are part of the search, as soft labels behind the pixels.
        unknowns = size if labels is not None else size + first.images * classes
        starts = [
            torch.randn(search.restarts, unknowns, generator=rng.child("starts").torch()) for rng in rngs
        ]
        known = None if labels is None else torch.stack(labels).repeat_interleave(search.restarts, 0)

        def loss(points: Tensor, rows: Rows) -> Tensor:
            images = first.to_pixels(points[:, :size].reshape(-1, *shape))
            if known is not None:
                return distance(images, rows.pick(known), victims=rows.victims)
            scores = points[:, size:].reshape(-1, first.images, classes)
            return distance(images, scores.softmax(-1), victims=rows.victims)

        minima = lbfgs.minimize(
            loss,
            torch.cat(starts).to(first.device),
            iterations=track(range(search.iterations * INNER), "matching the gradient"),
            goal=search.goal,
            units=distance.target_squares,
        )
        each = zip(clients, minima.by_victim(len(clients)), distance.target_squares, strict=True)
        claims = []
        for number, (client, one, unit) in enumerate(each):
            # The restart is chosen by the attack's own loss: it knows nothing better.
            best = int(one.losses.argmin())
            point = one.points[best]
            own = point[size:].reshape(-1, classes).argmax(1) if labels is None else labels[number]
            inputs, reached = point[:size].reshape(shape), float(one.losses[best]) / unit
            claims.append((claim_images(client, client.to_image(inputs), own, loss=reached),))
        return tuple(claims)

    def objectives(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[SearchedLoss, ...]:
        """The squared gradient distance, as a share of the received squared norm."""
        clients = replicas(views, subject=f"attack '{self.name}'")
        adaptive = detect.adaptation_of_each(clients, adaptive=self.adaptive, rngs=rngs)
        distances = objectives(
            clients, distance="squared", steps="one_step", adaptive=adaptive, form="explicit"
        )
        return tuple(self._searched(distance) for distance in distances)

    def _searched(self, distance: Objective) -> SearchedLoss:
        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            return distance(pixels, labels, create_graph=False) / distance.target_square

        return SearchedLoss(loss=loss, noise=max(self.search.goal, ROUNDING**2))


class DescentAttack(SearchAttack, SearchingTogether, Protocol):
    """Base class of attacks by Adam, which differ in the distance of gradients and in the prior.

    Class attributes:
        kind: the distance.
        seeks_order: of several simulated steps, search for the order of the images.
    """

    kind: ClassVar[Distance]
    seeks_order: ClassVar[bool] = False
    search: Descent
    adaptive: bool
    local_steps: Steps
    bf16: bool

    @property
    def budget(self) -> Budget:
        """Iterations and restarts, of which those that simulate a client's steps cost as many gradients."""
        whole = search_budget(self.search)
        if self.local_steps != "simulate":
            return whole
        if not self.seeks_order:
            return replace(whole, simulated=1.0)
        tries = step_order.TURNS * step_order.SWAPS
        return replace(whole, simulated=1 - step_order.WARM, ordered=1.0, tries=tries)

    def loss(self, view: View, client: Replica, distance: Objective) -> Labelled:
        """The loss; ``client``: any of those whose updates ``distance`` compares, and its view."""

    def rule(self, client: Replica) -> Rule:
        """How labels are inferred where they are not granted."""
        del client
        return "sums"

    def pulls(self, clients: Sequence[Replica]) -> Sequence[Loss]:
        """Additional losses, as in ``adam``."""
        del clients
        return ()

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """The claims of :meth:`run` for each view, from one search; see ``TogetherAttack``."""
        clients = replicas(views, subject=f"attack '{self.name}'")
        if not can_share(clients, self.local_steps):
            return ()
        first, search = clients[0], self.search
        labels = labels_of_each(views, clients, rngs=rngs, rule=self.rule(first))
        start = random_starts(clients, search, rngs=rngs)
        adaptive = detect.adaptation_of_each(clients, adaptive=self.adaptive, rngs=rngs)
        compare = partial(objective, *clients, distance=self.kind, adaptive=adaptive, bf16=self.bf16)
        loss = self.loss(views[0], first, compare(steps=self.local_steps))
        # Which examples share a step is unknown, too: a search over orders, begun from one step.
        if self.seeks_order and self.local_steps == "simulate" and step_order.unknown(first):
            as_one = self.loss(views[0], first, compare(steps="one_step"))
            minima, orders = step_order.match(
                first, start, labels[0], search, as_one=as_one, simulated=loss, rng=rngs[0]
            )
            return (best_claim(first, minima, orders[minima.best()]),)
        every = with_labels(loss, torch.stack(labels).repeat_interleave(search.restarts, 0))
        pulls = self.pulls(clients)
        minima = adam(every, start, search, onto=first.onto(), rngs=rngs, pulls=pulls)
        results = zip(clients, minima.by_victim(len(clients)), labels, strict=True)
        return tuple(best_claim(client, one, y) for client, one, y in results)

    def objectives(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[SearchedLoss, ...]:
        """The loss of each view."""
        clients = replicas(views, subject=f"attack '{self.name}'")
        adaptive = detect.adaptation_of_each(clients, adaptive=self.adaptive, rngs=rngs)
        distances = objectives(clients, distance=self.kind, steps=self.local_steps, adaptive=adaptive)
        every = zip(views, clients, distances, strict=True)
        return tuple(_loss_of_pixels(client, self.loss(view, client, one)) for view, client, one in every)


def best_claim(client: Replica, descent: Found, labels: Tensor) -> tuple[Claim, ...]:
    """The claim about ``client``: the best result of the search by Adam, clipped to the image range."""
    best = descent.best()
    pixels = client.to_image(descent.points[best])
    return (claim_images(client, pixels, labels, loss=float(descent.losses[best])),)


def _loss_of_pixels(client: Replica, loss: Labelled) -> SearchedLoss:
    """For the judge: ``loss``, which takes model input, as a function of pixels."""
    return SearchedLoss(
        loss=lambda pixels, labels: loss(client.to_inputs(pixels), labels, False), noise=ROUNDING
    )


def claim_images(replica: Replica, inputs: Tensor, labels: Tensor | None, *, loss: float) -> Reconstruction:
    """The claim about one client's update; the confidence of every image is minus the attack's loss."""
    return Reconstruction(
        about=replica.about,
        inputs=inputs.detach().float(),
        labels=labels,
        confidence=torch.full((len(inputs),), -loss),
    )

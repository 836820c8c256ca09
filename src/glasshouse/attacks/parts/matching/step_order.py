"""Matching several local steps when the assignment of images to steps is unknown.

Shape letters: R restarts, B images, C channels, H and W pixels.

Simulated from a random start, five steps with the labels in arbitrary order end in a poor optimum: every step
gets the wrong image, and the effect of a step depends on the previous ones. So the update is first read as
one gradient, which needs no order. Then two phases alternate: images are swapped between steps while this
brings the simulated update closer, and all images are refined by simulation, at a decreasing learning rate.

Source: ours; simulating the steps is Geiping et al. 2020, arXiv:2003.14053, section 6.
"""

from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from glasshouse.attacks.parts.matching.distance import epoch
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search.adam import Descent, Found, adam
from glasshouse.attacks.parts.search.rows import LOOKS, Labelled, with_labels
from glasshouse.rng import Rng

WARM, TURNS, SLOWER = 0.5, 3, 0.3
"""Share of the iterations that read the update as one step; turns of the rest; factor on the learning rate
from one turn to the next. Chosen on CIFAR-10 train images (docs/log.md)."""

SWAPS = 200
"""Maximum number of swaps tried in one search, per restart."""


def match(
    client: Replica,
    start: Tensor,
    labels: Tensor,
    search: Descent,
    *,
    as_one: Labelled,
    simulated: Labelled,
    rng: Rng,
) -> tuple[Found, Tensor]:
    """The best iterate of every restart by the simulated loss, and its labels (R, B) in the same order.

    Args:
        start: (R, B, C, H, W).
        labels: (B,), in any order.
        search: the whole search; its iterations are divided among the phases.
        as_one: the loss with the update read as one step.
        simulated: the loss with the steps simulated.
        client: the client's model and its update.
        rng: for the order in which swaps are tried, and the noise of the search.
    """
    warm = max(1, round(WARM * search.iterations))
    paired = labels.expand(len(start), *labels.shape).clone()
    first, stream = replace(search, iterations=warm), rng.child("warm")
    descent = adam(with_labels(as_one, paired), start, first, onto=client.onto(), rngs=(stream,))
    steps = step_of(client)
    for turn in range(TURNS):
        stream = rng.child(f"turn/{turn}")
        points, paired = exchange_between_steps(descent.points, paired, steps, simulated, rng=stream)
        left, rate = max(1, (search.iterations - warm) // TURNS), search.learning_rate * SLOWER ** (turn + 1)
        slower = replace(search, iterations=left, learning_rate=rate)
        loss = with_labels(simulated, paired)
        descent = adam(loss, points, slower, onto=client.onto(), rngs=(stream,))
    return descent, paired


def unknown(client: Replica) -> bool:
    """Whether the client took several steps on different images, whose order is unknown."""
    update = client.update
    return update.kind != "gradient" and update.steps > 1 and bool((step_of(client) > 0).any())


def step_of(client: Replica) -> Tensor:
    """(B,) for each of the candidate's images the step of an epoch that uses it.

    Example: 5 images in batches of 2 give 0 0 1 1 2.
    """
    place = torch.zeros(client.images, dtype=torch.int64)
    for step, rows in enumerate(epoch(client)):
        place[rows] = step
    return place


def exchange_between_steps(
    points: Tensor, labels: Tensor, steps: Tensor, loss: Labelled, *, rng: Rng
) -> tuple[Tensor, Tensor]:
    """Swap images of candidates (R, B, ...) and labels (R, B) between steps while this lowers the loss.

    Ends when no single swap lowers the loss, or after ``SWAPS`` tries; no restart's loss rises.
    """
    pairs = [(i, j) for i, j in combinations(range(len(steps)), 2) if steps[i] != steps[j]]
    if not pairs:
        return points, labels
    best = loss(points, labels, False).detach()
    order = torch.randperm(len(pairs), generator=rng.child("pairs").torch()).tolist()
    idle = torch.zeros((), device=points.device)
    for trial in range(SWAPS):
        i, j = pairs[order[trial % len(pairs)]]
        places = torch.arange(len(steps))
        places[[i, j]] = places[[j, i]]
        places = places.to(points.device)
        moved, paired = points[:, places], labels[:, places]
        value = loss(moved, paired, False).detach()
        better = value < best  # False for NaN
        points = torch.where(better[:, None, None, None, None], moved, points)
        labels, best = torch.where(better[:, None], paired, labels), torch.where(better, value, best)
        idle = torch.where(better.any(), 0.0, idle + 1)
        if trial % LOOKS == 0 and bool(idle >= len(pairs)):
            break
    return points, labels

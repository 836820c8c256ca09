"""The loss that an attack minimises, along a line through the true image, with and without adaptation.

A defence that transforms the gradient moves the minimum away from the private image; applying the same
transformation to the candidate's gradient moves it back. Computed in scoring: it needs the ground truth, and
no attack sees it.

Source: Li et al. 2022 (GGL), arXiv:2203.15696, section 3 (the loss landscape with and without adaptation).
Where we differ: our line goes to an image of the generator, theirs follow two random latent directions.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.matching.distance import Distance, Objective, Steps, objective
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import Inapplicable
from glasshouse.figures.base import GroupEvidence
from glasshouse.results.exhibits import Place, line, lines
from glasshouse.results.records import Exhibit
from glasshouse.wire import Batch

OFFSETS: Final = tuple(i / 10 for i in range(-5, 11))
"""Positions on the line: 0 is the private image, 1 the generator's sample."""


def landscape(
    place: Place, title: str, group: GroupEvidence, *, distance: Distance, steps: Steps
) -> Iterator[Exhibit]:
    """Two lines: the loss above its minimum, with and without the detected transformation.

    Yields nothing if there is no single update, or none that can be matched.
    """
    about = group.of(Reconstruction)[0].about
    if about.client is None or group.prior_samples is None or group.view is None:
        return
    truth, _ = group.truth.batch(about.rounds[0], about.client)
    try:
        client = replica(group.view(about.rounds, about.client), subject="loss landscape")
        images = None if group.auxiliary is None else group.auxiliary.inputs
        defense = detect.detect(client, images=images, rng=group.rng.child("landscape"))
        adaptations = {
            "adapted": detect.adaptation(defense, client, steps=steps),
            "not adapted": Adaptation(),
        }
        series = []
        for name, adaptation in adaptations.items():
            loss = objective(client, distance=distance, steps=steps, adaptive=adaptation)
            series.append(line(name, OFFSETS, along(loss, truth, group.prior_samples.inputs)))
    except Inapplicable:
        return
    yield lines(
        place,
        title,
        "On the line from the first victim's image (0) to a draw of the generator (1): how far the "
        "loss is above its minimum. An attack can find the image where the minimum is at 0.",
        labels=("place on the line", "loss above its minimum"),
        series=series,
    )


def along(loss: Objective, truth: Batch, draws: Tensor) -> list[float]:
    """Loss above its minimum at ``OFFSETS``; the line goes from ``truth`` to equally many ``draws``."""
    far = draws[torch.arange(len(truth)) % len(draws)]
    offsets = torch.tensor(OFFSETS).view(-1, 1, 1, 1, 1)
    points = truth.inputs + offsets * (far - truth.inputs)
    labels = truth.labels.expand(len(points), -1)
    values = loss(points, labels, create_graph=False).detach()
    above: list[float] = (values - values.min()).tolist()
    return above

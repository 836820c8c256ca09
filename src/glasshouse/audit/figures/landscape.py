"""The loss that an attack goes down, along a line through the true image, with and without adaptation.

A defence that transforms the gradient moves the minimum away from the private image; repeating the
transformation on the candidate brings it back. Drawn on the scoring side: it needs the truth, and no attack
sees it.

Source: Li et al. 2022 (GGL), arXiv:2203.15696, section 3 (the loss landscape with and without adaptation); we
draw it along the line to an image of the generator, they along two random directions of the latent space.
"""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.matching import Distance, Objective, Steps, objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.parts.transforms import Adaptation
from glasshouse.audit.attacking.call import adversary_side
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.scoring.judge import Judge
from glasshouse.errors import Inapplicable
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell
from glasshouse.transcript.cut import cut
from glasshouse.wire import Batch

OFFSETS: Final = tuple(i / 10 for i in range(-5, 11))
"""Places on the line: 0 is the private image, 1 the generator's draw."""


def landscape(
    cell: Cell,
    title: str,
    folder: Path,
    claim: Reconstruction,
    judge: Judge,
    *,
    distance: Distance,
    steps: Steps,
) -> Exhibit | None:
    """Two lines: the loss above its minimum, with the transformation that was detected and without.

    None where there is no single update, or none that can be matched.
    """
    if claim.about.client is None or judge.draws is None:
        return None
    side = adversary_side(str(folder))
    view = cut(
        side.transcript,
        threat=threat_of(cell.scenario),
        grants=side.grants,
        own={},
        memory={},
        rounds=claim.about.rounds,
        client=claim.about.client,
    )
    truth, _ = judge.truth.batch(claim.about.rounds[0], claim.about.client)
    try:
        client = replica(view, subject="loss landscape")
        images = None if judge.auxiliary is None else judge.auxiliary.inputs
        found = detect.detect(client, images=images, rng=judge.rng.child("landscape"))
        adaptations = {
            "adapted": detect.adaptation(found, client, steps=steps),
            "not adapted": Adaptation(),
        }
        lines = [
            {
                "name": name,
                "x": list(OFFSETS),
                "y": along(
                    objective(client, distance=distance, steps=steps, adaptive=adaptation),
                    truth,
                    judge.draws.inputs,
                ),
            }
            for name, adaptation in adaptations.items()
        ]
    except Inapplicable:
        return None
    return Exhibit(
        kind="lines",
        scenario=cell.scenario.name,
        title=title,
        caption="On the line from the first victim's image (0) to a draw of the generator (1): how far the "
        "loss is above its minimum. An attack can find the image where the minimum is at 0.",
        data={"x_label": "place on the line", "y_label": "loss above its minimum", "series": lines},
    )


def along(loss: Objective, truth: Batch, draws: Tensor) -> list[float]:
    """Loss above its minimum at ``OFFSETS``; the line goes from ``truth`` to as many of ``draws``."""
    far = draws[torch.arange(len(truth)) % len(draws)]
    offsets = torch.tensor(OFFSETS).view(-1, 1, 1, 1, 1)
    points = truth.inputs + offsets * (far - truth.inputs)
    labels = truth.labels.expand(len(points), -1)
    values = loss(points, labels, create_graph=False).detach()
    above: list[float] = (values - values.min()).tolist()
    return above

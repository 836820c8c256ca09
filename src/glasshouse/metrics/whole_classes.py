"""The metrics of private classes on whole pictures, as the literature counts them.

Where the public domain hides half of a picture, the other half is public. An attack that shows the public
half again scores here without any leak: what the hidden half alone shows (:mod:`classes`) belongs beside it.

Source: Takahashi et al. 2023, "Breaching FedMD", CVPR, section 4.1.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.metrics.base import Wording
from glasshouse.metrics.classes import SOURCE, ClassMetric, points_to, sides
from glasshouse.metrics.gallery import Gallery
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class AttackAccuracyWhole(ClassMetric):
    """The paper's success on the whole picture: nearer to its own private mean than to any other mean."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose whole image is nearest to their own private mean",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "1/(L + J) for an image drawn among the candidates"},
    )
    wording: ClassVar[Wording] = Wording(
        label="attack accuracy, whole picture",
        sentence="rebuilt whole pictures recognised as their target in {} of cases",
        explanation="How often the whole picture of a private class is nearest to that class's own private "
        "mean: higher is worse. Parts of it may have been public.",
        display="rate",
        severity="images",
        order=61,
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        mine, others, known = sides(claimed, labels, gallery, whole=True)
        return mine > torch.maximum(others, known)


@final
@dataclass(frozen=True, kw_only=True)
class ClassIdentificationWhole(ClassMetric):
    """Nearest, on the whole picture, among the private-domain means of all people, to its own."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose whole image points to them among all people",
        details={"direction": "up is worse", "chance": "1/J over the people with private-domain images"},
    )
    wording: ClassVar[Wording] = Wording(
        label="identified among all people, whole picture",
        sentence="rebuilt whole pictures that point to the right person in {} of cases",
        explanation="How often the whole picture points to the right one among all people of the data set: "
        "higher is worse; guessing is right for 1 in as many as there are people. Parts of it may have been "
        "public.",
        display="rate",
        severity="images",
        order=141,
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        return points_to(claimed, labels, gallery, len(gallery.people), whole=True)

    def guess(self, gallery: Gallery) -> float | None:
        return 1 / int(gallery.known.sum())

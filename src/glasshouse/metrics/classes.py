"""Metrics of claimed images of private classes: which class's mean image is each most similar to?

All compare by SSIM on the scored rows: for masked domains only the hidden half, or the whole picture where
the name says so. ``truth`` contains the labels of the claimed images; the unit is a private class.

Source: Takahashi et al. 2023, "Breaching FedMD", CVPR, section 4.1 (attack accuracy). Where we differ: the
authors' code computes SSIM with a data range twice as wide as its images; here the declared range is used.

Shape letters: B claimed images, J classes, L private ones.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import Undefined
from glasshouse.metrics.base import ClaimKind, Hits, ScoreContext, Scores, Wording, rate_wording
from glasshouse.metrics.gallery import Gallery
from glasshouse.registry import Card

SOURCE = "Takahashi et al. 2023, Breaching FedMD, CVPR"


def gallery_of(context: ScoreContext, name: str) -> Gallery:
    """The gallery of the context.

    Raises:
        Undefined: there is none.
    """
    if context.gallery is None:
        raise Undefined(
            f"metric '{name}'",
            needs="private classes with mean images",
            got="none",
            fix="set data.domains, or score reconstructions with ssim or identification",
        )
    return context.gallery


class ClassMetric(Hits):
    """Base class of metrics about the image of each private class."""

    claim: ClassVar[ClaimKind] = "class_representatives"

    @abstractmethod
    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        """One number per claimed image, for the class given by ``labels``."""

    def guess(self, gallery: Gallery) -> float | None:
        """Expected score of a guess; None: it depends on the means, so null images are scored instead."""
        del gallery
        return None

    def chance(self, context: ScoreContext) -> float | None:
        """As :meth:`guess`; None without a gallery."""
        return None if context.gallery is None else self.guess(context.gallery)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """One number per private class.

        Raises:
            Undefined: the scenario has no private classes.
        """
        gallery = gallery_of(context, type(self).__name__)
        return np.asarray(self.measure(claimed, truth, gallery).double().numpy())


class ClassSimilarity(ClassMetric):
    """Base class of metrics with a real number per class, rather than a hit or a miss."""

    counts: ClassVar[bool] = False


def _own(table: Tensor, labels: Tensor) -> Tensor:
    return table.gather(1, labels[:, None]).squeeze(1)


def sides(
    claimed: Tensor, labels: Tensor, gallery: Gallery, *, whole: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """SSIM with the own private mean, the most similar other candidate of the paper, the own public mean."""
    table, classes, targets = gallery.alike(claimed, whole=whole), len(gallery.people), gallery.targets
    private, public = table[:, :targets], table[:, classes:]
    others = torch.cat([side.scatter(1, labels[:, None], -np.inf) for side in (private, public)], 1)
    return _own(private, labels), others.amax(1), _own(public, labels)


@final
@dataclass(frozen=True, kw_only=True)
class AttackAccuracy(ClassMetric):
    """The paper's success criterion: strictly nearer to its own private mean than to any other mean.

    Args:
        whole: compare whole pictures, not only the scored rows.
    """

    card = Card(
        summary="share of private classes whose image is nearest to their own private mean", source=SOURCE
    )
    wording = rate_wording(
        label="attack accuracy",
        sentence="rebuilt pictures recognised as their target in {} of cases",
        explanation="How often the picture of a private class is nearest to that class's own private "
        "mean: higher is worse; guessing is right for 1 in as many as there are candidates.",
        severity="images",
        order=60,
        chance="1/(L + J), drawn among the candidates",
    )

    whole: bool = False

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        own, others, public = sides(claimed, labels, gallery, whole=self.whole)
        return own > torch.maximum(others, public)


@final
@dataclass(frozen=True, kw_only=True)
class TooClose(ClassMetric):
    """Strictly nearer to its own *public* mean than to any other: the right person, but nothing private."""

    card = Card(
        summary="share of private classes whose image is nearest to their own public mean", source=SOURCE
    )
    wording = rate_wording(
        label="own public mean shown",
        sentence="showed the own public mean in {} of cases",
        explanation="How often the picture is nearest to the class's public mean: the right person, but "
        "nothing that was private. Higher means that less private content came out.",
        order=320,
        private=False,
        chance="as for attack_accuracy",
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        own, others, public = sides(claimed, labels, gallery)
        return public > torch.maximum(others, own)


@final
@dataclass(frozen=True, kw_only=True)
class IdentityMatch(ClassMetric):
    """Strictly nearest to its own private or its own public mean: the right person in either domain."""

    card = Card(
        summary="share of private classes whose image is nearest to one of their own means", source=SOURCE
    )
    wording = rate_wording(
        label="identity match",
        sentence="rebuilt pictures of the right identity in {} of cases",
        explanation="How often the picture is nearest to one of the right person's own means, private or "
        "public: higher is worse; guessing is right for 2 in as many as there are candidates.",
        severity="images",
        order=120,
        chance="2/(L + J)",
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        own, others, public = sides(claimed, labels, gallery)
        return torch.maximum(own, public) > others


def points_to(
    claimed: Tensor, labels: Tensor, gallery: Gallery, candidates: int, *, whole: bool = False
) -> Tensor:
    """Whether the own private-domain mean is strictly nearer than those of the other first ``candidates``."""
    table = gallery.alike(claimed, whole=whole)[:, : len(gallery.people)].masked_fill(~gallery.known, -np.inf)
    table = table[:, :candidates]
    others = table.scatter(1, labels[:, None], -np.inf).amax(1)
    return _own(table, labels) > others


@final
@dataclass(frozen=True, kw_only=True)
class ClassIdentification(ClassMetric):
    """Nearest to its own among the private-domain means of all people; public means are not candidates.

    Args:
        whole: compare whole pictures, not only the scored rows.
    """

    card = Card(summary="share of private classes whose image points to them among all people")
    wording = rate_wording(
        label="identified among all people",
        sentence="rebuilt pictures that point to the right person in {} of cases",
        explanation="How often the picture points to the right one among all people of the data set: "
        "higher is worse; guessing is right for 1 in as many as there are people.",
        severity="images",
        order=140,
        chance="1/J over the people with private-domain images",
    )

    whole: bool = False

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        return points_to(claimed, labels, gallery, len(gallery.people), whole=self.whole)

    def guess(self, gallery: Gallery) -> float | None:
        return 1 / int(gallery.known.sum())


@final
@dataclass(frozen=True, kw_only=True)
class TargetIdentification(ClassMetric):
    """Nearest to its own among the private means only: are private classes told apart?"""

    card = Card(summary="share of private classes whose image points to them among the private classes")
    wording = rate_wording(
        label="identified among the private classes",
        sentence="rebuilt pictures that point to the right private class in {} of cases",
        explanation="How often the picture points to the right one of the private classes: higher is "
        "worse; guessing is right for 1 in as many as there are private classes.",
        severity="images",
        order=150,
        chance="1/L",
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        return points_to(claimed, labels, gallery, gallery.targets)

    def guess(self, gallery: Gallery) -> float | None:
        return 1 / gallery.targets


@final
@dataclass(frozen=True, kw_only=True)
class SsimPrivate(ClassSimilarity):
    """SSIM with the own private mean, on the scored rows."""

    card = Card(summary="SSIM of the image of a private class with the class's private mean", source=SOURCE)
    wording = Wording(
        label="SSIM with the private mean",
        sentence="rebuilt private classes with SSIM {} (likeness; 1 is a perfect copy)",
        explanation="Similarity of the picture and the class's private mean: 1 is a perfect copy, so "
        "higher is worse. What guessing reaches depends on the images.",
        severity="images",
        order=160,
        range=(-1.0, 1.0),
        chance="that of the prior image",
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        return sides(claimed, labels, gallery)[0]


@final
@dataclass(frozen=True, kw_only=True)
class SsimPublic(ClassSimilarity):
    """SSIM with the own public mean, on the scored rows."""

    card = Card(summary="SSIM of the image of a private class with the class's public mean", source=SOURCE)
    wording = Wording(
        label="SSIM with the public mean",
        sentence="rebuilt public means with SSIM {}",
        explanation="Similarity of the picture and the class's public mean: 1 is a perfect copy. It shows"
        " what was known before, and is no leak by itself.",
        order=330,
        private=False,
        range=(-1.0, 1.0),
        chance="that of the prior image",
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        return sides(claimed, labels, gallery)[2]


@final
@dataclass(frozen=True, kw_only=True)
class SsimGap(ClassSimilarity):
    """SSIM with the own private mean minus SSIM with the own public mean, on the scored rows."""

    card = Card(summary="how much nearer to its private than to its public mean an image is", source=SOURCE)
    wording = Wording(
        label="SSIM gap",
        sentence="rebuilt pictures nearer to the private than the public: {}",
        explanation="By how much the picture is more like the class's private than its public mean: above"
        " 0 the private one is nearer, so higher is worse.",
        severity="images",
        order=130,
        chance="that of the prior image",
        range=(-2.0, 2.0),
    )

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        own, _, public = sides(claimed, labels, gallery)
        return own - public

"""Numbers about claimed images of private classes: whose mean image are they most like?

All compare by SSIM on the rows that count: for masked domains the hidden half alone. ``truth`` is the labels
of the claimed images; the unit is a private class.

Source: Takahashi et al. 2023, "Breaching FedMD", CVPR, section 4.1 (attack accuracy). Where we differ: the
authors' code takes SSIM with a data range twice as wide as its images; here the range is the declared one.

Shape letters: B claimed images, J classes, L private ones.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import Undefined
from glasshouse.metrics.base import ClaimKind, Reads, ScoreContext
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


def _own(table: Tensor, labels: Tensor) -> Tensor:
    return table.gather(1, labels[:, None]).squeeze(1)


def _sides(claimed: Tensor, labels: Tensor, gallery: Gallery) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """SSIM with: the own private mean; the best other candidate of the paper; the own public mean; all."""
    table, classes, targets = gallery.alike(claimed), len(gallery.people), gallery.targets
    private, public = table[:, :targets], table[:, classes:]
    mine, known = _own(private, labels), _own(public, labels)
    others = torch.cat(
        [
            private.scatter(1, labels[:, None], -np.inf),
            public.scatter(1, labels[:, None], -np.inf),
        ],
        1,
    ).amax(1)
    return mine, others, known, table


@final
@dataclass(frozen=True, kw_only=True)
class AttackAccuracy:
    """The paper's success: nearer to its own private mean than to any other private or public mean."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose image is nearest to their own private mean",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "1/(L + J) for an image drawn among the candidates"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    counts: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """None: what a guess gets depends on the means, so null images are scored instead."""
        del context
        return None

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 where the own private mean is strictly the nearest."""
        mine, others, known, _ = _sides(claimed, truth, gallery_of(context, "attack_accuracy"))
        return np.asarray((mine > torch.maximum(others, known)).double().numpy())


@final
@dataclass(frozen=True, kw_only=True)
class TooClose:
    """Nearer to its own *public* mean than to any other: the right person, but nothing private."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose image is nearest to their own public mean",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "as for attack_accuracy"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    counts: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """None, as for attack accuracy."""
        del context
        return None

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 where the own public mean is strictly the nearest."""
        mine, others, known, _ = _sides(claimed, truth, gallery_of(context, "too_close"))
        return np.asarray((known > torch.maximum(others, mine)).double().numpy())


@final
@dataclass(frozen=True, kw_only=True)
class IdentityMatch:
    """Nearest to its own private or its own public mean: the right person in either domain."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose image is nearest to one of their own means",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "2/(L + J)"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    counts: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """None, as for attack accuracy."""
        del context
        return None

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 where one of the own means is strictly nearer than every other class's."""
        mine, others, known, _ = _sides(claimed, truth, gallery_of(context, "identity_match"))
        return np.asarray((torch.maximum(mine, known) > others).double().numpy())


def _points(claimed: Tensor, labels: Tensor, gallery: Gallery, candidates: int) -> NDArray[np.float64]:
    """1 where the own private-domain mean is strictly nearer than those of the other first candidates."""
    table = gallery.alike(claimed)[:, : len(gallery.people)].masked_fill(~gallery.known, -np.inf)
    table = table[:, :candidates]
    others = table.scatter(1, labels[:, None], -np.inf).amax(1)
    return np.asarray((_own(table, labels) > others).double().numpy())


@final
@dataclass(frozen=True, kw_only=True)
class ClassIdentification:
    """Nearest, among the private-domain means of all people, to its own: public means take no part."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose image points to them among all people",
        source="",
        details={"direction": "up is worse", "chance": "1/J over the people with private-domain images"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    counts: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """1 over the number of people."""
        return None if context.gallery is None else 1 / int(context.gallery.known.sum())

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 where the own mean is strictly the nearest."""
        gallery = gallery_of(context, "class_identification")
        return _points(claimed, truth, gallery, len(gallery.people))


@final
@dataclass(frozen=True, kw_only=True)
class TargetIdentification:
    """Nearest to its own among the private means alone: does it tell one private class from another?"""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose image points to them among the private classes",
        source="",
        details={"direction": "up is worse", "chance": "1/L"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    counts: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """1 over the number of private classes."""
        return None if context.gallery is None else 1 / context.gallery.targets

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 where the own mean is strictly the nearest."""
        gallery = gallery_of(context, "target_identification")
        return _points(claimed, truth, gallery, gallery.targets)


@final
@dataclass(frozen=True, kw_only=True)
class SsimPrivate:
    """SSIM with the own private mean."""

    card: ClassVar[Card] = Card(
        summary="SSIM of the image of a private class with the class's private mean",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "that of the prior image"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = ""
    counts: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """None, as for attack accuracy."""
        del context
        return None

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """SSIM on the rows that count."""
        mine, _, _, _ = _sides(claimed, truth, gallery_of(context, "ssim_private"))
        return np.asarray(mine.numpy())


@final
@dataclass(frozen=True, kw_only=True)
class SsimPublic:
    """SSIM with the own public mean."""

    card: ClassVar[Card] = Card(
        summary="SSIM of the image of a private class with the class's public mean",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "that of the prior image"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = ""
    counts: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """None, as for attack accuracy."""
        del context
        return None

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """SSIM on the rows that count."""
        _, _, known, _ = _sides(claimed, truth, gallery_of(context, "ssim_public"))
        return np.asarray(known.numpy())


@final
@dataclass(frozen=True, kw_only=True)
class SsimGap:
    """SSIM with the own private mean minus SSIM with the own public mean."""

    card: ClassVar[Card] = Card(
        summary="how much nearer to its private than to its public mean an image is",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "that of the prior image"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "inputs"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = ""
    counts: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """None, as for attack accuracy."""
        del context
        return None

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """The difference on the rows that count."""
        mine, _, known, _ = _sides(claimed, truth, gallery_of(context, "ssim_gap"))
        return np.asarray((mine - known).numpy())


@final
@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whether the client named for a private class is the one that holds it."""

    card: ClassVar[Card] = Card(
        summary="share of private classes whose owner the attack names",
        source=SOURCE,
        details={"direction": "up is worse", "chance": "1/K over the clients"},
    )
    claim: ClassVar[ClaimKind] = "class_representatives"
    reads: ClassVar[Reads] = "source"
    higher_leaks: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    counts: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def chance(self, context: ScoreContext) -> float | None:
        """1 over the number of clients."""
        return None if context.gallery is None else 1 / (int(context.gallery.owners.max()) + 1)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 where the named client (-1: none) holds the class."""
        owners = gallery_of(context, "owner").owners
        return np.asarray((claimed == owners[truth]).double().numpy())

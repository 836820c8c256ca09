"""Attribution metrics: the owner and label of recovered examples, and the owner of a private class.

The first two are scored on recovered examples only (paired by least error, each once, above ``THRESHOLD``
dB): naming the owner of an image that was not recovered is not a leak. Shape letters: B private examples of
a claim.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import BadValue, NothingClaimed, Undefined
from glasshouse.images import psnr
from glasshouse.metrics.base import Hits, ScoreContext, Scores, rate_wording
from glasshouse.metrics.classes import SOURCE, ClassMetric
from glasshouse.metrics.gallery import Gallery
from glasshouse.metrics.match import UNMATCHED, assign, mse_table, take
from glasshouse.registry import Card

THRESHOLD = 18.0
"""PSNR above which an example counts as recovered, in dB; as in ``rate_blind``."""
UNSAID, NOT_RECOVERED = -1, -2


def said_of_recovered(
    images: Tensor, guesses: Tensor | None, originals: Tensor, *, context: ScoreContext
) -> Tensor:
    """The guess for each original, (B,) int64, with ``UNSAID`` and ``NOT_RECOVERED`` where there is none.

    Args:
        images: (R, C, H, W) reconstructions.
        guesses: (R,), one per reconstruction, or None.
        originals: (B, C, H, W).
        context: declares the image range.
    """
    pairing = assign(mse_table(originals, images))
    near = take(images.double(), pairing, grey=context.grey)
    quality = psnr(near, originals.double(), data_range=context.data_range)
    out = originals.new_full((len(originals),), NOT_RECOVERED).long()
    for i, j in enumerate(pairing):
        if j != UNMATCHED and quality[i] > THRESHOLD:
            out[i] = UNSAID if guesses is None else int(guesses[j])
    return out


@final
@dataclass(frozen=True, kw_only=True)
class Attribution(Hits):
    """Share of recovered examples whose owner was named. Up is worse; chance is 1 / clients of the round.

    An attack that names no clients scores chance by definition ("privacy by shuffling").
    """

    card = Card(summary="share of recovered examples that are attributed to the right client")
    wording = rate_wording(
        label="attribution",
        sentence="named the right client for {} of what it recovered",
        explanation="How often the attack named the client behind an image that it had rebuilt: higher is"
        " worse; guessing is right for 1 in as many as there are clients.",
        severity="other",
        order=410,
        chance="1 / clients of the round",
    )
    reads = "source"
    against = "owners"
    of_recovered = True

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        del context
        return _share("attribution", claimed, truth, chance=1 / len(torch.unique(truth)))


@final
@dataclass(frozen=True, kw_only=True)
class LeakedLabels(Hits):
    """Share of recovered examples whose label is right. Up is worse; chance is 1 / K for balanced classes."""

    card = Card(summary="share of recovered examples that come with their right label")
    wording = rate_wording(
        label="labels of recovered examples",
        sentence="read the right label of {} of what it recovered",
        explanation="How often the attack knew the label of an image that it had rebuilt: higher is "
        "worse; guessing is right for 1 in as many as there are classes.",
        severity="labels",
        order=405,
        chance="1 / classes",
    )
    reads = "labels"
    against = "labels"
    of_recovered = True

    def chance(self, context: ScoreContext) -> float | None:
        return None if context.classes is None else 1 / context.classes

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        if context.classes is None:
            raise Undefined(
                "metric 'leaked_labels'",
                needs="the number of classes",
                got="none in the score context",
                fix="let the audit provide it",
            )
        return _share("leaked_labels", claimed, truth, chance=1 / context.classes)


def _share(name: str, claimed: Tensor, truth: Tensor, *, chance: float) -> Scores:
    """Per recovered example: 1, 0, or ``chance`` where no guess was made.

    Raises:
        BadValue: the number of claims differs from the number of examples.
        NothingClaimed: nothing was recovered.
    """
    if claimed.shape != truth.shape or claimed.ndim != 1:
        raise BadValue(
            f"metric '{name}'",
            needs="one claim (B,) per example (B,)",
            got=f"{tuple(claimed.shape)} and {tuple(truth.shape)}",
            fix="pair them first: said_of_recovered",
        )
    recovered = claimed != NOT_RECOVERED
    if not recovered.any():
        raise NothingClaimed(
            f"metric '{name}'",
            needs=f"at least one example recovered at PSNR > {THRESHOLD:g} dB",
            got=f"none of {len(truth)}",
            fix="read rate_blind first; there is nothing to attribute",
        )
    guess, true = claimed[recovered], truth[recovered]
    right = (guess == true).double()
    right[guess == UNSAID] = chance
    return np.asarray(right.numpy(), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class Owner(ClassMetric):
    """Whether the client claimed for a private class (-1: none) is its owner."""

    card = Card(summary="share of private classes whose owner the attack names", source=SOURCE)
    wording = rate_wording(
        label="owner named",
        sentence="named the owner of {} of the classes",
        explanation="How often the attack named the client that holds a private class: higher is worse; "
        "guessing is right for 1 in as many as there are clients.",
        severity="other",
        order=310,
        chance="1/K over the clients",
    )
    reads = "source"

    def measure(self, claimed: Tensor, labels: Tensor, gallery: Gallery) -> Tensor:
        return claimed == gallery.owners[labels]

    def guess(self, gallery: Gallery) -> float | None:
        return 1 / (int(gallery.owners.max()) + 1)

"""Metrics beyond pixels: which defence was on, and whether a classifier sees the same class in an image.

Shape letters: B private examples, R reconstructions, C channels, H and W pixels.
"""

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from glasshouse.errors import BadValue, Undefined
from glasshouse.limits import Fix, check_ranges
from glasshouse.metrics.base import Hits, ScoreContext, Scores, rate_wording
from glasshouse.metrics.reconstruction import pair_images
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class DefenseNamed(Hits):
    """1 where the attack named exactly the defences that were on, in their order; else 0.

    Args:
        choices: number of options for an uninformed guess; 8: no defence, or one of seven registered ones.
    """

    card = Card(summary="share of the updates whose defence the attack named")
    wording = rate_wording(
        label="defence named",
        sentence="named the defence behind {} of the updates",
        explanation="How often the attack recognised which defence was on. Higher is better for the "
        "attack, but a defence's name is not private data; guessing names 1 in as many as "
        "there are choices.",
        order=300,
        private=False,
        chance="1 / choices",
    )
    claim = "defense"
    reads = "names"

    choices: Annotated[int, Ge(2), Fix("8 is the default")] = 8

    def __post_init__(self) -> None:
        check_ranges(self, "metric 'defense_named'")

    def chance(self, context: ScoreContext) -> float | None:
        del context
        return 1 / self.choices

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """1 per correct guess; both arguments are ids of names, (n,), -1 for an unregistered name.

        Raises:
            BadValue: the two differ in length.

        Examples:
            >>> DefenseNamed().score(torch.tensor([3, -1]), torch.tensor([3, 3]), context=ScoreContext())
            array([1., 0.])
        """
        del context
        if claimed.shape != truth.shape or claimed.ndim != 1:
            raise BadValue(
                "metric 'defense_named'",
                needs="one guess per update",
                got=f"{tuple(claimed.shape)} and {tuple(truth.shape)}",
                fix="score every update once",
            )
        return np.asarray((claimed == truth).double().numpy(), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class AttributeAgreement(Hits):
    """1 where a public classifier sees the same class in the reconstruction as in its original; else 0.

    The classifier is the perceptual stand-in, trained on auxiliary images only; the class that it assigns to
    an unseen face is an attribute (which of the known people it resembles), not an identity. A mean image
    is assigned to some class too, so read the gain over the null baseline.

    Source: after Li et al. 2022 (GGL), arXiv:2203.15696, who compare predicted attributes of faces.
    """

    card = Card(
        summary="share of reconstructions that a public classifier gives the same class as the original",
        source="after Li et al. 2022, arXiv:2203.15696",
    )
    wording = rate_wording(
        label="attribute agreement",
        sentence="rebuilt images of which {} look alike to a classifier",
        explanation="How often a public classifier puts the rebuilt image and its original into the same "
        "class: higher is worse. What guessing reaches depends on the images.",
        severity="images",
        order=110,
        chance="see the null baseline",
    )
    requires = frozenset({"stand_in"})

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """(B,) of 0 and 1, for claimed (R, C, H, W) and true (B, C, H, W) images in [0, 1].

        Raises:
            Undefined: the context holds no classifier.
        """
        if context.classify is None:
            raise Undefined(
                "metric 'attribute_agreement'",
                needs="a public classifier, as 'classify' of the score context",
                got="none",
                fix="set data.auxiliary, on which it is trained, or drop the metric",
            )
        left, right = pair_images("attribute_agreement", claimed, truth, context)
        with torch.no_grad():
            same = context.classify(left.float()) == context.classify(right.float())
        return np.asarray(same.double().numpy(), dtype=np.float64)

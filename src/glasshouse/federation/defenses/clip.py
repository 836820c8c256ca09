"""Scale an update into a ball: L2 norm over all tensors together.

Source: McMahan et al. 2018, arXiv:1710.06963, section 2 (flat clipping). Li et al. 2022 write
clipping per layer (arXiv:2203.15696, section 3.3); their code clips globally, as here.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism, require
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import norm, scale_tensors
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class Clip:
    """The update times min(1, norm / its L2 norm over all tensors).

    Args:
        norm: radius, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(
        summary="limits the size (L2 norm) of what is sent, all tensors together",
        source="McMahan et al. 2018, arXiv:1710.06963",
    )
    place: ClassVar[Literal["update"]] = "update"

    norm: float

    def __post_init__(self) -> None:
        require("clip", 0 < self.norm < math.inf, needs="a finite norm > 0", fix="try 4", norm=self.norm)

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "clip")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A scaled copy; unchanged where it is inside the ball."""
        del rng  # deterministic
        accept(update, name="clip", kinds=CHANGES)
        size = norm(update.tensors)
        if size <= self.norm:
            return update
        return dataclasses.replace(update, tensors=scale_tensors(update.tensors, self.norm / size))

"""Scale each tensor of an update into a ball of its own.

Source: McMahan et al. 2018, arXiv:1710.06963, section 2 (per-layer clipping), with one radius for all
tensors; weight and bias of a layer are two tensors here, as in Li et al. 2022
(arXiv:2203.15696, section 3.3).
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism, require
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class ClipLayers:
    """Each tensor times min(1, norm / its own L2 norm).

    Args:
        norm: radius for one tensor, in units of the update; > 0. Over T tensors the update's norm is at
            most √T·norm.
    """

    card: ClassVar[Card] = Card(
        summary="clip the L2 norm of each tensor", source="McMahan et al. 2018, arXiv:1710.06963"
    )
    place: ClassVar[Literal["update"]] = "update"

    norm: float

    def __post_init__(self) -> None:
        require(
            "clip_layers", 0 < self.norm < math.inf, needs="a finite norm > 0", fix="try 1", norm=self.norm
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "clip_layers")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A copy in which every tensor is inside its ball."""
        del rng  # deterministic
        accept(update, name="clip_layers", kinds=CHANGES)
        return dataclasses.replace(update, tensors=map_tensors(update.tensors, self._clipped))

    def _clipped(self, t: Tensor) -> Tensor:
        size = float(t.double().norm())
        return t if size <= self.norm else t * (self.norm / size)

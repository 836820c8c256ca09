"""Percentile privacy: send only the largest changes of the whole update, clamped.

Source: Shokri & Shmatikov 2015, "Privacy-Preserving Deep Learning", CCS, section 5 (share the largest
changes); the rule as NVIDIA FLARE's filter ``PercentilePrivacy`` has it: one cutoff over all tensors
together, both settings per local step. Where we differ: a percentile or bound out of range is refused, where
the filter silently does nothing. A tensor with a single number and no dimension is sent as it is, as there.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from torch import Tensor

from glasshouse.federation.defenses.base import CHANGES, accept, describe_mechanism, require
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class Percentile:
    """Zero every entry below a percentile of all magnitudes; clamp the others.

    Args:
        percentile: of the magnitudes of all entries together, in [0, 100); what lies below becomes zero.
        bound: largest magnitude that leaves the client, per local step, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(
        summary="sends only the largest changes of the whole update, clamped (percentile privacy)",
        source="Shokri & Shmatikov 2015, CCS",
    )
    place: ClassVar[Literal["update"]] = "update"

    percentile: float = 10.0
    bound: float = 0.01

    def __post_init__(self) -> None:
        require(
            "percentile",
            0 <= self.percentile < 100 and 0 < self.bound < math.inf,
            needs="percentile in [0, 100), a finite bound > 0",
            fix="try percentile = 90, bound = 0.01",
            percentile=self.percentile,
            bound=self.bound,
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(self, "percentile")

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A sparse, clamped copy."""
        del rng  # deterministic
        accept(update, name="percentile", kinds=CHANGES)
        magnitudes = np.concatenate([t.abs().flatten().cpu().numpy() for t in update.tensors.values()])
        cutoff, bound = float(np.percentile(magnitudes, self.percentile)), self.bound * update.steps

        def largest(t: Tensor) -> Tensor:
            return t.masked_fill(t.abs() < cutoff, 0.0).clamp(-bound, bound) if t.ndim else t

        return dataclasses.replace(update, tensors=map_tensors(update.tensors, largest))

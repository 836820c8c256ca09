"""Percentile privacy: send only the largest changes of the whole update, clamped.

Source: Shokri & Shmatikov 2015, "Privacy-Preserving Deep Learning", CCS, section 5 (share the largest
changes); the rule is that of NVIDIA FLARE's filter ``PercentilePrivacy``: one cutoff over all tensors
together, both settings per local step. Where we differ: a percentile or bound out of range raises, where
the filter silently does nothing. A zero-dimensional tensor is sent unchanged, as in the filter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from annotated_types import Ge, Lt
from torch import Tensor

from glasshouse.federation.defenses.base import RewritingDefense
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class Percentile(RewritingDefense):
    """Zero every entry below a percentile of all magnitudes; clamp the others.

    Args:
        percentile: of the magnitudes of all entries together, in [0, 100); entries below it become zero.
        bound: largest magnitude that leaves the client, per local step, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(
        summary="sends only the largest changes of the whole update, clamped (percentile privacy)",
        source="Shokri & Shmatikov 2015, CCS",
    )
    name: ClassVar[str] = "percentile"
    shown_by: ClassVar[str] = "total_zeros"

    percentile: Annotated[float, Ge(0), Lt(100), Fix("try 90")] = 10.0
    bound: Annotated[Positive, Fix("try 0.01")] = 0.01

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del terms
        share, bound = float(parameters["percentile"]) / 100, float(parameters["bound"]) * update.steps
        return (
            Mark(kind="total_zeros", setting="percentile / 100", value=share),
            Mark(kind="largest", setting="bound · steps", value=bound),
        )

    def rewrite(self, update: Update, _: Rng, /) -> Mapping[str, Tensor]:
        """The sparse, clamped tensors."""
        magnitudes = np.concatenate([t.abs().flatten().cpu().numpy() for t in update.tensors.values()])
        cutoff, bound = float(np.percentile(magnitudes, self.percentile)), self.bound * update.steps

        def largest(t: Tensor) -> Tensor:
            return t.masked_fill(t.abs() < cutoff, 0.0).clamp(-bound, bound) if t.ndim else t

        return map_tensors(update.tensors, largest)

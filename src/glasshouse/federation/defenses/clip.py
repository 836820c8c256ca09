"""Clip the L2 norm of an update over all tensors together.

Source: McMahan et al. 2018, arXiv:1710.06963, section 2 (flat clipping). Li et al. 2022 describe clipping per
layer (arXiv:2203.15696, section 3.3); their code clips globally, as here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import RewritingDefense
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import norm, scale_tensors
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class Clip(RewritingDefense):
    """The update times min(1, norm / its L2 norm over all tensors).

    Args:
        norm: radius, in units of the update; > 0.
    """

    card: ClassVar[Card] = Card(
        summary="limits the size (L2 norm) of what is sent, all tensors together",
        source="McMahan et al. 2018, arXiv:1710.06963",
    )
    name: ClassVar[str] = "clip"
    shown_by: ClassVar[str] = "norm"

    norm: Annotated[Positive, Fix("try 4")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (Mark(kind="norm", setting="norm", value=float(parameters["norm"])),)

    def rewrite(self, update: Update, _: Rng, /) -> Mapping[str, Tensor]:
        """The scaled tensors; unchanged if the norm is within the radius."""
        size = norm(update.tensors)
        return update.tensors if size <= self.norm else scale_tensors(update.tensors, self.norm / size)

"""Clip the L2 norm of each tensor of an update.

Source: McMahan et al. 2018, arXiv:1710.06963, section 2 (per-layer clipping), with one radius for all
tensors; weight and bias of a layer are two tensors here, as in Li et al. 2022
(arXiv:2203.15696, section 3.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import Tensor

from glasshouse.federation.defenses.base import TensorDefense
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class ClipLayers(TensorDefense):
    """Each tensor times min(1, norm / its own L2 norm).

    Args:
        norm: radius for one tensor, in units of the update; > 0. Over T tensors the update's norm is at
            most √T·norm.
    """

    card: ClassVar[Card] = Card(
        summary="clip the L2 norm of each tensor", source="McMahan et al. 2018, arXiv:1710.06963"
    )
    name: ClassVar[str] = "clip_layers"
    shown_by: ClassVar[str] = "tensor_norm"

    norm: Annotated[Positive, Fix("try 1")]

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        return (Mark(kind="tensor_norm", setting="norm", value=float(parameters["norm"])),)

    def change(self, tensor: Tensor, _: Rng, /) -> Tensor:
        """The tensor, scaled if its norm is too large."""
        size = float(tensor.double().norm())
        return tensor if size <= self.norm else tensor * (self.norm / size)

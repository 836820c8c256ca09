"""Measurement of each layer's behaviour on a client's own examples."""

import math
from collections.abc import Collection
from dataclasses import astuple, dataclass
from typing import final

from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.measures import (
    alike,
    concentration,
    isolated,
    narrowness,
    paired,
)
from glasshouse.guard.behaviour.trace import LayerTrace, trace

AT_A_TIME = 64
"""Examples per pass where there are many."""


@final
@dataclass(frozen=True, kw_only=True)
class LayerBehaviour:
    """Measures of one layer on a batch.

    Attributes:
        isolated: share of the examples that are isolated in a row of its gradient.
        paired: share of the examples that are isolated in a difference of two rows.
        concentration: of its gradient on few examples, from 0 (all contribute equally) to 1.
        narrowness: the same for the gradient of one unit, on average.
        alike: share of its units that follow the same direction of the examples as another unit.
        units: number of its units.
    """

    isolated: float
    paired: float
    concentration: float
    narrowness: float
    alike: float
    units: int

    @property
    def used(self) -> float:
        """Effective share of the examples in its gradient."""
        return 1 - self.concentration

    @property
    def is_reached(self) -> bool:
        """Whether any example contributes to its gradient; else none of these examples can be read there."""
        return self.concentration < 1


Behaviour = dict[str, LayerBehaviour]
"""By name of the layer."""


def observe(model: nn.Module, inputs: Tensor, labels: Tensor) -> Behaviour:
    """Measure each layer of ``model`` on a batch, with logit gradients of equal norm for every example.

    Raises:
        BadValue: as :func:`~glasshouse.guard.behaviour.trace.trace`, or norms overflow float64.
    """
    observed = {
        one.name: LayerBehaviour(
            isolated=float(isolated(one).double().mean()),
            paired=float(paired(one).double().mean()),
            concentration=concentration(one),
            narrowness=narrowness(one),
            alike=alike(one),
            units=len(one.layer.weight),
        )
        for one in trace(model, inputs, labels, balanced=True)
    }
    for name, seen in observed.items():
        if not all(map(math.isfinite, astuple(seen))):
            raise BadValue(
                "inspection of a model's behaviour",
                needs="contributions of finite length to every layer's update",
                got=f"infinite ones at {name or 'its only layer'}",
                fix="do not train on a model that overflows",
            )
    return observed


def concentrations(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, layers: Collection[str]
) -> dict[str, float]:
    """Concentration of some layers on many examples, passed in parts of about ``AT_A_TIME``.

    Raises:
        BadValue: as :func:`~glasshouse.guard.behaviour.trace.trace`.
    """
    parts = math.ceil(len(labels) / AT_A_TIME)
    tried: dict[str, list[LayerTrace]] = {}
    for some, of in zip(inputs.tensor_split(parts), labels.tensor_split(parts), strict=True):
        for name, one in {one.name: one for one in trace(model, some, of, balanced=True)}.items():
            if name in layers:
                tried.setdefault(name, []).append(one)
    return {name: concentration(*traces) for name, traces in tried.items()}

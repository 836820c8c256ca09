"""The server's view under secure aggregation: the weighted sum, the sum of weights, and who took part.

Only the view is simulated, not the cryptography: a correct protocol reveals exactly this. It includes the
quantisation of the masked sum (Bonawitz et al. 2017, arXiv:1611.04482; as deployed, each value is clipped,
scaled to integers and rounded stochastically), applied per client before the sum, as in the protocol.
"""

from dataclasses import dataclass, field
from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.pooled import Joint
from glasshouse.limits import Fix, Positive, check_value
from glasshouse.rng import Rng
from glasshouse.wire import Aggregate, Kind, Update


@final
@dataclass(kw_only=True)
class SecureSum:
    """A running sum, which needs only one client's update in memory at a time.

    Args:
        round: number of the round.
        selected: ids of the cohort.
        bits: quantise each client's contribution to this many bits; 0: no quantisation.
        bound: values are clipped to [-bound, bound] before quantising, in units of the update.
    """

    round: int
    selected: tuple[int, ...]
    bits: int = 0
    bound: float = 1.0
    answered: list[int] = field(default_factory=list, init=False)
    _tensors: dict[str, Tensor] = field(default_factory=dict)
    _buffers: dict[str, Tensor] = field(default_factory=dict)
    _weight: float = 0.0
    _examples: int = 0
    _kind: Kind = "gradient"
    _steps: int = 0

    def add(self, update: Update, *, weight: float, rng: Rng) -> None:
        """Add one client's update to the sum."""
        tensors = dict(update.tensors)
        if self.bits:
            tensors = quantize_tensors(tensors, bits=self.bits, bound=self.bound, rng=rng)
        for total, part in ((self._tensors, tensors), (self._buffers, update.buffers)):
            for name, t in part.items():
                total[name] = total.get(name, 0.0) + t.double() * weight
        self._weight += weight
        self._examples += update.examples
        self.answered.append(update.client)
        self._kind, self._steps = update.kind, update.steps

    def add_joint(self, joint: Joint) -> None:
        """Add several clients' gradients, which are summed already."""
        for name, t in joint.tensors.items():
            self._tensors[name] = self._tensors.get(name, 0.0) + t.double()
        self._weight += sum(joint.weights)
        self._examples += joint.examples
        self.answered += joint.clients
        self._kind, self._steps = "gradient", 1

    def close(self) -> Aggregate:
        """What the server sees.

        Raises:
            BadValue: no client answered.
        """
        if not self.answered:
            raise BadValue(
                f"secure sum of round {self.round}",
                needs="at least one answer",
                got="none",
                fix="lower federation.dropout",
            )
        return Aggregate(
            round=self.round,
            kind=self._kind,
            tensors=self._tensors,
            weight=self._weight,
            selected=self.selected,
            dropped=tuple(c for c in self.selected if c not in self.answered),
            examples=self._examples,
            steps=self._steps,
            buffers=self._buffers,
        )


def quantize_tensors(tensors: dict[str, Tensor], *, bits: int, bound: float, rng: Rng) -> dict[str, Tensor]:
    """Clip to [-bound, bound] and round stochastically to 2**bits - 1 steps; unbiased inside the bound.

    Raises:
        BadValue: bits outside 2..32, or bound not positive.
    """
    subject, correct = "quantised secure sum", Fix("correct federation.options")
    check_value(subject, "bits", bits, Annotated[int, Ge(2), Le(32), correct])
    check_value(subject, "bound", bound, Annotated[Positive, correct])
    step = 2 * bound / (2**bits - 1)
    out = {}
    for name, t in tensors.items():
        scaled = (t.double().clamp(-bound, bound) + bound) / step
        floor = scaled.floor()
        up = torch.rand(t.shape, generator=rng.child(name).torch(), dtype=torch.float64) < scaled - floor
        out[name] = (floor + up) * step - bound
    return out

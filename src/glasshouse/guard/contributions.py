"""What each of a client's examples added to the update of one linear layer.

Shape letters: m rows of the weight, n its columns, B examples.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.trace import LayerTrace

ROUNDED: Final = 1e-3
"""Share of an example's length below which its contrast is float32's rounding."""
EXPLAINED: Final = 0.95
"""Cosine of a row and the sum of the contributions from which on nothing else was added to speak of."""
_COLUMNS: Final = 64  # of the weight, by which contributions are set to scale
_TINY: Final = torch.finfo(torch.float).tiny

What = Literal["input", "features"]


def to_scale(t: Tensor) -> Tensor:
    """Its largest entry 1: squares of what a crafted model leaves of a gradient vanish in float32."""
    return t / t.abs().amax().clamp_min(_TINY)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Contributions:
    """What examples added to one layer's update, whatever became of it afterwards.

    Attributes:
        trace: the layer's inputs and the pulls on its outputs.
        what: the inputs are.
        is_exact: the pulls are those of the steps that made the update; else they are those of the models
        before
            and after it.
        lengths: of the inputs, (B,).
        contrasts: how far each is from a flat one, or from the mean of all, (B,).
    """

    trace: LayerTrace
    what: What
    is_exact: bool
    lengths: Tensor
    contrasts: Tensor

    @classmethod
    def of(cls, trace: LayerTrace, what: What, *, is_exact: bool) -> "Contributions":
        """Those of one layer."""
        goals, mean = trace.inputs, trace.inputs.mean(0)
        squares = goals.square().sum(1)
        apart = squares - goals.sum(1).square() / goals.shape[1]  # from a flat one
        if (b := len(goals)) > 1:  # Bessel's correction: each example is part of the mean
            from_mean = squares - 2 * goals @ mean + mean.square().sum()
            apart = torch.minimum(apart, from_mean * b / (b - 1))
        lengths = squares.sqrt()
        contrasts = apart.clamp_min(0).sqrt().maximum(ROUNDED * lengths).clamp_min(1e-12)
        return cls(trace=trace, what=what, is_exact=is_exact, lengths=lengths, contrasts=contrasts)

    def about(self, origin: Tensor) -> "Contributions":
        """The same, with inputs as they are seen from a flat one of value ``origin``."""
        inputs = self.trace.inputs - origin
        return replace(self, trace=replace(self.trace, inputs=inputs), lengths=inputs.norm(dim=1))

    def scaled(self, rows: Tensor) -> Tensor:
        """(m, B), the signed length of each example's contribution in each row of the update.

        A row that was clipped, or scaled by an optimizer, is a multiple of the sum of contributions; the
        factor is fitted on some columns, to entries that are not zero: others may be pruned. A row of zeros
        has none.
        """
        seen, expected = self._on_some_columns(rows)
        factors = (seen * expected).sum(1) / expected.square().sum(1).clamp_min(_TINY)
        signed: Tensor = factors[:, None] * to_scale(self.trace.pulls).T * self.lengths
        return signed

    def explain(self, rows: Tensor) -> Tensor:
        """(m,) of bool, which rows are the sum of the contributions, up to a factor and what was pruned."""
        seen, expected = self._on_some_columns(rows)
        return F.cosine_similarity(seen, expected, dim=1, eps=_TINY).abs() >= EXPLAINED

    def _on_some_columns(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows, and sums of the contributions where these are not zero, (m, c)."""
        every = max(1, rows.shape[1] // _COLUMNS)
        seen, goals = rows[:, ::every], self.trace.inputs[:, ::every]
        return seen, (to_scale(self.trace.pulls).T @ goals) * (seen != 0)

"""What each of a client's examples added to the update of one linear layer.

Shape letters: m rows of the weight, n its columns, B examples.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.guard.behaviour.trace import LayerTrace

ROUNDED: Final = 1e-3
"""Share of an example's length below which its contrast is float32's rounding."""
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
            before and after it.
        lengths: of the inputs, (B,).
        with_copies: among the examples are turned copies of others: a row that shows one resembles its
            copies, which is no excuse.
    """

    trace: LayerTrace
    what: What
    is_exact: bool
    lengths: Tensor
    with_copies: bool = False

    @classmethod
    def of(
        cls, trace: LayerTrace, what: What, *, is_exact: bool, with_copies: bool = False
    ) -> "Contributions":
        """Those of one layer."""
        lengths = trace.inputs.norm(dim=1)
        return cls(trace=trace, what=what, is_exact=is_exact, lengths=lengths, with_copies=with_copies)

    @cached_property
    def _mean(self) -> Tensor:
        return self.trace.inputs.mean(0)

    def contrasts(self, who: Tensor | None = None) -> Tensor:
        """How far the inputs of these examples are from a flat one, or from the mean of all, (k,).

        Args:
            who: numbers of the examples, (k,); None: all.
        """
        every, mean = self.trace.inputs, self._mean
        goals, lengths = (every, self.lengths) if who is None else (every[who], self.lengths[who])
        squares = lengths.square()
        apart = squares - goals.sum(1).square() / goals.shape[1]  # from a flat one
        if len(every) > 1:
            apart = torch.minimum(apart, squares - 2 * goals @ mean + mean.square().sum())
        return apart.clamp_min(0).sqrt().maximum(ROUNDED * lengths).clamp_min(1e-12)

    def scaled(self, rows: Tensor) -> Tensor:
        """(m, B), the signed length of each example's contribution in each row of the update.

        A row that was clipped, or scaled by an optimizer, is a multiple of the sum of contributions; the
        factor is fitted on some columns. A row of zeros has none.
        """
        every = max(1, rows.shape[1] // _COLUMNS)
        seen, goals = rows[:, ::every], self.trace.inputs[:, ::every]
        pulls = self.trace.pulls.T
        expected = pulls @ goals
        scale = expected.abs().amax().clamp_min(_TINY)
        expected = expected / scale
        factors = (seen * expected).sum(1) / expected.square().sum(1).clamp_min(_TINY) / scale
        signed: Tensor = (pulls * self.lengths).mul_(factors[:, None])
        return signed

"""What each of a client's examples added to the update of one linear layer.

Shape letters: m rows of the weight, n its columns, B examples, e of them that are asked for.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.trace import LayerTrace

ROUNDED: Final = 1e-3
"""Share of an example's length below which its contrast is float32's rounding."""
EXPLAINED: Final = 0.95
"""Cosine of a row and the sum of the contributions from which on nothing else was added to speak of."""
FAINT: Final = 1e-12
"""Length below which what was contributed to a row has no direction; the largest entry of all rows is 1."""
_COLUMNS: Final = 64  # of the weight, by which contributions are set to scale
_TINY: Final = torch.finfo(torch.float).tiny
_ORDINARY: Final = 1e-6, 1e6  # largest entries of inputs that are left in their units

What = Literal["input", "features"]


def largest(t: Tensor) -> Tensor:
    """The size of the largest entry: squares of what a crafted model leaves of a gradient vanish in float32.

    Positive: of zeros the least number that float32 holds in full.
    """
    low, high = t.aminmax()
    return torch.maximum(-low, high).clamp_min(_TINY)


def _unit_of(inputs: Tensor) -> float:
    """A power of two by which ``inputs`` become ordinary; 1 where they are."""
    size = float(largest(inputs.detach()))
    low, high = _ORDINARY
    return 1.0 if low <= size <= high else 2.0 ** math.frexp(size)[1]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """How much of each row of an update examples contributed; what follows from it is computed once.

    Attributes:
        signed: the size of each contribution, with its sign, (m, B).
        explained: which rows are the sum of the contributions, up to a factor and what was pruned, (m,).
    """

    signed: Tensor
    explained: Tensor

    def per_length(self, lengths: Tensor) -> "Sizes":
        """The same of the bias: what was contributed to it does not grow with an input's length, (B,)."""
        return replace(self, signed=self.signed / lengths.clamp_min(_TINY))

    @cached_property
    def top(self) -> Tensor:
        """The largest in each row, (m,)."""
        return self.signed.abs().amax(1)

    @cached_property
    def total(self) -> Tensor:
        """Their sum in each row, (m,)."""
        return self.signed.sum(1)

    @cached_property
    def cosines(self) -> Tensor:
        """Between what was contributed to two rows, of either sign, (m, m); a row's own is 0."""
        products, known = self._products, self.length.clamp_min(FAINT)
        return (products / known / known[:, None]).abs().fill_diagonal_(0)

    @cached_property
    def length(self) -> Tensor:
        """Of each row of ``signed``, (m,)."""
        return self._products.diagonal().sqrt()

    @cached_property
    def _products(self) -> Tensor:
        return self.signed @ self.signed.T


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Goals:
    """Examples that are looked for.

    Attributes:
        inputs: what of them entered the layer, (e, n).
        lengths: of the inputs, (e,).
        contrasts: how far each is from a flat one, or from the mean of all examples, (e,).
        with_copies: among all examples are turned copies of others.
    """

    inputs: Tensor
    lengths: Tensor
    contrasts: Tensor
    with_copies: bool

    def about(self, origin: Tensor) -> "Goals":
        """The same, with inputs as they are seen from a flat one of value ``origin``."""
        inputs = self.inputs - origin
        return replace(self, inputs=inputs, lengths=torch.linalg.vector_norm(inputs, dim=1))

    def distances(self, directions: Tensor) -> Tensor:
        """(v, e), the share of each example's contrast that directions of length 1, (v, n), lack."""
        energy = (directions @ self.inputs.T).square()
        return (self.lengths.square() - energy).clamp_min(0).sqrt() / self.contrasts


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
        unit: of the trace's inputs; by another than 1 they were divided, so that their squares do not vanish.
    """

    trace: LayerTrace
    what: What
    is_exact: bool
    lengths: Tensor
    with_copies: bool = False
    unit: float = 1.0

    @classmethod
    def of(
        cls, trace: LayerTrace, what: What, *, is_exact: bool, with_copies: bool = False
    ) -> "Contributions":
        """Those of one layer."""
        unit = _unit_of(trace.inputs)
        if unit != 1:
            trace = replace(trace, inputs=(trace.inputs.double() / unit).to(trace.inputs))
        return cls(
            trace=trace,
            what=what,
            is_exact=is_exact,
            lengths=torch.linalg.vector_norm(trace.inputs, dim=1),
            with_copies=with_copies,
            unit=unit,
        )

    def goals(self, who: Tensor) -> Goals:
        """The examples with these numbers, (e,)."""
        return self._measure(self.trace.inputs[who], self.lengths[who])

    @cached_property
    def every_goal(self) -> Goals:
        """All examples."""
        return self._measure(self.trace.inputs, self.lengths)

    def sizes(self, rows: Tensor) -> Sizes:
        """The signed length of each example's contribution in each row of the update, (m, n).

        A row that was clipped, or scaled by an optimizer, is a multiple of the sum of contributions; the
        factor is fitted on some columns, to entries that are not zero: others may be pruned. A row of zeros
        has none.
        """
        every = max(1, rows.shape[1] // _COLUMNS)
        seen, inputs = rows[:, ::every], self.trace.inputs[:, ::every]
        pulls = (self.trace.pulls / largest(self.trace.pulls)).T
        expected = (pulls @ inputs).mul_(seen != 0)
        factors = (seen * expected).sum(1) / expected.square().sum(1).clamp_min(_TINY)
        return Sizes(
            signed=pulls.mul_(factors[:, None]).mul_(self.lengths),
            explained=F.cosine_similarity(seen, expected, dim=1, eps=_TINY).abs() >= EXPLAINED,
        )

    @cached_property
    def _mean(self) -> Tensor:
        return self.trace.inputs.mean(0)

    def _measure(self, inputs: Tensor, lengths: Tensor) -> Goals:
        squares = lengths.square()
        apart = squares - inputs.sum(1).square() / inputs.shape[1]  # from a flat one
        if (b := len(self.lengths)) > 1:  # Bessel's correction: each example is part of the mean
            from_mean = squares - 2 * inputs @ self._mean + self._mean.square().sum()
            apart = torch.minimum(apart, from_mean * b / (b - 1))
        contrasts = apart.clamp_min(0).sqrt().maximum(ROUNDED * lengths).clamp_min(1e-12)
        return Goals(inputs=inputs, lengths=lengths, contrasts=contrasts, with_copies=self.with_copies)

"""The contribution of each of a client's examples to the update of one linear layer.

Shape letters: m rows of the weight, n its columns, B examples, e selected ones.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.layers.trace import LayerTrace

ROUNDED: Final = 1e-3
"""Share of an example's length below which its contrast is float32 rounding."""
EXPLAINED: Final = 0.95
"""Cosine between a row and the sum of contributions from which on nothing substantial was added."""
OWN: Final = 0.2
"""Share of a vector's length that an example must have contributed: with less, the remainder resembles it
too."""
FAINT: Final = 1e-12
"""Length below which contributions to a row have no direction; the largest entry of all rows is 1."""
_COLUMNS: Final = 64  # of the weight, used to fit the scale of contributions
_TINY: Final = torch.finfo(torch.float).tiny
ORDINARY: Final = 1e-6, 1e6
"""Range of largest entries for which numbers are not rescaled."""

What = Literal["input", "features"]


def largest(t: Tensor) -> Tensor:
    """The largest magnitude, for rescaling: tiny gradients of a crafted model underflow when squared.

    Positive: for zeros the smallest normal float32 number.
    """
    low, high = t.aminmax()
    return torch.maximum(-low, high).clamp_min(_TINY)


def _unit_of(inputs: Tensor) -> float:
    """A power of two that scales ``inputs`` to an ordinary range; 1 where they already are."""
    size = float(largest(inputs.detach()))
    low, high = ORDINARY
    return 1.0 if low <= size <= high else 2.0 ** math.frexp(size)[1]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """Sizes of the examples' contributions to each row of an update, with cached derived quantities.

    Attributes:
        signed: signed size of each contribution, (m, B).
        explained: which rows are the sum of the contributions, up to a factor and pruned entries, (m,).
    """

    signed: Tensor
    explained: Tensor

    def per_length(self, lengths: Tensor) -> "Sizes":
        """The contributions to the bias, which do not scale with the length of an input, (B,)."""
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
        """Absolute cosine between the contributions to two rows, (m, m); 0 on the diagonal."""
        products, known = self._products, self.length.clamp_min(FAINT)
        return (products / known / known[:, None]).abs().fill_diagonal_(0)

    @cached_property
    def length(self) -> Tensor:
        """L2 norm of each row of ``signed``, (m,)."""
        return self._products.diagonal().sqrt()

    @cached_property
    def _products(self) -> Tensor:
        return self.signed @ self.signed.T


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Goals:
    """The examples to look for.

    Attributes:
        inputs: their inputs to the layer, (e, n).
        lengths: of the inputs, (e,).
        contrasts: distance from a constant input or the mean of all examples, the smaller one, (e,).
        copies: versions of each image among all examples.
    """

    inputs: Tensor
    lengths: Tensor
    contrasts: Tensor
    copies: int

    def about(self, origin: Tensor) -> "Goals":
        """The same, with inputs relative to a constant one of value ``origin``."""
        inputs = self.inputs - origin
        return replace(self, inputs=inputs, lengths=torch.linalg.vector_norm(inputs, dim=1))

    def distances(self, directions: Tensor) -> Tensor:
        """Share of each example's contrast that is missing from unit vectors (v, n): (v, e)."""
        energy = (directions @ self.inputs.T).square()
        return (self.lengths.square() - energy).clamp_min(0).sqrt() / self.contrasts


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Contributions:
    """The examples' contributions to one layer's update, before defences.

    Attributes:
        trace: the layer's inputs and the gradients at its outputs ("pulls").
        what: kind of the inputs.
        is_exact: the pulls are those of the actual training steps; else those of the models before and after.
        lengths: of the inputs, (B,).
        copies: versions of each image among the examples, 1 without rotated copies. A row that exposes one
            resembles the others, and counts nevertheless.
        unit: scale by which the trace's inputs were divided, so that their squares do not underflow; often 1.
    """

    trace: LayerTrace
    what: What
    is_exact: bool
    lengths: Tensor
    copies: int = 1
    unit: float = 1.0

    @classmethod
    def of(cls, trace: LayerTrace, what: What, *, is_exact: bool, copies: int = 1) -> "Contributions":
        """The contributions to one layer."""
        unit = _unit_of(trace.inputs)
        if unit != 1:
            trace = replace(trace, inputs=(trace.inputs.double() / unit).to(trace.inputs))
        return cls(
            trace=trace,
            what=what,
            is_exact=is_exact,
            lengths=torch.linalg.vector_norm(trace.inputs, dim=1),
            copies=copies,
            unit=unit,
        )

    def goals(self, who: Tensor) -> Goals:
        """The examples with these indices, (e,)."""
        return self._measure(self.trace.inputs[who], self.lengths[who])

    @property
    def least_share(self) -> float:
        """Share of a vector that one example must have contributed to be looked for in it.

        Copies of one image enter nearly the same rows together: of inputs each needs its part of ``OWN``.
        """
        return OWN / self.copies if self.what == "input" else OWN

    @cached_property
    def every_goal(self) -> Goals:
        """All examples."""
        return self._measure(self.trace.inputs, self.lengths)

    def sizes(self, rows: Tensor) -> Sizes:
        """The signed length of each example's contribution in each row of the update, (m, n).

        A row that was clipped, or scaled by an optimizer, is a multiple of the sum of contributions; the
        factor is fitted on some columns, to nonzero entries, as zeros may be pruned. For a row of zeros it
        is 0.
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
        squared = squares - inputs.sum(1).square() / inputs.shape[1]  # distance from a constant input
        if (b := len(self.lengths)) > 1:  # Bessel's correction: each example is part of the mean
            from_mean = squares - 2 * inputs @ self._mean + self._mean.square().sum()
            squared = torch.minimum(squared, from_mean * b / (b - 1))
        contrasts = squared.clamp_min(0).sqrt().maximum(ROUNDED * lengths).clamp_min(1e-12)
        return Goals(inputs=inputs, lengths=lengths, contrasts=contrasts, copies=self.copies)

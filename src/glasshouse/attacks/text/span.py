"""Which vectors were inputs of a linear layer, read off the layer's gradient.

For ``Y = X Wᵀ`` the chain rule gives ``dL/dW = (dL/dY)ᵀ X``: every row is a sum of inputs. With fewer
inputs than the layer is wide, an input lies in the span of these rows and almost no other vector does.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4 (the span check). We differ in three ways.
    The rank is not found by a fixed tolerance but from the noise itself: behind the signal, singular values
    follow the Marchenko-Pastur law, be the noise rounding or a defence (Kritchman and Nadler 2008 count
    components so), once rows are scaled to equal noise. An input's distance may be what that noise
    explains, direction by direction. And the distance is measured in the null space, of which a few
    directions refuse most candidates.

Shape letters: M rows of a gradient, D inputs of the layer, R rank, N candidates, K directions of the sketch.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import scipy
import torch
from torch import Tensor

__all__ = ["SKETCH", "Span", "signal_rank", "span_of", "with_directions", "within_reach"]

SKETCH = 48
"""Directions of the null space that are tried first: a vector in the span has no part in any of them."""
EDGE = 1.1
"""How far above the largest singular value of pure noise a signal must be."""
ROUNDING = 1e-6
"""Below this share of the largest singular value is rounding, which is not white."""
EVEN = 0.1
"""No row's noise is taken for less than this share of the median row's."""
SMALL = 1e-4
"""A known input this near to the span adds no direction."""
LEAK = 3.0
"""How many times its expected distance an input may have."""
LUCK = 1e-6
"""So rarely may a vector outside the span pass for noise."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """What the rows of one layer's gradient span.

    Attributes:
        basis: (R, D), orthonormal; from the strongest direction to the weakest.
        null: (D, D - R), orthonormal; from the most certain direction to the least.
        leak: (R,), the expected squared distance from the span of a unit vector along each direction: what
            the noise turned that direction by.
        lens: (D, H), where the layer sees an input of H features through a matrix, as the second matrix of
            LoRA does.
        allowance: how many times its expected distance an input may have.
    """

    basis: Tensor
    null: Tensor
    leak: Tensor
    lens: Tensor | None = None
    allowance: float = LEAK

    @property
    def rank(self) -> int:
        """R."""
        return len(self.basis)

    @property
    def free(self) -> int:
        """Directions that no input has; 0: the span is everything, and tells nothing."""
        return self.null.shape[1]

    @cached_property
    def sketch(self) -> Tensor:
        """(H, K): products with these directions are almost zero for every input."""
        few = self.null[:, :SKETCH]
        return few if self.lens is None else self.lens.T @ few

    def distances(self, inputs: Tensor) -> Tensor:
        """Distance of each input (N, H) from the span over its norm, in [0, 1]: (N,). 0: it was an input."""
        seen = self._seen(inputs)
        return _norm(seen @ self.null) / _norm(seen)

    def limits(self, inputs: Tensor, least: float) -> Tensor:
        """Up to which distance each input (N, H) passes, (N,): ``least``, or what noise explains if more."""
        seen = self._seen(inputs)
        shares = (seen @ self.basis.T).square() / _norm(seen).square()[..., None]
        wide = (self.allowance**2 * (shares @ self.leak) + least**2).sqrt()
        return wide.clamp(max=self.most(least))

    def may_hold(self, inputs: Tensor, least: float) -> Tensor:
        """Whether each input (N, H) passes on the sketch alone, (N,): no more are inside than these."""
        few = _norm(inputs @ self.sketch)
        return few <= self.widest(least) * _norm(self._seen(inputs))

    def inside(self, inputs: Tensor, least: float) -> tuple[Tensor, Tensor]:
        """Rows of ``inputs`` (N, H) that pass, in order, and their distances."""
        near = self.may_hold(inputs, least).nonzero()[:, 0]
        distances = self.distances(inputs[near])
        passed = distances <= self.limits(inputs[near], least)
        return near[passed], distances[passed]

    def widest(self, least: float) -> float:
        """The largest distance at which any input passes."""
        leak = float(self.leak.max()) if self.rank else 0.0
        return min(self.most(least), math.sqrt(self.allowance**2 * leak + least**2))

    def most(self, least: float) -> float:
        """The largest distance at which any input may pass, be the noise as large as it may.

        With few free directions a part of the vectors outside is as near: noise is no reason to let them in.
        """
        if not self.rank or not self.free:
            return self.chance
        rare = math.sqrt(float(scipy.stats.beta.ppf(LUCK, self.free / 2, self.rank / 2)))
        return min(self.chance, max(rare, least))

    @cached_property
    def chance(self) -> float:
        """A distance below which hardly any vector outside the span comes by luck.

        A random direction's squared distance is Beta((D - R) / 2, R / 2): seven standard deviations below its
        mean, or for few free directions a small part of the mean.
        """
        total = self.rank + self.free
        mean = self.free / total
        spread = math.sqrt(2 * mean * (1 - mean) / (total + 2))
        return math.sqrt(max(mean - 7 * spread, (mean / 3) ** 2, 0.0))

    def _seen(self, inputs: Tensor) -> Tensor:
        return inputs if self.lens is None else inputs @ self.lens.T


def _norm(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths.clamp_min(1e-30)


def signal_rank(singular: Tensor, other: int) -> tuple[int, float]:
    """How many singular values rise above the noise, and the noise's standard deviation per entry.

    The first count at which what is left looks like noise alone: its largest value is no farther out than
    the edge of the Marchenko-Pastur law for a noise of the power that is left.

    Args:
        singular: in descending order, as many as the matrix's shorter side.
        other: the longer side.
    """
    power = singular.square().flip(0).cumsum(0).flip(0)  # power of the values from here on
    left = torch.arange(len(singular), 0, -1, dtype=singular.dtype, device=singular.device)
    noise = (power / (other * left)).sqrt()
    edge = EDGE * noise * (math.sqrt(other) + left.sqrt())
    inside = (singular <= edge.clamp_min(ROUNDING * float(singular[0]))).nonzero()[:, 0]
    rank = int(inside[0]) if len(inside) else len(singular)
    if rank == len(singular) - 1 and float(singular[-1]) > ROUNDING * float(singular[0]):
        return len(singular), 0.0  # one value alone always looks like noise
    return rank, float(noise[rank]) if rank < len(singular) else 0.0


def span_of(gradient: Tensor, *, lens: Tensor | None = None) -> Span:
    """The span of a gradient's rows, (M, D).

    Rows are scaled to one norm, and a second time to one norm outside the span that they then show.
    """
    rows = gradient.double()
    rows = rows[rows.any(dim=1)]
    if not len(rows):
        width = gradient.shape[1]
        return Span(
            basis=gradient.new_zeros(0, width),
            null=torch.eye(width, dtype=gradient.dtype, device=gradient.device),
            leak=gradient.new_zeros(0),
            lens=lens,
        )
    rows = rows / rows.norm(dim=1, keepdim=True)
    rank, noise, vectors, values = _decompose(rows)
    if 0 < rank < min(rows.shape):  # where the noise is not the same in all rows, make it so, and look again
        left = (rows @ vectors[:, rank:]).norm(dim=1)
        rows = rows / left.clamp_min(EVEN * float(left.median()))[:, None]
        rank, noise, vectors, values = _decompose(rows)
    if rank >= min(rows.shape):  # no direction is left in which only noise could be
        rank = rows.shape[1]
    free = rows.shape[1] - rank
    leak = free * noise**2 / values[:rank].square().clamp_min(1e-300)
    return Span(
        basis=vectors[:, :rank].T.to(gradient.dtype).contiguous(),
        null=vectors[:, rank:].flip(1).to(gradient.dtype).contiguous(),
        leak=leak.to(gradient.dtype),
        lens=lens,
    )


def _decompose(rows: Tensor) -> tuple[int, float, Tensor, Tensor]:
    """Rank, noise, right singular vectors (D, D) and values (D,) of a matrix (M, D), by its Gram matrix."""
    squares, vectors = torch.linalg.eigh(rows.T @ rows)
    values = squares.flip(0).clamp_min(0).sqrt()
    rank, noise = signal_rank(values[: min(rows.shape)], max(rows.shape))
    return rank, noise, vectors.flip(1), values


def within_reach(span: Span, inputs: Tensor) -> Span:
    """The span without those free directions in which no input can have a part, judged by some (N, H).

    What a layer norm gives has no part in one direction at least: where tokens fill the layer up, that one
    is left, and every vector would pass.
    """
    seen = inputs if span.lens is None else inputs @ span.lens.T
    parts = ((seen / _norm(seen)[:, None]) @ span.null).double()
    squares, turn = torch.linalg.eigh(parts.T @ parts / len(parts))
    null = span.null.double() @ turn[:, squares > SMALL**2]
    return replace(span, null=null.to(span.null.dtype).contiguous())


def with_directions(span: Span, inputs: Tensor) -> Span:
    """The span with those of further inputs (N, H) added, which are known exactly."""
    seen = inputs if span.lens is None else inputs @ span.lens.T
    outside = (seen / _norm(seen)[:, None]) @ span.null
    _, values, vectors = torch.linalg.svd(outside.double(), full_matrices=True)
    rank = int((values > SMALL).sum())
    turned = span.null.double() @ vectors.T
    return Span(
        basis=torch.cat([span.basis, turned[:, :rank].T.to(span.basis.dtype)]),
        null=turned[:, rank:].to(span.null.dtype).contiguous(),
        leak=torch.cat([span.leak, span.leak.new_zeros(rank)]),
        lens=span.lens,
        allowance=span.allowance,
    )

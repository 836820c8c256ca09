"""Test whether vectors were inputs of a linear layer, by the span of the layer's gradient.

For ``Y = X Wᵀ`` the chain rule gives ``dL/dW = (dL/dY)ᵀ X``: every row is a linear combination of inputs.
With fewer inputs than the layer is wide, an input lies in the span of these rows and almost no other vector
does.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4 (the span check). We differ in three ways.
    The rank is not found by a fixed tolerance but from the noise itself: once rows are scaled to equal noise,
    the singular values after those of the signal follow the Marchenko-Pastur law, whether the noise is
    rounding or a defence (Kritchman and Nadler 2008 count components in this way). The tolerance on an
    input's distance is what this noise explains, direction by direction. And the distance is measured in the
    null space, a few directions of which reject most candidates.

:func:`candidates` finds the tokens of a batch and their positions. With or without normalisation, the
attention input of a token is, up to a factor, the sum of a token part and a position part. So with the
directions of all positions added to the first layer's span, one pass over the vocabulary finds the tokens
that occur anywhere, and only these are tested position by position (DAGER, section 4.1, tests the whole
vocabulary at every position).

The set of a position may contain more tokens than the batch had there, however exact the gradient: with
``E[a] + P[1]``, ``E[a] + P[2]`` and ``E[b] + P[2]`` in the span, ``E[b] + P[1]`` is a linear combination of
them. The rank is the number of distinct tokens and positions minus the connected components that they form,
not the number of tokens; no tolerance changes that. Only the second layer resolves the ambiguity.

Shape letters: M rows of a gradient, D inputs of the layer, R rank, N vectors, K directions of the sketch; V
vocabulary, T tokens, L positions, C candidates.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import scipy
import torch
from torch import Tensor

from glasshouse.models.text.base import TextModel

# | number   | what it trades                    | which measurement set it                  | repeated      |
# |----------|-----------------------------------|-------------------------------------------|---------------|
# | SKETCH   | cost of the first test            | a choice                                  | -             |
# | EDGE     | noise taken for directions, and   | rank 12 under noise of 0.05: too large in | test_dager.py |
# |          | faint inputs                      | 94 of 100 at 1.0, 7 at 1.1; never smaller |               |
# | ROUNDING | rounding taken for directions     | float32's unit is 6e-8, sums are long     | -             |
# | EVEN     | rows scaled up with their noise   | a choice                                  | -             |
# | SMALL    | known directions counted twice    | a choice                                  | -             |
# | LEAK     | inputs missed under rounding, and | decision 0174. Under white noise all from | test_dager.py |
# |          | strangers that pass               | 1.5 to 4 pass every input and no stranger |               |
# | LUCK     | words that pass by chance         | of GPT-2's 50,257 it lets in 0.05         | arithmetic    |
SKETCH = 48
"""Null-space directions that are tested first: a vector in the span has no component along any of them."""
EDGE = 1.1
"""Minimum ratio of a signal's singular value to the largest one of pure noise."""
ROUNDING = 1e-6
"""Singular values below this share of the largest are rounding, which is not white noise."""
EVEN = 0.1
"""Lower bound on a row's noise, as a share of the median row's."""
SMALL = 1e-4
"""A known input this close to the span adds no direction."""
LEAK = 3.0
"""Tolerance on an input's distance, in multiples of the expected distance."""
LUCK = 1e-6
"""Maximum probability that a vector outside the span passes because of the noise tolerance."""
ROWS = 8192
"""Tokens of the vocabulary that are tested at once."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """The span of the rows of one layer's gradient.

    Attributes:
        basis: (R, D), orthonormal; from the strongest direction to the weakest.
        null: (D, D - R), orthonormal; from the most certain direction to the least.
        leak: (R,), the expected squared distance from the span of a unit vector along each direction, caused
            by the rotation of that direction by noise.
        lens: (D, H), the matrix through which the layer receives an input of H features, as the second matrix
            of LoRA does; None: it receives the input itself.
        allowance: tolerance on an input's distance, in multiples of the expected distance.
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
        """Dimension of the null space; 0: the span is the whole space, and carries no information."""
        return self.null.shape[1]

    @cached_property
    def sketch(self) -> Tensor:
        """(H, K): directions whose inner product with every input is almost zero."""
        directions = self.null[:, :SKETCH]
        return directions if self.lens is None else self.lens.T @ directions

    def distances(self, inputs: Tensor) -> Tensor:
        """Distance of each vector (N, H) from the span over its norm, in [0, 1]: (N,). 0: it was an input."""
        seen = self._seen(inputs)
        return _norm(seen @ self.null) / _norm(seen)

    def limits(self, inputs: Tensor, least: float) -> Tensor:
        """Maximum distance at which each vector (N, H) passes, (N,): ``least``, or more under noise."""
        seen = self._seen(inputs)
        shares = (seen @ self.basis.T).square() / _norm(seen).square()[..., None]
        wide = (self.allowance**2 * (shares @ self.leak) + least**2).sqrt()
        return wide.clamp(max=self.most(least))

    def may_hold(self, inputs: Tensor, least: float) -> Tensor:
        """Whether each vector (N, H) passes on the sketch alone, (N,): a necessary condition to be inside."""
        lengths = _norm(inputs @ self.sketch)
        return lengths <= self.widest(least) * _norm(self._seen(inputs))

    def inside(self, inputs: Tensor, least: float) -> tuple[Tensor, Tensor]:
        """Rows of ``inputs`` (N, H) that pass, in order, and their distances."""
        near = self.may_hold(inputs, least).nonzero()[:, 0]
        distances = self.distances(inputs[near])
        passed = distances <= self.limits(inputs[near], least)
        return near[passed], distances[passed]

    def widest(self, least: float) -> float:
        """The largest distance at which any vector passes."""
        leak = float(self.leak.max()) if self.rank else 0.0
        return min(self.most(least), math.sqrt(self.allowance**2 * leak + least**2))

    def most(self, least: float) -> float:
        """The largest distance at which any vector may pass, whatever the noise.

        With few free directions some vectors outside are that close by chance, and must not pass as noise.
        """
        if not self.rank or not self.free:
            return self.chance
        rare = math.sqrt(float(scipy.stats.beta.ppf(LUCK, self.free / 2, self.rank / 2)))
        return min(self.chance, max(rare, least))

    @cached_property
    def chance(self) -> float:
        """A distance below which hardly any vector outside the span lies by chance.

        A random direction's squared distance is Beta((D - R) / 2, R / 2): seven standard deviations below its
        mean or, for few free directions, a small share of the mean.
        """
        total = self.rank + self.free
        mean = self.free / total
        spread = math.sqrt(2 * mean * (1 - mean) / (total + 2))
        return math.sqrt(max(mean - 7 * spread, (mean / 3) ** 2, 0.0))

    def free_parts(self, inputs: Tensor) -> Tensor:
        """Components of inputs (N, H), scaled to length 1, along the null space: (N, D - R)."""
        seen = self._seen(inputs)
        return (seen / _norm(seen)[:, None]) @ self.null

    def _seen(self, inputs: Tensor) -> Tensor:
        return inputs if self.lens is None else inputs @ self.lens.T


def _norm(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths.clamp_min(1e-30)


def signal_rank(singular: Tensor, other: int) -> tuple[int, float]:
    """The number of singular values above the noise, and the noise's standard deviation per entry.

    The smallest number for which the remaining values look like pure noise: the largest of them does not
    exceed the edge of the Marchenko-Pastur law for noise of the remaining power.

    Args:
        singular: in descending order, as many as the matrix's shorter side.
        other: the longer side.
    """
    power = singular.square().flip(0).cumsum(0).flip(0)  # power of this and all later values
    remaining = torch.arange(len(singular), 0, -1, dtype=singular.dtype, device=singular.device)
    noise = (power / (other * remaining)).sqrt()
    edge = EDGE * noise * (math.sqrt(other) + remaining.sqrt())
    inside = (singular <= edge.clamp_min(ROUNDING * float(singular[0]))).nonzero()[:, 0]
    rank = int(inside[0]) if len(inside) else len(singular)
    if rank == len(singular) - 1 and float(singular[-1]) > ROUNDING * float(singular[0]):
        return len(singular), 0.0  # a single remaining value always looks like noise
    return rank, float(noise[rank]) if rank < len(singular) else 0.0


def span_of(gradient: Tensor, *, lens: Tensor | None = None) -> Span:
    """The span of a gradient's rows, (M, D).

    Rows are scaled to equal norm, then again to equal norm outside the span estimated from them.
    """
    rows = gradient.double()
    rows = rows[rows.any(dim=1)]
    if not len(rows):
        null = torch.eye(gradient.shape[1], dtype=gradient.dtype, device=gradient.device)
        return Span(basis=gradient.new_zeros(0, len(null)), null=null, leak=gradient.new_zeros(0), lens=lens)
    rows = rows / rows.norm(dim=1, keepdim=True)
    rank, noise, vectors, values = _decompose(rows)
    if 0 < rank < min(rows.shape):  # equalise the noise of all rows, and decompose again
        residuals = (rows @ vectors[:, rank:]).norm(dim=1)
        rows = rows / residuals.clamp_min(EVEN * float(residuals.median()))[:, None]
        rank, noise, vectors, values = _decompose(rows)
    if rank >= min(rows.shape):  # no direction is left that contains only noise
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
    """Remove from the null space the directions that no input can have, judged by sample inputs (N, H).

    The output of a layer norm has no component along at least one direction: if tokens fill the rest of the
    space, only that one remains in the null space, and every vector would pass.
    """
    parts = span.free_parts(inputs).double()
    squares, turn = torch.linalg.eigh(parts.T @ parts / len(parts))
    null = span.null.double() @ turn[:, squares > SMALL**2]
    return replace(span, null=null.to(span.null.dtype).contiguous())


def with_directions(span: Span, inputs: Tensor) -> Span:
    """The span extended by the directions of further inputs (N, H), which are known exactly."""
    _, values, vectors = torch.linalg.svd(span.free_parts(inputs).double(), full_matrices=True)
    rank = int((values > SMALL).sum())
    turned = span.null.double() @ vectors.T
    return replace(
        span,
        basis=torch.cat([span.basis, turned[:, :rank].T.to(span.basis.dtype)]),
        null=turned[:, rank:].to(span.null.dtype).contiguous(),
        leak=torch.cat([span.leak, span.leak.new_zeros(rank)]),
    )


def received(model: TextModel, tokens: Tensor, position: int | Tensor) -> Tensor:
    """Inputs of the first attention layer for tokens (T,) at one position, or at one each: (T, D)."""
    places = position if isinstance(position, Tensor) else torch.full_like(tokens, position)
    hidden = model.embed(tokens[:, None], places[:, None])
    return model.anatomy.blocks[0].attended(hidden)[:, 0]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The tokens that may occur at a position.

    Attributes:
        model: that the client received.
        span: of the first attention layer's gradient.
        tokens: those that may occur anywhere, (T,), nearest first.
        least: the distance up to which a token passes whatever the noise.
    """

    model: TextModel
    span: Span
    tokens: Tensor
    least: float

    def at(self, position: int) -> Tensor:
        """Tokens (C,), nearest first."""
        if self.model.anatomy.rotary or not len(self.tokens):
            return self.tokens
        return self.tokens[_nearest(self.span, received(self.model, self.tokens, position), self.least)]


def candidates(model: TextModel, span: Span, *, length: int, least: float) -> Candidates:
    """One pass over the vocabulary, for sentences of up to ``length`` tokens."""
    size, device = model.anatomy.tokens.num_embeddings, model.anatomy.tokens.weight.device
    wide = span if model.anatomy.rotary else with_directions(span, _places(model, length))
    tokens = torch.arange(size if span.free else 0, device=device)
    if wide.free:  # else with the positions the span is the whole space: keep every token
        parts = torch.split(tokens, ROWS)
        tokens = torch.cat([part[_nearest(wide, received(model, part, 0), least)] for part in parts])
    return Candidates(model=model, span=span, tokens=tokens, least=least)


def _places(model: TextModel, length: int) -> Tensor:
    """Vectors that, with any token's vector at one position, span that token's at all others: (L + 2, D).

    One token at all positions, and at the first position with its embedding doubled and zeroed, for the
    constant part.
    """
    anatomy = model.anatomy
    device = anatomy.tokens.weight.device
    tokens = torch.zeros(length, dtype=torch.int64, device=device)
    vector = anatomy.tokens(tokens[:1])[None]
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    rows = [anatomy.blocks[0].attended(anatomy.place(factor * vector, first))[0] for factor in (0.0, 2.0)]
    return torch.cat([received(model, tokens, torch.arange(length, device=device)), *rows])


def _nearest(span: Span, inputs: Tensor, least: float) -> Tensor:
    """Rows of ``inputs`` (T, D) that pass, nearest first."""
    rows, distances = span.inside(inputs, least)
    return rows[distances.argsort()]

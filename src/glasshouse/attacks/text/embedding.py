"""Which tokens a batch held, and where: the vocabulary against the span of the first attention layer's gradient.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4.1. We project the vocabulary onto the null space once for all positions:
normalisation is linear up to a factor per row, so a position only adds its own projection.

A position's set may hold more tokens than the batch had there, however exact the gradient: with ``E[a] + P[1]``, ``E[a] + P[2]`` and ``E[b] +
P[2]`` in the span, ``E[b] + P[1]`` is their sum and difference. The span's rank is the number of distinct tokens and positions less the parts that
they fall into, not the number of tokens. Only the second layer tells them apart.

Shape letters: V vocabulary, H features, K directions of the sketch, C candidates.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.text.span import Span
from glasshouse.attacks.text.transformer import Embedding

__all__ = ["Vocabulary", "vocabulary"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """Every token's part in the null space, ready for any position.

    Attributes:
        embedding: of the model.
        span: of the first attention layer's gradient.
        parts: (V, K), each row of the token embedding, weighted and centred, on the sketch.
        centred: (V, H), token embeddings less their mean where the norm takes it.
        squares: (V,), their squared norms.
        least: the distance up to which a token passes whatever the noise.
    """

    embedding: Embedding
    span: Span
    parts: Tensor
    centred: Tensor
    squares: Tensor
    least: float

    def tokens_at(self, position: int, *, most: int) -> tuple[Tensor, Tensor]:
        """Tokens that fit the span at a position, nearest first and ``most`` at most, and their distances: (C,) each."""
        norm, sketch = self.embedding.norm, self.span.sketch
        parts, squares = self.parts, self.squares
        if self.embedding.positions is not None:
            row = self._centre(self.embedding.positions[position])
            parts = parts + (row * norm.weight) @ sketch
            squares = squares + 2 * (self.centred @ row) + row.square().sum()
        scale = (squares / self.centred.shape[1] + norm.eps).rsqrt()
        parts = parts * scale[:, None]
        if norm.bias is not None:
            parts = parts + norm.bias @ sketch
        near = (parts.norm(dim=1) <= self.span.widest(self.least) * self._largest()).nonzero()[:, 0]
        seen = self.embedding.attended(near, position)
        distances = self.span.distances(seen)
        inside = distances <= self.span.limits(seen, self.least)
        near, distances = near[inside], distances[inside]
        order = distances.argsort()[:most]
        return near[order], distances[order]

    def _largest(self) -> float:
        """No token's input has a larger norm where the layer (or its lens) sees it."""
        norm = self.embedding.norm
        largest = float(norm.weight.abs().max()) * self.centred.shape[1] ** 0.5
        shift = 0.0 if norm.bias is None else float(norm.bias.norm())
        lens = 1.0 if self.span.lens is None else float(torch.linalg.matrix_norm(self.span.lens, 2))
        return (largest + shift) * lens

    def _centre(self, rows: Tensor) -> Tensor:
        return rows if self.embedding.norm.bias is None else rows - rows.mean(-1, keepdim=True)


def vocabulary(embedding: Embedding, span: Span, *, least: float) -> Vocabulary:
    """Project the vocabulary of a model, for all positions at once."""
    centred = embedding.tokens
    if embedding.norm.bias is not None:
        centred = centred - centred.mean(-1, keepdim=True)
    return Vocabulary(
        embedding=embedding,
        span=span,
        parts=centred @ (embedding.norm.weight[:, None] * span.sketch),
        centred=centred,
        squares=centred.square().sum(1),
        least=least,
    )

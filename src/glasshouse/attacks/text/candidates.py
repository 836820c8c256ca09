"""Find the tokens of a batch and their positions: test the vocabulary against the first layer's span.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4.1. Theirs tests the whole vocabulary at every
    position. With or without normalisation, the attention input of a token is, up to a factor, the sum of a
    token part and a position part. So with the directions of all positions added to the span, one pass over
    the vocabulary finds the tokens that occur anywhere, and only these are tested position by position.

The set of a position may contain more tokens than the batch had there, however exact the gradient: with
``E[a] + P[1]``, ``E[a] + P[2]`` and ``E[b] + P[2]`` in the span, ``E[b] + P[1]`` is a linear combination of
them. The rank is the number of distinct tokens and positions minus the connected components that they form,
not the number of tokens; no tolerance changes that. Only the second layer resolves the ambiguity.

Shape letters: V vocabulary, T tokens, L positions, D width, C candidates.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.text.span import Span, with_directions
from glasshouse.models.text.base import TextModel

ROWS = 8192
"""Tokens of the vocabulary that are tested at once."""


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
    passing = []
    for start in range(0, size if wide.free else 0, ROWS):
        tokens = torch.arange(start, min(start + ROWS, size), device=device)
        passing.append(tokens[_nearest(wide, received(model, tokens, 0), least)])
    if not wide.free and span.free:  # with the positions the span is the whole space: keep every token
        passing = [torch.arange(size, device=device)]
    tokens = torch.cat(passing) if passing else torch.zeros(0, dtype=torch.int64, device=device)
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

"""Claims of attacks on language models.

Shape letters: B sentences, L tokens per sentence, T claimed tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim
from glasshouse.registry import Card
from glasshouse.wire import Batch, Terms

__all__ = ["OccurredTokens", "Sequences"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sequences(Claim):
    """Asserts: These were private sentences. B = 0: it could read nothing, which is scored as a miss.

    Attributes:
        tokens: (B, L) int64, L at most that of the architecture; padded with the vocabulary's ``pad``.
            Marks (start, end) are optional: sentences are compared without them.
        confidence: (B,), any unit, higher is more confident. If there are more sentences than examples
            announced on the wire, only the most confident are scored.
        source: the client that the attack attributes each sentence to, (B,), -1 unknown; None: no claim.
    """

    card: ClassVar[Card] = Card(summary="these were private sentences")
    kind: ClassVar[str] = "sequences"
    metrics: ClassVar[tuple[str, ...]] = ("exact_sentences", "token_accuracy")
    ranked: ClassVar[bool] = True
    guessed: ClassVar[bool] = True
    may_be_empty: ClassVar[bool] = True

    tokens: Tensor
    confidence: Tensor
    source: Tensor | None = None

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Sequences":
        length = terms.architecture.input_shape[0]
        return cls(about=about, tokens=torch.zeros((0, length), dtype=torch.int64), confidence=torch.zeros(0))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class OccurredTokens(Claim):
    """Asserts: These tokens occur in the private sentences, at unspecified positions. T = 0: none was read.

    Attributes:
        ids: (T,) int64, without duplicates.
        confidence: (T,), any unit, higher is more confident.
    """

    card: ClassVar[Card] = Card(summary="these tokens occur in the private sentences")
    kind: ClassVar[str] = "occurred_tokens"
    metrics: ClassVar[tuple[str, ...]] = ("tokens_named", "tokens_named_right")
    guessed: ClassVar[bool] = True
    may_be_empty: ClassVar[bool] = True

    ids: Tensor
    confidence: Tensor

    @classmethod
    def guess(cls, examples: Batch, reads: str) -> Tensor:
        """The different tokens of the guessed sentences."""
        del reads
        tokens: Tensor = torch.unique(examples.inputs)
        return tokens

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "OccurredTokens":
        del terms
        return cls(about=about, ids=torch.zeros(0, dtype=torch.int64), confidence=torch.zeros(0))

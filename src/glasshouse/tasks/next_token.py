"""Predict every token of a sentence from those before it, by cross-entropy.

Shape letters: B sentences, L tokens, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task, Unknown
from glasshouse.tokens.vocabulary import Vocabulary


@final
@dataclass(frozen=True, kw_only=True)
class NextToken(Task):
    """Mean cross-entropy over the real tokens of each sentence but its first.

    Args:
        vocabulary: of the sentences.
        length: L.
        classes: number of classes of the sentences, which the loss does not use; known to nulls.
    """

    card: ClassVar[Card] = Card(summary="every next token of a sentence, by cross-entropy")
    name: ClassVar[str] = "next_token"
    utility: ClassVar[str] = "token accuracy"
    unknown: ClassVar[Unknown] = "searched"

    vocabulary: Vocabulary
    length: int
    classes: int = 2

    @property
    def outputs(self) -> tuple[int, ...]:
        """(L, V)."""
        return (self.length, self.vocabulary.size)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The class of a sentence, which the loss does not use."""
        return ()

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """One whole number per sentence."""
        if labels.ndim == 1 and not labels.is_floating_point():
            return None
        return "labels (B,), whole numbers", f"shape {tuple(labels.shape)} of {labels.dtype}"

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Mean cross-entropy of the next tokens of each sentence, (B,); padding does not count."""
        del labels
        counts = self.vocabulary.real(inputs)[:, 1:].to(outputs.dtype)
        each = F.cross_entropy(outputs[:, :-1].transpose(1, 2), inputs[:, 1:], reduction="none")
        return (each * counts).sum(1) / counts.sum(1).clamp_min(1)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Share of the next tokens that the largest logit names, (B,)."""
        del labels
        counts = self.vocabulary.real(inputs)[:, 1:].double()
        hits = (outputs[:, :-1].argmax(-1) == inputs[:, 1:]).double() * counts
        return hits.sum(1) / counts.sum(1).clamp_min(1)

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """Share of the most common token after the first."""
        del labels
        tokens = inputs[:, 1:][self.vocabulary.real(inputs)[:, 1:]]
        return float(tokens.bincount().max() / len(tokens))

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """Classes drawn from the public ones."""
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]

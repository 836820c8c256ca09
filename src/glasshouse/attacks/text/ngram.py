"""An n-gram language model, fitted on the adversary's own sentences, to score sentences.

Source: MacKay & Peto 1995, "A hierarchical Dirichlet language model", Natural Language Engineering 1(3): the
counts after a context are smoothed with the prediction of the shorter context, with a fixed weight.

Shape letters: N sentences, L tokens, V vocabulary, T tokens of all sentences, K distinct n-grams.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.tokens.vocabulary import Vocabulary

ORDER: Final = 3
"""Tokens of the longest n-gram; keys of three fit into 64 bits up to two million tokens."""
WEIGHT: Final = 2.0
"""Weight of the shorter context, in observations."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class NGrams:
    """Counts of n-grams of every order up to ``ORDER``.

    Attributes:
        vocabulary: of the tokens.
        grams: for every order, n-grams as numbers (K,) in ascending order, and their counts.
        contexts: for every order, likewise the n-grams without their last token.
    """

    vocabulary: Vocabulary
    grams: tuple[tuple[Tensor, Tensor], ...]
    contexts: tuple[tuple[Tensor, Tensor], ...]

    def losses(self, tokens: Tensor) -> Tensor:
        """Negative log-likelihood of sentences (N, L), the mean over each one's tokens: (N,), in nats.

        Lower is likelier; ``log V`` for a uniform distribution. The logarithm of perplexity.
        """
        real = self.vocabulary.real(tokens)
        chances = torch.full((int(real.sum()),), 1 / self.vocabulary.size, dtype=torch.float64)
        keys = _keys(tokens, real, self.vocabulary.size + 1)
        for key, gram, context in zip(keys, self.grams, self.contexts, strict=True):
            there, before = _look_up(key, gram), _look_up(key // (self.vocabulary.size + 1), context)
            chances = (there + WEIGHT * chances) / (before + WEIGHT)
        each = torch.zeros(tokens.shape, dtype=torch.float64)
        each[real] = -chances.log()
        return each.sum(1) / real.sum(1).clamp_min(1)


def count_ngrams(tokens: Tensor, vocabulary: Vocabulary) -> NGrams:
    """Fit the model on padded sentences (N, L).

    Examples:
        >>> words = Vocabulary(size=9, pad=0, end=1)
        >>> model = count_ngrams(torch.tensor([[5, 6, 7, 1], [5, 6, 8, 1]]), words)
        >>> said, shuffled = model.losses(torch.tensor([[5, 6, 7, 1], [7, 5, 1, 6]])).tolist()
        >>> said < shuffled
        True
    """
    tokens = tokens.cpu()
    keys = _keys(tokens, vocabulary.real(tokens), vocabulary.size + 1)
    return NGrams(
        vocabulary=vocabulary,
        grams=tuple(torch.unique(key, return_counts=True) for key in keys),
        contexts=tuple(torch.unique(key // (vocabulary.size + 1), return_counts=True) for key in keys),
    )


def _keys(tokens: Tensor, real: Tensor, base: int) -> list[Tensor]:
    """For every order the n-gram that ends at each non-padding token, as one number: (T,) each."""
    padded = torch.cat([torch.full((len(tokens), ORDER - 1), base - 1), tokens], dim=1)
    last = [padded[:, ORDER - 1 - back : padded.shape[1] - back][real] for back in range(ORDER)]
    keys = [last[0]]
    for order in range(1, ORDER):
        keys.append(keys[-1] + last[order] * base**order)
    return keys


def _look_up(keys: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """The counts of ``keys`` (T,); 0 for those that never occur."""
    known, counts = table
    places = torch.searchsorted(known, keys).clamp_max(len(known) - 1)
    return torch.where(known[places] == keys, counts[places], 0).double()

"""Sentences: token ids, padded at the end to a fixed length.

Shape letters: B sentences, L tokens, R candidates, N originals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.modalities import guesses
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.outside import limits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tokens.vocabulary import Vocabulary

SMOOTHING: Final = 0.5
"""Weight of the single-token frequencies, relative to the count of a pair of tokens seen once."""


@final
@dataclass(frozen=True, kw_only=True)
class Sentence(Modality):
    """Sentences of at most ``length`` tokens of one vocabulary.

    Args:
        vocabulary: number of tokens and special tokens; public.
        length: L, the longest that the model reads.
    """

    card: ClassVar[Card] = Card(summary="sentences: token ids of a public vocabulary, padded to one length")
    name: ClassVar[str] = "sentence"
    noun: ClassVar[str] = "sentence"
    nouns: ClassVar[str] = "sentences"
    metrics: ClassVar[tuple[str, ...]] = ("exact_sentences", "token_accuracy", "rouge_l")
    continuous: ClassVar[bool] = False
    near: ClassVar[float] = 0.1  # one word of ten differs

    vocabulary: Vocabulary
    length: int

    def __post_init__(self) -> None:
        if not hasattr(self.vocabulary, "size"):  # a number, from whoever counted the tokens
            raise BadValue(
                "modality 'sentence'",
                needs="vocabulary: a Vocabulary, with the padding token",
                got=f"a {type(self.vocabulary).__name__}",
                fix="give Vocabulary(size=V, pad=0), with the numbers of the tokenizer",
            )
        if not 1 <= self.length <= limits.TOKENS or self.vocabulary.size > limits.VOCABULARY:
            raise BadValue(
                "modality 'sentence'",
                needs=f"length from 1 to {limits.TOKENS:,}, at most {limits.VOCABULARY:,} tokens",
                got=f"length {self.length}, {self.vocabulary.size:,} tokens",
                fix="give the longest sentence that the model reads",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """(L,)."""
        return (self.length,)

    @property
    def dtype(self) -> torch.dtype:
        """int64."""
        return torch.int64

    @property
    def size_words(self) -> str:
        """The longest sentence."""
        return f"{self.length} tokens"

    @property
    def range(self) -> tuple[float, float]:
        """The first and the last token."""
        return 0.0, float(self.vocabulary.size - 1)

    def violation(self, inputs: Tensor) -> tuple[str, str] | None:
        """Tokens that are not in the vocabulary."""
        if bool(((inputs >= 0) & (inputs < self.vocabulary.size)).all()):
            return None
        return f"tokens from 0 to {self.vocabulary.size - 1}", f"{int(inputs.min())} to {int(inputs.max())}"

    def received(self, inputs: Tensor) -> Tensor:
        """Padded to the length: loaders pad a batch to its longest sentence."""
        missing = self.length - inputs.shape[1]
        return F.pad(inputs.long(), (0, missing), value=self.vocabulary.pad) if missing > 0 else inputs.long()

    def project(self, inputs: Tensor) -> Tensor:
        """Clipped to the vocabulary."""
        return inputs.clamp(0, self.vocabulary.size - 1)

    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """Share of the positions with another token, over those that are real in either."""
        real = self.vocabulary.real
        either = real(candidates)[:, None] | real(originals)[None]
        differ = (candidates[:, None] != originals[None]) & either
        return differ.double().sum(2) / either.double().sum(2).clamp_min(1)

    def likenesses(self, candidates: Tensor, originals: Tensor) -> Mapping[str, Tensor]:
        """The same words in another order; the same rare words, each worth as much as it is rare."""
        every = torch.cat([candidates, originals.to(candidates.device)])
        words, places = torch.unique(every, return_inverse=True)
        counts = torch.zeros(len(every), len(words), dtype=torch.float64, device=every.device)
        counts.scatter_add_(1, places, self.vocabulary.real(every).double())
        has = (counts > 0).double()
        counts /= counts.norm(dim=1, keepdim=True).clamp_min(1e-12)
        first = len(candidates)
        worth = -((1 + has[first:].sum(0)) / (1 + len(originals))).log()
        return {
            "the same words in another order": counts[:first] @ counts[first:].T,
            "the same rare words": (has[:first] * worth) @ has[first:].T,
        }

    def nulls(self) -> Sequence[Null]:
        """Padding; frequent, random and modelled sentences; a random sentence of the victim's label."""
        return (
            Null(name="empty sentence", knows="nothing", guess=self._empty, steady=True),
            Null(name="most frequent tokens by position", knows="domain", guess=frequent_tokens, steady=True),
            Null(name="samples of a language model", knows="domain", guess=language_model),
            *guesses.drawn(self.noun),
        )

    def _empty(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        tokens = torch.full((wanted.count, self.length), self.vocabulary.pad)
        return Batch(inputs=tokens, labels=guesses.labels_for(auxiliary, wanted, rng))

    def probes(self, count: int, draws: torch.Generator) -> Tensor:
        """Sentences of random tokens, of all lengths."""
        words = torch.tensor([t for t in range(self.vocabulary.size) if t not in self.vocabulary.marks])
        ends = torch.randint(1, self.length + 1, (count,), generator=draws).tolist()
        rows = [words[torch.randint(len(words), (end,), generator=draws)].tolist() for end in ends]
        return self.vocabulary.stack(rows, length=self.length)

    def display(self, example: Tensor) -> Display:
        """The token ids; a report with a tokenizer writes words instead."""
        return Display(text=" ".join(map(str, example.tolist())))


def vocabulary_of(inputs: Modality) -> Vocabulary | None:
    """The vocabulary of sentences; None: other examples."""
    return inputs.vocabulary if isinstance(inputs, Sentence) else None


def frequent_tokens(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """The most frequent token of the auxiliary sentences at each position."""
    tokens = auxiliary.inputs.mode(0).values.expand(wanted.count, -1).contiguous()
    return Batch(inputs=tokens, labels=guesses.labels_for(auxiliary, wanted, rng))


def language_model(auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
    """Samples of a bigram language model of the auxiliary sentences.

    Smoothed with the frequencies of single tokens; padding is modelled as a token, so that lengths are
    distributed as in the auxiliary sentences.
    """
    known, rows, chances = _pairs_of_tokens(auxiliary)
    draws = rng.torch()
    now = rows[torch.randint(len(rows), (wanted.count,), generator=draws), 0]
    positions = [now]
    for _ in range(rows.shape[1] - 1):
        now = torch.multinomial(chances[now], 1, generator=draws).squeeze(1)
        positions.append(now)
    tokens = known[torch.stack(positions, dim=1)]
    return Batch(inputs=tokens, labels=guesses.labels_for(auxiliary, wanted, rng.child("labels")))


@lru_cache(maxsize=guesses.KEPT)
def _pairs_of_tokens(auxiliary: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens that occur, the sentences as indices into them, and smoothed counts of bigrams."""
    known, rows = torch.unique(auxiliary.inputs, return_inverse=True)
    pairs = torch.zeros(len(known), len(known), dtype=torch.float64)
    pairs.index_put_(
        (rows[:, :-1].flatten(), rows[:, 1:].flatten()),
        torch.ones(rows[:, 1:].numel()).double(),
        accumulate=True,
    )
    single = torch.bincount(rows.flatten(), minlength=len(known)).double()
    return known, rows, pairs + SMOOTHING * single / single.sum()

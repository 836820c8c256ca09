"""Metrics of claimed sentences. Sentences are compared as token sequences without special tokens ("marks").

Metrics of similarity pair claims with private sentences, each once, so that the total similarity is largest;
a sentence without a pair is a miss. Shape letters: B private sentences, R claimed ones, L tokens, M sentences
among which one is identified.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor

from glasshouse.errors import BadValue, NothingClaimed, Undefined
from glasshouse.metrics.base import (
    ClaimKind,
    Hits,
    Metric,
    Reads,
    ScoreContext,
    Scores,
    nothing_claimed,
    rate_wording,
)
from glasshouse.metrics.match import UNMATCHED, assign
from glasshouse.registry import Card

Sentence = tuple[int, ...]


class SentenceMetric(Metric):
    """Base class of metrics of claimed sentences."""

    claim: ClassVar[ClaimKind] = "sequences"
    reads: ClassVar[Reads] = "tokens"


class SentenceHits(SentenceMetric, Hits):
    """Base class of those that are 0 or 1 per sentence."""


def words_of(name: str, tokens: Tensor, context: ScoreContext) -> list[Sentence]:
    """Sentences (N, L) as token sequences without special tokens; ``name`` is the calling metric.

    Raises:
        BadValue: the tokens are not whole numbers (N, L), or the context has no vocabulary.
    """
    if tokens.ndim != 2 or tokens.is_floating_point() or context.vocabulary is None:
        raise BadValue(
            f"metric '{name}'",
            needs="sentences (N, L) of whole numbers, and a vocabulary",
            got=f"{tuple(tokens.shape)} of {tokens.dtype}"
            + ("" if context.vocabulary else ", without a vocabulary"),
            fix="score claims about sentences, in an audit of sentences",
        )
    return context.vocabulary.words(tokens)


def likeness(one: Sentence, other: Sentence) -> float:
    """Similarity of two sentences, in [0, 1]: 1 for the same tokens at the same positions.

    The mean of the share of common tokens at any position (twice the overlap over the sum of lengths), and
    the share of the longer one's positions that have the same token in both.

    Examples:
        >>> likeness((5, 6, 7), (5, 6, 7)), likeness((5, 6), (6, 5)), likeness((5,), ())
        (1.0, 0.5, 0.0)
    """
    if not one or not other:
        return float(one == other)
    common = sum((Counter(one) & Counter(other)).values())
    placed = sum(a == b for a, b in zip(one, other, strict=False))
    return common / (len(one) + len(other)) + placed / (2 * max(len(one), len(other)))


def pair_sentences(truth: list[Sentence], claimed: list[Sentence]) -> list[Sentence | None]:
    """The claimed sentence paired with each private one; None where no claim remained.

    Examples:
        >>> pair_sentences([(5, 6), (7, 8)], [(7, 9)])
        [None, (7, 9)]
    """
    if not claimed:
        return [None] * len(truth)
    table = np.array([[-likeness(true, claim) for claim in claimed] for true in truth])
    return [None if j == UNMATCHED else claimed[j] for j in assign(table)]


def read_pairs(
    name: str, claimed: Tensor, truth: Tensor, context: ScoreContext
) -> list[tuple[Sentence, Sentence | None]]:
    """The private sentences in ``truth``, each with the claimed one paired with it."""
    true = words_of(name, truth, context)
    return list(zip(true, pair_sentences(true, words_of(name, claimed, context)), strict=True))


def _exact(name: str, wanted: Tensor, candidates: Tensor, context: ScoreContext) -> Scores:
    """1 for each of ``wanted`` that occurs in ``candidates``, each of which is matched at most once."""
    sentences, remaining = words_of(name, wanted, context), Counter(words_of(name, candidates, context))
    hits = np.zeros(len(sentences))
    for i, sentence in enumerate(sentences):
        if remaining[sentence] > 0 and sentence:
            remaining[sentence] -= 1
            hits[i] = 1.0
    return hits


@final
@dataclass(frozen=True, kw_only=True)
class ExactSentences(SentenceHits):
    """1 for every private sentence that is claimed word for word, else 0; each claim counts once."""

    card = Card(
        summary="share of the private sentences that are claimed word for word",
        source="Petrov et al. 2024, arXiv:2405.15586",
    )
    wording = rate_wording(
        label="sentences read word for word",
        headline="{} read word for word",
        sentence="read {} of the private sentences word for word",
        explanation="Share of the private sentences that the attack wrote down without one wrong word: "
        "higher is worse. Guessing reaches about 0 %, unless people write the same sentences.",
        severity="images",
        order=5,
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        return _exact("exact_sentences", truth, claimed, context)


@final
@dataclass(frozen=True, kw_only=True)
class ExactClaims(SentenceHits):
    """1 for every claimed sentence that is a private one word for word, else 0; each private one counts once.

    Raises:
        NothingClaimed: no sentence was claimed.
    """

    card = Card(summary="share of the claimed sentences that are private ones, word for word")
    wording = rate_wording(
        label="claimed sentences that are right",
        sentence="claimed sentences of which {} are private ones, word for word",
        explanation="Share of the sentences that the attack wrote down which are private ones without one "
        "wrong word: higher is worse, since an adversary can believe what it reads.",
        severity="other",
        order=412,
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        if not len(claimed):
            raise nothing_claimed("exact_claims", "claimed sentence", "exact_sentences")
        return _exact("exact_claims", claimed, truth, context)


@final
@dataclass(frozen=True, kw_only=True)
class TokenAccuracy(SentenceMetric):
    """Share of a private sentence's tokens that the paired claim has at the same position, per sentence."""

    card = Card(summary="share of the private tokens that are claimed at their place, after pairing")
    wording = rate_wording(
        label="tokens read in place",
        sentence="read {} of the private words (tokens) at their place",
        explanation="Share of the tokens (words or parts of words) of the private sentences that were read "
        "at their place: higher is worse. Guessing reaches what common words give away.",
        severity="images",
        order=68,
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        pairs = read_pairs("token_accuracy", claimed, truth, context)
        return np.array([_placed(true, claim or ()) for true, claim in pairs])


def _placed(true: Sentence, claim: Sentence) -> float:
    return sum(a == b for a, b in zip(true, claim, strict=False)) / len(true) if true else float(not claim)


@final
@dataclass(frozen=True, kw_only=True)
class SentenceIdentification(SentenceHits):
    """1 where the paired claim is more similar to its private sentence than to M - 1 others, else 0.

    The others are held-out sentences of the same number of tokens, or of the closest available ones. A tie
    counts against the attack. Chance is 1/M for a claim that is independent of the sentence.

    Args:
        others: M - 1.
    """

    card = Card(
        summary="share of private sentences that their claim is most like, among M of the same length"
    )
    wording = rate_wording(
        label="sentence identification",
        sentence="wrote down enough to pick out {} of the private sentences among others of the same length",
        explanation="How often the right sentence is found among others of the same length from what the "
        "attack wrote down: higher is worse; guessing finds 1 in as many as there are candidates.",
        severity="images",
        order=66,
        chance="1/M, M = others + 1",
    )
    requires = frozenset({"distractors"})

    others: int = 19

    def chance(self, context: ScoreContext) -> float | None:
        del context
        return 1 / (self.others + 1)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        name = "sentence_identification"
        pool = [] if context.distractors is None else words_of(name, context.distractors, context)
        if len(pool) < self.others:
            raise Undefined(
                f"metric '{name}'",
                needs=f"{self.others} other sentences",
                got=str(len(pool)),
                fix="raise audit.distractors, or lower the metric's 'others'",
            )
        pairs = read_pairs(name, claimed, truth, context)
        return np.array([self._identifies(*pair, pool) for pair in pairs], dtype=np.float64)

    def _identifies(self, true: Sentence, claim: Sentence | None, pool: list[Sentence]) -> bool:
        if claim is None:
            return False
        near = sorted(pool, key=lambda other: abs(len(other) - len(true)))[: self.others]
        return likeness(true, claim) > max(likeness(other, claim) for other in near)


@final
@dataclass(frozen=True, kw_only=True)
class TokensNamed(SentenceMetric):
    """Share of a private sentence's distinct tokens that were named, per sentence."""

    card = Card(summary="share of the tokens of the private sentences that an attack names, places aside")
    wording = rate_wording(
        label="words named",
        sentence="named {} of the words (tokens) that occur in private sentences",
        explanation="Share of the different tokens of a private sentence that the attack named, without "
        "saying where they stand: higher is worse. Guessing reaches what common words give away.",
        severity="labels",
        order=390,
    )
    claim = "occurred_tokens"
    reads = "ids"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        named = set(claimed.tolist())
        every = [set(s) for s in words_of("tokens_named", truth, context)]
        return np.array([len(s & named) / len(s) if s else 0.0 for s in every])


@final
@dataclass(frozen=True, kw_only=True)
class TokensNamedRight(Hits):
    """1 for every named token that occurs in some private sentence, else 0; special tokens do not count.

    Raises:
        NothingClaimed: no token was named.
    """

    card = Card(summary="share of the tokens that an attack names which occur in the private sentences")
    wording = rate_wording(
        label="named words that occur",
        sentence="named words (tokens) of which {} occur in private sentences",
        explanation="Share of the tokens named by the attack that occur in the private sentences: higher is "
        "worse.",
        severity="other",
        order=425,
    )
    claim = "occurred_tokens"
    reads = "ids"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        name = "tokens_named_right"
        occurring = {token for sentence in words_of(name, truth, context) for token in sentence}
        marks = context.vocabulary.marks if context.vocabulary else frozenset()
        named = [token for token in claimed.tolist() if token not in marks]
        if not named:
            raise NothingClaimed(
                f"metric '{name}'", needs="at least one named token", got="none", fix="look at 'tokens_named'"
            )
        return np.array([float(token in occurring) for token in named])

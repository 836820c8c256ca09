"""ROUGE of claimed sentences, by the package `rouge-score`.

Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries". Computed on the model's tokens,
not on words split from decoded text as in most papers; with subword tokenizers that changes little, and
special tokens and spaces do not count. Where we differ: if a sentence has fewer than two tokens, every ROUGE
is 1 for equal sentences, else 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor

from glasshouse.errors import not_installed
from glasshouse.metrics.base import ScoreContext, Scores, Wording
from glasshouse.metrics.text.sentences import SentenceMetric, read_pairs
from glasshouse.registry import Card

try:
    from rouge_score import rouge_scorer
except ImportError as error:
    raise not_installed("metrics of ROUGE", "rouge-score", error, extra="text") from error

SOURCE = "Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries"


@final
class _Spaces:
    """Tokenizer for the package: token ids separated by spaces count as its words."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


class RougeMetric(SentenceMetric):
    """The F-measure of one kind of ROUGE."""

    kind: ClassVar[str]

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """One number in [0, 1] per private sentence; 0 where it has no paired claim."""
        scorer = rouge_scorer.RougeScorer([self.kind], tokenizer=_Spaces())
        pairs = read_pairs(self.kind, claimed, truth, context)
        return np.array([_one(scorer, self.kind, *pair) for pair in pairs])


def _one(scorer: Any, kind: str, true: Sequence[int], claim: Sequence[int] | None) -> float:
    if claim is None or min(len(true), len(claim)) < 2:
        return float(claim is not None and tuple(true) == tuple(claim))
    texts = [" ".join(map(str, tokens)) for tokens in (true, claim)]
    return float(scorer.score(*texts)[kind].fmeasure)


def _wording(label: str, what: str, order: int) -> Wording:
    return Wording(
        label=label,
        sentence="rebuilt private sentences at " + label + " {}",
        explanation=f"Share of {what} that private and claimed sentences have in common (F-measure): 1 is "
        "the same, higher is worse. Guessing reaches what common words give away.",
        severity="images",
        order=order,
        unit="share",
        range=(0.0, 1.0),
    )


@final
@dataclass(frozen=True, kw_only=True)
class Rouge1(RougeMetric):
    """ROUGE-1: tokens in common, at any position."""

    card = Card(
        summary="ROUGE-1 of the paired claim: tokens in common, F-measure", source=SOURCE, extra="text"
    )
    wording = _wording(
        "ROUGE-1",
        "single tokens",
        72,
    )
    kind = "rouge1"


@final
@dataclass(frozen=True, kw_only=True)
class Rouge2(RougeMetric):
    """ROUGE-2: common pairs of neighbouring tokens."""

    card = Card(
        summary="ROUGE-2 of the paired claim: pairs of tokens in common, F-measure",
        source=SOURCE,
        extra="text",
    )
    wording = _wording(
        "ROUGE-2",
        "pairs of neighbouring tokens",
        71,
    )
    kind = "rouge2"


@final
@dataclass(frozen=True, kw_only=True)
class RougeL(RougeMetric):
    """ROUGE-L: the longest common subsequence."""

    card = Card(
        summary="ROUGE-L of the paired claim: longest common subsequence, F-measure",
        source=SOURCE,
        extra="text",
    )
    wording = _wording(
        "ROUGE-L",
        "tokens in the same order",
        73,
    )
    kind = "rougeL"

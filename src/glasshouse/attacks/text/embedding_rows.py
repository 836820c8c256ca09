"""Identify tokens that occurred by the rows of the embedding that changed.

Source: Melis et al. 2019, arXiv:1805.04049, section 4.1: "Leakage from the embedding layer".

A token's vector gets a gradient where the token occurs. If the output is tied to the embedding, every row
gets one, too: the probability of the token times the last hidden state. It is small and similar for tokens
that do not occur, so outlying rows are those of tokens read or predicted.

Breaks when: embeddings are frozen; noise is larger than a row's gradient. Gives neither the order of tokens
nor the sentence that a token is from.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.local_steps import SENTENCES
from glasshouse.attacks.parts.readout.summed import READING_NEEDS
from glasshouse.attacks.sequences import OccurredTokens
from glasshouse.attacks.text.reading import Answer, SentenceAttack, answers
from glasshouse.errors import Inapplicable
from glasshouse.limits import Positive
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT = "attack 'embedding_rows'"
SPREAD: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingRows(SentenceAttack):
    """Tokens whose row of the embedding's gradient is an outlier.

    Args:
        deviations: minimum excess of the logarithm of a row's norm over the median row's, in standard
            deviations, estimated from the median absolute deviation.
        factor: minimum ratio of a row's norm to the median row's; both must hold.
    """

    card: ClassVar[Card] = Card(
        title="Rows of the embedding",
        summary="which tokens occurred: rows of the embedding that moved",
        source="Melis et al. 2019, arXiv:1805.04049, section 4.1",
        claims=("occurred_tokens",),
        threat="server, sees single updates or their sum",
        control={
            "setting": "a small GPT, one sentence, no defence",
            "scenario": {"data": {"source": "sentences"}, "model": {"name": "small_gpt"}},
            "metric": "tokens_named",
        },
        offers=(Offer(strength=1.0),),
    )
    name: ClassVar[str] = "embedding_rows"
    needs: ClassVar[Needs] = replace(READING_NEEDS, modalities=SENTENCES)
    budget: ClassVar[None] = None

    deviations: Positive = 6.0
    factor: Positive = 2.0

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim per update, or about the cohort if only the sum is seen.

        Raises:
            Inapplicable: the embedding was not sent.
        """
        del rng  # nothing is drawn
        return tuple(self._claim(answer) for answer in answers(view, subject=SUBJECT))

    def _claim(self, answer: Answer) -> OccurredTokens:
        ids = self.named(answer)
        return OccurredTokens(about=answer.about, ids=ids, confidence=row_norms(answer)[ids])

    def named(self, answer: Answer) -> Tensor:
        """Tokens that occurred, (T,).

        Raises:
            Inapplicable: the embedding was not sent.
        """
        norms = row_norms(answer)
        logs = norms.log()
        middle = logs.median()
        spread = SPREAD * (logs - middle).abs().median()
        above = logs - middle
        limit = torch.maximum(self.deviations * spread, torch.tensor(self.factor).log())
        ids = (above > limit).nonzero()[:, 0] if bool(middle.isfinite()) else norms.nonzero()[:, 0]
        marks = answer.model.vocabulary
        return torch.tensor([t for t in ids.tolist() if t not in (marks.pad, marks.start, marks.end)]).long()


def row_norms(answer: Answer) -> Tensor:
    """Norm of every token's row in the embedding's gradient, (V,).

    Raises:
        Inapplicable: the embedding was not sent.
    """
    table = answer.model.anatomy.tokens
    names = [f"{name}.weight" for name, one in answer.model.named_modules() if one is table]
    for name in names:
        if name in answer.sent:
            norms: Tensor = torch.linalg.vector_norm(answer.sent[name].double(), dim=1)
            return norms.cpu()
    raise Inapplicable(
        SUBJECT,
        needs="the gradient of the tokens' embedding",
        got=", ".join(sorted(answer.sent)[:6]) or "nothing",
        fix="let clients train the embedding, or use dager, which needs only attention layers",
    )

"""Membership inference for a known sentence, by its distance from the span of a client's gradient.

Source: "ProjRes", arXiv:2604.21197 (only the abstract was read): the residual of a sentence's hidden states
    projected onto the span of a layer's gradient separates members from non-members, without shadow models.
    Here the layers are the first two attention layers, and the span is that of ``span``.

Breaks when: the span is the whole space (as many tokens as the layer is wide), or the challenge's sentences
share prefixes with the client's: every such prefix is in its gradient, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, ClientScores, Needs
from glasshouse.attacks.parts.local_steps import LINEAR, SENTENCES
from glasshouse.attacks.text.reading import SentenceAttack, answers, input_spans
from glasshouse.attacks.text.span import Span
from glasshouse.limits import Fraction, Share
from glasshouse.models.text.base import TextModel
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT = "attack 'projres'"
NEEDS = "the gradients of one of the first two attention layers, or of adapters beside it"


@final
@dataclass(frozen=True, kw_only=True)
class ProjRes(SentenceAttack):
    """Score clients by the distance of the challenge's sentences from the span of their gradients.

    Args:
        least: the distance from a span up to which a token counts as inside whatever the noise.
        share: of a sentence's tokens that must be inside for a client to be named.
    """

    card: ClassVar[Card] = Card(
        title="ProjRes",
        summary="who trained on a known sentence, by its distance from the span of a gradient",
        source="arXiv:2604.21197",
        claims=("clients",),
        threat="server, sees single updates, knows a sentence",
        control={
            "setting": "a small GPT, two sentences a client, 6 of 12 clients hold the known one",
            "scenario": {
                "data": {"source": "sentences", "examples": 2, "members": 6},
                "model": {"name": "small_gpt", "width": 64},
                "federation": {"clients": 12, "batch_size": 2},
                "grants": {"challenge": True},
                "audit": {"victims": 12},
            },
            "metric": "auc",
        },
        offers=(Offer(strength=0.8, seconds=1),),
    )
    name: ClassVar[str] = "projres"
    needs: ClassVar[Needs] = Needs(
        modalities=SENTENCES,
        sees=frozenset({"broadcast", "update"}),
        scope="run",
        grants=frozenset({"challenge"}),
        optimizers=LINEAR,
    )
    budget: ClassVar[None] = None

    least: Share = 2e-3
    share: Fraction = 0.95

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim about all rounds: each client's best round counts; clients without update are no members.

        Raises:
            Inapplicable: nothing of the first two attention layers was sent.
        """
        del rng  # nothing is drawn
        challenge = view.grants.challenge
        assert challenge is not None  # needs.grants
        scores = torch.full((view.terms.clients,), -1.0)
        inside = torch.zeros(view.terms.clients)
        for answer in answers(view, subject=SUBJECT):
            assert answer.about.client is not None  # needs.sees
            spans = input_spans(answer, subject=SUBJECT, needs=NEEDS, both=False)
            distance, share = residual(answer.model, spans, challenge.inputs, least=self.least)
            client = answer.about.client
            scores[client] = max(float(scores[client]), -distance)
            inside[client] = max(float(inside[client]), share)
        about = About(rounds=tuple(one.round for one in view.rounds))
        return (ClientScores(about=about, scores=scores, decisions=inside >= self.share),)


def residual(
    model: TextModel, spans: Sequence[Span | None], tokens: Tensor, *, least: float
) -> tuple[float, float]:
    """Mean distance of sentences (N, L) from the ``spans`` of an answer, in [0, 1], and the share inside.

    In next-token prediction the last token of a sentence has no loss, and is left out. If no span carries
    information: (1, 0).
    """
    with torch.no_grad():
        received = _received(model, tokens.to(model.anatomy.tokens.weight.device))
        judges = [(span, x) for span, x in zip(spans, received, strict=True) if span and span.free]
        if not judges:
            return 1.0, 0.0
        distances = torch.stack([span.distances(x) for span, x in judges])
        limits = torch.stack([span.limits(x, least) for span, x in judges])
    return float(distances.mean()), float((distances <= limits).all(0).double().mean())


def _received(model: TextModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs of the first two attention layers at every position that has a loss: (T, D) each."""
    real = model.vocabulary.real(tokens)
    places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    hidden = model.embed(tokens, places)
    after = model.through(0, hidden, places, real)
    counted = real & (real.long().cumsum(1) < real.sum(1, keepdim=True)) if model.predicts_tokens else real
    blocks = model.anatomy.blocks
    return blocks[0].attended(hidden)[counted], blocks[1].attended(after)[counted]

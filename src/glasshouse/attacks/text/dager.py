"""DAGER: recover whole sentences exactly from the gradients of a language model, by linear algebra.

Source: Petrov et al. 2024, "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS 2024,
    arXiv:2405.15586.

The rows of an attention layer's gradient lie in the span of its inputs. With fewer tokens in the batch than
the layer is wide, that span determines which tokens occurred (first layer) and in which order (second layer).
Nothing is optimised and no prior is used; a sentence is either in the gradient or not.

Where we differ: estimation of the span and its tolerance (``span``), one pass over the vocabulary
(``span.candidates``), cached keys and values (``prefixes``), and encoders (``sentences``).

Breaks when: a batch has as many distinct prefixes of sentences as the second attention layer is wide; clients
use Adam; noise is as large as the gradient of a single token: gradient matching (``lamp``) still works there,
at sixty times the cost.
"""

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar, final

import torch

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.local_steps import SENTENCES
from glasshouse.attacks.parts.readout.summed import READING_NEEDS
from glasshouse.attacks.sequences import Sequences
from glasshouse.attacks.text.prefixes import Found, Limits, grow
from glasshouse.attacks.text.reading import Answer, SentenceAttack, answers, heads_span, input_spans
from glasshouse.attacks.text.sentences import assemble
from glasshouse.attacks.text.span import candidates
from glasshouse.limits import Count, Share
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT = "attack 'dager'"
MOVED = 6.0
"""Tolerance on an input's distance after several local steps, in multiples of the expected distance."""


@final
@dataclass(frozen=True, kw_only=True)
class Dager(SentenceAttack):
    """Sentences whose every token lies in the span of two attention layers' gradients.

    Args:
        least: the distance from a span, relative to a vector's norm, up to which it counts as inside
            whatever the noise; noise detected in the gradient increases it.
        beam: prefixes kept per length, for each sentence behind the update (decoders).
        starts: of the search for whole sentences, for every position where one may end (encoders).
    """

    card: ClassVar[Card] = Card(
        title="DAGER",
        summary="whole sentences, exactly, from the span of two attention layers' gradients",
        source="Petrov et al. 2024, NeurIPS, arXiv:2405.15586",
        claims=("sequences",),
        threat="server, sees single updates or their sum",
        control={
            "setting": "a small GPT, one sentence, no defence",
            "scenario": {
                "data": {"source": "sentences"},
                "model": {"name": "small_gpt", "width": 64},
            },
            "metric": "exact_sentences",
        },
        offers=(Offer(strength=1.0, seconds=3),),
    )
    name: ClassVar[str] = "dager"
    needs: ClassVar[Needs] = replace(READING_NEEDS, modalities=SENTENCES)
    budget: ClassVar[None] = None

    least: Share = 2e-3
    beam: Count = 16
    starts: Count = 8

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim per update, or about the cohort if only the sum is seen.

        Raises:
            Inapplicable: nothing of the first two attention layers was sent.
        """
        return tuple(
            self._claim(answer, length=view.terms.architecture.input_shape[0], rng=rng.child(f"{number}"))
            for number, answer in enumerate(answers(view, subject=SUBJECT))
        )

    def _claim(self, answer: Answer, *, length: int, rng: Rng) -> Sequences:
        model = answer.model
        sentences = self.sentences(answer, length=length, generator=rng.child("starts").torch())
        tokens = torch.full((len(sentences), length), model.vocabulary.pad)
        for row, one in zip(tokens, sentences, strict=True):
            row[: len(one.tokens)] = torch.tensor(one.tokens)
        confidence = torch.tensor([float(one.own) for one in sentences])
        return Sequences(about=answer.about, tokens=tokens, confidence=confidence)

    def sentences(self, answer: Answer, *, length: int, generator: torch.Generator) -> list[Found]:
        """Sentences of up to ``length`` tokens behind an answer, most confident first.

        Empty if a span is the whole space.

        Raises:
            Inapplicable: one block, or nothing of the first two attention layers was sent.
        """
        model = answer.model
        needs = "the gradients of the first two attention layers, or of adapters beside them"
        first, second = input_spans(answer, subject=SUBJECT, needs=needs, both=True)
        assert first is not None
        assert second is not None
        with torch.no_grad():
            if not first.free or not second.free:
                return []
            shared = heads_span(model, 0, answer.sent) if model.anatomy.causal else None
            if answer.steps > 1:  # errors from changed and rounded parameters are not white noise
                first, second = (replace(span, allowance=MOVED) for span in (first, second))
                shared = replace(shared, allowance=MOVED) if shared else None
            which = candidates(model, first, length=length, least=self.least)
            if model.anatomy.causal:
                limits = Limits(least=self.least, beam=self.beam * answer.examples, length=length)
                return grow(model, second, shared, which.at, limits=limits)
            sets = list(takewhile(len, (which.at(place) for place in range(length))))
            return assemble(
                model,
                second,
                sets,
                least=self.least,
                sentences=answer.examples,
                starts=self.starts,
                generator=generator,
            )

"""The smallest attack on a batch of one sentence: at every place the token nearest to the span of layer 1."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from glasshouse.attacks.base import About, Needs
from glasshouse.attacks.sequences import OccurredTokens, Sequences
from glasshouse.models.build import build, load
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class ToyReader:
    """Reads one sentence off the values' gradient."""

    card: ClassVar[Card] = Card(
        summary="reads one sentence off layer 1",
        title="Toy reader",
        claims=("sequences", "occurred_tokens"),
        control={
            "setting": "one sentence, a small GPT",
            "scenario": {"data": {"source": "sentences"}, "model": {"name": "small_gpt"}},
            "metric": "exact_sentences",
        },
    )

    @property
    def needs(self):
        return Needs(sees=frozenset({"update"}), scope="update")

    @property
    def budget(self):
        return None

    def run(self, view, *, rng):
        broadcast, update = view.single(subject="attack 'toy_reader'")
        model = build(broadcast.architecture)
        load(model, broadcast.tensors)
        words, block = model.vocabulary, model.anatomy.blocks[0]
        rows = model.input_rows(0, update.tensors, parts=("value",)).double()
        _, sizes, basis = torch.linalg.svd(rows, full_matrices=False)
        basis = basis[: int((sizes > 1e-5 * sizes[0]).sum())]
        found = []
        with torch.no_grad():
            for place in range(broadcast.architecture.input_shape[0]):
                every = torch.arange(words.size)[:, None]
                x = block.attended(model.embed(every, torch.full_like(every, place))).double()[:, 0]
                far = (x - x @ basis.T @ basis).norm(dim=1) / x.norm(dim=1)
                if far.min() > 1e-3:
                    break
                found.append(int(far.argmin()))
        about = About(rounds=(update.round,), client=update.client)
        tokens = torch.tensor([found]) if found else torch.zeros(0, 1, dtype=torch.int64)
        ids = torch.unique(tokens)
        return (
            Sequences(about=about, tokens=tokens, confidence=torch.ones(len(tokens))),
            OccurredTokens(about=about, ids=ids, confidence=torch.ones(len(ids))),
        )

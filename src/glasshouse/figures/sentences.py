"""Private sentences next to reconstructions: the first victims of every attack that reconstructs text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

from glasshouse.attacks.sequences import Sequences
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence
from glasshouse.metrics.text.sentences import pair_sentences
from glasshouse.registry import Card
from glasshouse.results.exhibits import sentences
from glasshouse.results.records import Exhibit

SHOWN: Final = 12
NOTHING: Final = "–"


@final
@dataclass(frozen=True, kw_only=True)
class SentencesFigure:
    """Up to twelve private sentences of the first seed, each with the claim paired with it."""

    card: ClassVar[Card] = Card(summary="private sentences beside what an attack wrote down")
    reads: ClassVar[frozenset[type]] = frozenset({Sequences})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            group = next((g for g in attack.groups if g.of(Sequences) and g.decode is not None), None)
            if group is not None:
                yield _beside(cell, attack, group)


def _beside(cell: CellEvidence, attack: AttackEvidence, group: GroupEvidence) -> Exhibit:
    words, decode = group.context.vocabulary, group.decode
    assert words is not None  # such claims exist only in audits of sentences
    assert decode is not None  # checked by the caller
    names: list[str] = []
    rows: list[tuple[str, str, str]] = []
    for claim in group.of(Sequences):
        truth, _ = group.truth.batch(claim.about.rounds[0], claim.about.client)
        true = words.words(truth.inputs)
        client = "" if claim.about.client is None else f", client {claim.about.client}"
        pairs = pair_sentences(true, words.words(claim.tokens))
        for i, (one, claimed) in enumerate(zip(true, pairs, strict=True)):
            placed = sum(a == b for a, b in zip(one, claimed or (), strict=False))
            said = NOTHING if claimed is None else decode(claimed)
            names.append(f"round {claim.about.rounds[0]}{client}, sentence {i + 1}")
            rows.append((decode(one), said, f"{placed} of {len(one)}"))
        if len(rows) >= SHOWN:
            break
    return sentences(
        cell.place,
        attack.label,
        "The first private sentences, each with what the attack wrote down; not a selection.",
        columns=("private sentence", "claimed", "tokens in place"),
        rows=dict(zip(names[:SHOWN], rows[:SHOWN], strict=True)),
        file=group.file(f"sentences-{attack.key}").with_suffix(".json"),
        private=("private sentence", "claimed"),
    )

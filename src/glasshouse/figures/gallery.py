"""Originals next to reconstructions: the first victims of every attack that reconstructs images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence, pixels
from glasshouse.metrics.match import assign, mse_table, take
from glasshouse.registry import Card
from glasshouse.results.exhibits import pictures
from glasshouse.results.records import Exhibit

SHOWN: Final = 8


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Up to eight originals of the first seed, each with its reconstruction."""

    card: ClassVar[Card] = Card(summary="original images beside their reconstructions")
    reads: ClassVar[frozenset[type]] = frozenset({Reconstruction})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            group = next((g for g in attack.groups if g.of(Reconstruction)), None)
            if group is not None and is_drawn(group):
                yield _pictures(cell, attack, group)


def is_drawn(group: GroupEvidence) -> bool:
    """Whether examples are shown as pixels of a picture; others stand in text."""
    inputs = group.context.inputs
    shown = inputs is None or inputs.display(inputs.blank(1)[0]).pixels is not None
    return shown and group.truth.private.inputs.ndim == 4


def _pictures(cell: CellEvidence, attack: AttackEvidence, group: GroupEvidence) -> Exhibit:
    originals: list[Tensor] = []
    rebuilt: list[Tensor] = []
    names: list[str] = []
    for claim in group.of(Reconstruction):
        truth, _ = group.truth.batch(claim.about.rounds[0], claim.about.client)
        pairing = assign(mse_table(truth.inputs, claim.inputs))
        client = "" if claim.about.client is None else f", client {claim.about.client}"
        names += [f"round {claim.about.rounds[0]}{client}, example {i + 1}" for i in range(len(truth.inputs))]
        originals += truth.inputs.unbind()
        rebuilt += take(claim.inputs, pairing, grey=group.context.grey).unbind()
        if len(originals) >= SHOWN:
            break
    return pictures(
        cell.place,
        attack.label,
        "The first private examples, each with what the attack made of it; not a selection.",
        columns={
            "original": pixels(torch.stack(originals[:SHOWN])),
            "reconstruction": pixels(torch.stack(rebuilt[:SHOWN])),
        },
        file=group.file(f"gallery-{attack.key}"),
        rows=names[:SHOWN],
        private=("original", "reconstruction"),
    )

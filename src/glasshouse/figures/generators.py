"""Attacks that search a generator: its samples, bounds on its scores, the detected defence."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import DefenseGuess, GenerativeAttack, PriorSamples, Reconstruction
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence, pixels
from glasshouse.figures.generator_scale import CAPTION, COLUMNS, scale_rows
from glasshouse.figures.landscape import landscape
from glasshouse.metrics.statistics.shares import proportion_bounds
from glasshouse.registry import Card
from glasshouse.results.exhibits import pictures, table
from glasshouse.results.records import Exhibit

SHOWN: Final = 8


@final
@dataclass(frozen=True, kw_only=True)
class Generators:
    """Samples with the nearest auxiliary images, lower and upper bounds of the scores, the loss landscape."""

    card: ClassVar[Card] = Card(summary="attacks through a generator: samples, bounds, loss landscape")
    reads: ClassVar[frozenset[type]] = frozenset({DefenseGuess, PriorSamples})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            yield from _defense(cell, attack)
            if isinstance(attack.attack, GenerativeAttack):
                yield from _generator(cell, attack, attack.attack)


def _generator(cell: CellEvidence, attack: AttackEvidence, generative: GenerativeAttack) -> Iterator[Exhibit]:
    """Exhibits for the first federation only: the others repeat the cell with other seeds."""
    complete = (g for g in attack.groups if g.prior_samples is not None and g.auxiliary is not None)
    group = next(complete, None)
    if group is None:
        return
    yield _samples(cell, attack, group)
    terms = group.federation.transcript().terms
    prior: Callable[[Tensor, Tensor], Tensor] = generative.prior(
        terms, group.auxiliary if cell.auxiliary_given else None
    )
    yield table(
        cell.place,
        f"{attack.label}: lower and upper bounds for its generator",
        CAPTION,
        columns=COLUMNS,
        rows=scale_rows(cell.metrics, group, prior=prior, latent=generative.latent, run=cell.place.run),
    )
    if group.of(Reconstruction):
        arguments: Any = attack.settings.arguments
        yield from landscape(
            cell.place,
            f"{attack.label}: loss around the private image",
            group,
            distance=arguments.get("distance", "squared"),
            steps=arguments.get("local_steps", "simulate"),
        )


def _samples(cell: CellEvidence, attack: AttackEvidence, group: GroupEvidence) -> Exhibit:
    """Samples of the generator, each with the nearest auxiliary image, to show memorisation."""
    assert group.prior_samples is not None  # checked by the caller
    assert group.auxiliary is not None
    samples, auxiliary = group.prior_samples.inputs, group.auxiliary.inputs
    chosen_samples = samples[:: max(1, len(samples) // SHOWN)][:SHOWN]
    nearest = auxiliary[torch.cdist(chosen_samples.flatten(1), auxiliary.flatten(1)).argmin(1)]
    return pictures(
        cell.place,
        f"{attack.label}: samples of its generator",
        "What the generator draws without any update, each with the auxiliary image nearest to it.",
        columns={"sample": pixels(chosen_samples), "nearest auxiliary image": pixels(nearest)},
        file=group.file(f"samples-{attack.key}"),
        private=("nearest auxiliary image",),
    )


def _defense(cell: CellEvidence, attack: AttackEvidence) -> Iterator[Exhibit]:
    """How often the attack named the active defences, in their order."""
    guesses = attack.of(DefenseGuess)
    if not guesses:
        return
    right = " + ".join(d.name for d in cell.defenses) or "none"
    active = f"Active: {right}" if cell.defenses else "No defence was active"
    hits = sum(g.name == right for g in guesses)
    low, high = proportion_bounds(hits, len(guesses))
    counts = Counter(g.name for g in guesses).most_common()
    yield table(
        cell.place,
        f"{attack.label}: which defence it sees",
        f"{active}. The attack recognised that on {hits} of {len(guesses)} updates (share {low:.2f} to "
        f"{high:.2f}, 95 % interval).",
        columns=["named", "updates", "right"],
        rows=[[name, str(count), "yes" if name == right else ""] for name, count in counts],
    )

"""Attacks that search a generator: its samples, bounds on its scores, the detected defence, the loss.

The landscape is the loss that an attack minimises, along a line through the true image, with and without
adaptation. A defence that transforms the gradient moves the minimum away from the private image; applying the
same transformation to the candidate's gradient moves it back. Computed in scoring: it needs the ground truth,
and no attack sees it.

Source: Li et al. 2022 (GGL), arXiv:2203.15696, section 3 (the loss landscape with and without adaptation).
Where we differ: our line goes to an image of the generator, theirs follow two random latent directions.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import DefenseGuess, GenerativeAttack, PriorSamples, Reconstruction
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.matching.distance import Objective, objectives
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import Inapplicable
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence, pixels
from glasshouse.figures.generator_scale import CAPTION, COLUMNS, scale_rows
from glasshouse.metrics.statistics.shares import proportion_bounds
from glasshouse.registry import Card
from glasshouse.results.exhibits import line, lines, pictures, table
from glasshouse.results.records import Exhibit
from glasshouse.wire import Batch

SHOWN: Final = 8
OFFSETS: Final = tuple(i / 10 for i in range(-5, 11))
"""Positions on the landscape's line: 0 is the private image, 1 the generator's sample."""


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
    yield from _landscape(cell, attack, group)


def _landscape(cell: CellEvidence, attack: AttackEvidence, group: GroupEvidence) -> Iterator[Exhibit]:
    """Two lines: the loss above its minimum, with and without the detected transformation.

    Yields nothing if there is no single update, or none that can be matched.
    """
    about = next((claim.about for claim in group.of(Reconstruction)), None)
    if about is None or about.client is None or group.prior_samples is None or group.view is None:
        return
    truth, _ = group.truth.batch(about.rounds[0], about.client)
    arguments: Any = attack.settings.arguments
    distance, steps = arguments.get("distance", "squared"), arguments.get("local_steps", "simulate")
    try:
        client = replica(group.view(about.rounds, about.client), subject="loss landscape")
        images = None if group.auxiliary is None else group.auxiliary.inputs
        defense = detect.detect(client, images=images, rng=group.rng.child("landscape"))
        adaptations = [Adaptation(), detect.adaptation(defense, client, steps=steps)]
        same = adaptations[0] == adaptations[1]  # for want of a defence that moves the minimum
        chosen = adaptations[same:]
        both = objectives([client] * len(chosen), distance=distance, steps=steps, adaptive=chosen)
        losses = [_along(loss, truth, group.prior_samples.inputs) for loss in both]
        series = [line("adapted", OFFSETS, losses[-1]), line("not adapted", OFFSETS, losses[0])]
    except Inapplicable:
        return
    yield lines(
        cell.place,
        f"{attack.label}: loss around the private image",
        "On the line from the first victim's image (0) to a draw of the generator (1): how far the "
        "loss is above its minimum. An attack can find the image where the minimum is at 0.",
        labels=("place on the line", "loss above its minimum"),
        series=series,
    )


def _along(loss: Objective, truth: Batch, draws: Tensor) -> list[float]:
    """Loss above its minimum at ``OFFSETS``; the line goes from ``truth`` to equally many ``draws``."""
    far = draws[torch.arange(len(truth)) % len(draws)]
    offsets = torch.tensor(OFFSETS).view(-1, 1, 1, 1, 1)
    points = truth.inputs + offsets * (far - truth.inputs)
    labels = truth.labels.expand(len(points), -1)
    values = loss(points, labels, create_graph=False).detach()
    above: list[float] = (values - values.min()).tolist()
    return above


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

"""Attacks on private classes: images next to those of the nulls, quality per round, all nulls by metric.

Shape letters: L private classes, C channels, H and W pixels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from torch import Tensor

from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence, pixels
from glasshouse.metrics.base import Metric
from glasshouse.metrics.gallery import OWN_PRIOR, PRIOR, null_images
from glasshouse.registry import Card, load
from glasshouse.results.exhibits import line, lines, pictures, table
from glasshouse.results.records import Exhibit
from glasshouse.results.vocabulary import WITHOUT_UPLOADS

SHOWN: Final = 8
CURVE: Final = "ssim_private"
"""Metric of the quality curve over rounds."""
Claims = Sequence[tuple[GroupEvidence, Sequence[ClassRepresentatives]]]
"""Claims of each federation, sorted by the number of rounds they are based on."""


@final
@dataclass(frozen=True, kw_only=True)
class PrivateClasses:
    """For each attack: images of the first seed, quality over rounds, and every null of every metric."""

    card: ClassVar[Card] = Card(summary="attacks on private classes: pictures, quality per round, all nulls")
    reads: ClassVar[frozenset[type]] = frozenset({ClassRepresentatives})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            claims = _claims(attack)
            if claims:
                yield _pictures(cell, attack, claims)
                yield from _curve(cell, attack.label, claims)
                yield _nulls(cell, attack.label, claims)


def _claims(attack: AttackEvidence) -> Claims:
    every = ((group, group.of(ClassRepresentatives)) for group in attack.groups)
    return [(group, sorted(own, key=lambda c: len(c.about.rounds))) for group, own in every if own]


def _null_images(group: GroupEvidence, labels: Tensor) -> dict[str, Tensor]:
    gallery = group.context.gallery
    assert gallery is not None  # such claims exist only under data.domains
    prior = group.prior_samples
    return null_images(gallery, labels, None if prior is None else prior.inputs, group.further)


def _pictures(cell: CellEvidence, attack: AttackEvidence, claims: Claims) -> Exhibit:
    group, every = claims[0]
    assert group.context.gallery is not None  # such claims exist only under data.domains
    labels = every[-1].labels[:SHOWN]
    columns = {
        "private mean": group.context.gallery.people[labels],
        attack.label: every[-1].inputs[:SHOWN],
        **_null_images(group, labels),
    }
    return pictures(
        cell.place,
        attack.label,
        "The first private classes, each with what the attack and each null adversary show of it.",
        columns={name: pixels(images) for name, images in columns.items()},
        rows=[str(int(j)) for j in labels],
        file=group.file(f"classes-{attack.key}"),
        private=("private mean", attack.label),
    )


def _curve(cell: CellEvidence, attack: str, claims: Claims) -> Iterator[Exhibit]:
    metric: Metric = load("metrics", CURVE)()
    points: dict[int, list[float]] = {}
    null: list[float] = []
    name = PRIOR
    # Rounds of all seeds share a point; the null is that of the last round's classes.
    for group, every in claims:
        for claim in every:
            value = metric.score(claim.inputs, claim.labels, context=group.context).mean()
            points.setdefault(max(claim.about.rounds), []).append(float(value))
        images = _null_images(group, every[-1].labels)
        name = next(n for n in (WITHOUT_UPLOADS, OWN_PRIOR, PRIOR) if n in images)
        null.append(float(metric.score(images[name], every[-1].labels, context=group.context).mean()))
    if len(points) < 2:
        return
    x, level = sorted(points), float(np.mean(null))
    yield lines(
        cell.place,
        f"{attack}: quality per round",
        "SSIM with the private mean, on the rows that count; mean over classes and seeds.",
        labels=("upload", "SSIM"),
        series=[
            line(attack, x, [float(np.mean(points[r])) for r in x]),
            line(name, [x[0], x[-1]], [level, level], null=True),
        ],
    )


def _nulls(cell: CellEvidence, attack: str, claims: Claims) -> Exhibit:
    rows: list[list[str]] = []
    names: list[str] = []
    for plugin, metric in cell.metrics.items():
        if metric.claim == "class_representatives" and metric.reads == "inputs":
            means = _means(metric, attack, claims)
            names = list(means)
            rows.append([plugin, *(f"{mean:.3f}" for mean in means.values())])
    return table(
        cell.place,
        f"{attack}: beside every null",
        "Means over private classes and seeds. The best null of a row is what a finding quotes; "
        "a learned prior's own score is the translator's.",
        columns=["metric", *names],
        rows=rows,
    )


def _means(metric: Metric, attack: str, claims: Claims) -> Mapping[str, float]:
    """Mean scores of the attack and each null, over classes and seeds."""
    values: dict[str, list[float]] = {}
    for group, every in claims:
        claim = every[-1]
        for name, images in {attack: claim.inputs, **_null_images(group, claim.labels)}.items():
            scores = metric.score(images, claim.labels, context=group.context)
            values.setdefault(name, []).extend(scores.tolist())
    return {name: float(np.mean(scores)) for name, scores in values.items()}

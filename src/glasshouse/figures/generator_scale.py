"""Lower and upper bounds for attacks through a generator: null baselines and the ceiling.

Nulls: the one quoted by the finding, a random sample of the generator, the best of many samples by the
inferred label, and the attack on another victim's update. The ceiling is the true image inverted through the
generator, computed in scoring, where the ground truth is available. A poor ceiling means that the generator
is poor, not that nothing leaks.

Shape letters: N images, D latent entries, C channels, H and W pixels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import PriorSamples, Reconstruction
from glasshouse.errors import Undefined
from glasshouse.figures.base import GroupEvidence
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.interval import RESAMPLES, paired_gain
from glasshouse.metrics.statistics.shares import paired_share_gain
from glasshouse.models.nearest import Prior, nearest_images
from glasshouse.rng import Rng
from glasshouse.wire import Batch

Scores = Sequence[NDArray[np.float64]]
"""Scores of one adversary: an array per victim."""

NULLS: Final = ("quoted null", "random draw", "best draw by label", "another's update")
COLUMNS: Final = (
    "metric", *NULLS, "attack", "ceiling", "share of ceiling", "gain over the draw",
    "gain over the strongest",
)  # fmt: skip
CAPTION: Final = (
    "Means over victims, 95 % intervals in brackets. Gains are paired and above 0 where the attack leaks "
    "more. Strongest: the best of the four nulls on these very victims. Share: gain over it, of what the "
    "ceiling gains over it. Another's update: the attack on the update of a victim of another class."
)


def scale_rows(
    metrics: Mapping[str, Metric], group: GroupEvidence, *, prior: Prior, latent: int, run: Path
) -> list[list[str]]:
    """One row of ``COLUMNS`` for each metric that compares images.

    Args:
        metrics: metrics of the audit, by name.
        group: the federation and the claims in it.
        prior: the attack's generator.
        latent: dimension of its latent space.
        run: the run directory.
    """
    claims = group.of(Reconstruction)
    truths = [group.truth.batch(c.about.rounds[0], c.about.client)[0] for c in claims]
    victims = [group.truth.identity(c.about.rounds[0], c.about.client) for c in claims]
    drawn = list(zip(group.of(PriorSamples), truths, strict=True))
    ceiling = nearest_images(
        prior,
        torch.cat([t.inputs for t in truths]),
        torch.cat([t.labels for t in truths]),
        latent=latent,
        run=run,
    )
    claimed = [c.inputs for c in claims]
    images: dict[str, Sequence[Tensor] | None] = {
        "random draw": [d.inputs[: len(t)] for d, t in drawn],
        "best draw by label": [_by_label(d, group.auxiliary, len(t)) for d, t in drawn],
        "another's update": of_another(claimed, truths),
        "attack": claimed,
        "ceiling": list(torch.split(ceiling, [len(t) for t in truths])),
    }
    available = {which: every for which, every in images.items() if every is not None}
    return [
        [name, *_row(name, metric, group, truths=truths, victims=victims, images=available)]
        for name, metric in metrics.items()
        if metric.claim == "reconstruction" and metric.reads == "inputs"
    ]


def of_another(claimed: Sequence[Tensor], truths: Sequence[Batch]) -> list[Tensor] | None:
    """For each victim, the claim about the next victim that shares no label; None if there is none."""
    others = []
    for i, truth in enumerate(truths):
        following = [(i + k) % len(truths) for k in range(1, len(truths))]
        fitting = [
            j
            for j in following
            if len(truths[j]) == len(truth) and not torch.isin(truths[j].labels, truth.labels).any()
        ]
        if not fitting:
            return None
        others.append(claimed[fitting[0]])
    return others


def _row(
    name: str,
    metric: Metric,
    group: GroupEvidence,
    *,
    truths: Sequence[Batch],
    victims: Sequence[str],
    images: Mapping[str, Sequence[Tensor]],
) -> list[str]:
    def scores(claimed: Sequence[Tensor]) -> Scores:
        if all(len(x) == len(t) == 1 for x, t in zip(claimed, truths, strict=True)):
            left, right = torch.cat(list(claimed)).double(), torch.cat([t.inputs for t in truths]).double()
            together = metric.compare(left, right, context=group.context)
            if together is not None:
                return list(together[:, None])
        return [
            metric.score(x, t.inputs, context=group.context) for x, t in zip(claimed, truths, strict=True)
        ]

    try:
        quoted = None if group.null_scores is None else group.null_scores(name, metric)
        by_source = {which: _by_victim(scores(claimed), victims) for which, claimed in images.items()}
    except Undefined as error:
        return [f"not determined: {error.got}"] + [""] * (len(COLUMNS) - 2)
    if quoted is not None:
        by_source["quoted null"] = quoted
    # The attack stands between the strongest null and the generator's own ceiling.
    sign = 1 if metric.higher_leaks else -1
    means = {which: float(_means(every).mean()) for which, every in by_source.items()}
    strongest = max((which for which in NULLS if which in means), key=lambda which: sign * means[which])
    attack, rng = by_source["attack"], group.rng.child(f"scale/{name}")
    return [
        *(f"{means[which]:.4g}" if which in means else "" for which in (*NULLS, "attack", "ceiling")),
        _share(attack, by_source[strongest], by_source["ceiling"], sign, rng=rng.child("share")),
        _paired_gain(metric, attack, by_source["random draw"], rng=rng.child("draw")),
        _paired_gain(metric, attack, by_source[strongest], rng=rng.child("strongest")),
    ]


def _by_victim(every: Scores, victims: Sequence[str]) -> Scores:
    """The scores of each victim's claims joined, as those of the quoted null are."""
    joined: dict[str, list[NDArray[np.float64]]] = {}
    for one, victim in zip(every, victims, strict=True):
        joined.setdefault(victim, []).append(one)
    return [np.concatenate(parts) for parts in joined.values()]


def _means(every: Scores) -> NDArray[np.float64]:
    return np.array([v.mean() for v in every])


def _share(attack: Scores, null: Scores, ceiling: Scores, sign: int, *, rng: Rng) -> str:
    """(attack - null) / (ceiling - null); with its interval, unless a resample has ceiling <= null."""

    def share(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
        gain, room = sign * (a.mean(-1) - b.mean(-1)), sign * (c.mean(-1) - b.mean(-1))
        return np.where(room > 0, gain / np.where(room > 0, room, 1.0), np.nan)

    sides = [_means(every) for every in (attack, null, ceiling)]
    value, victims = float(share(*sides)), len(sides[0])
    if np.isnan(value):
        return "no room"
    rows = rng.numpy().integers(0, victims, (RESAMPLES, victims))
    resampled = share(*(side[rows] for side in sides))
    if victims < 2 or np.isnan(resampled).any():
        return f"{value:.2f}"
    low, high = np.quantile(resampled, [0.025, 0.975])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _paired_gain(metric: Metric, attack: Scores, null: Scores, *, rng: Rng) -> str:
    """Paired gain of the attack over a null on the same victims, with its interval."""
    if len(attack) < 2:
        return "one victim"
    if metric.counts:
        victims = np.repeat(np.arange(len(attack)), [len(v) for v in attack])
        gain = paired_share_gain(np.concatenate(attack), np.concatenate(null), victims)
        gain = gain if metric.higher_leaks else gain.negated()
    else:
        gain = paired_gain(_means(attack), _means(null), rng=rng, higher_leaks=metric.higher_leaks)
    return f"{gain.value:.3g} [{gain.low:.3g}, {gain.high:.3g}]"


def _by_label(draws: PriorSamples, auxiliary: Batch | None, count: int) -> Tensor:
    """For each label, the sample nearest to the label's mean auxiliary image (of all, if it has none)."""
    assert auxiliary is not None  # checked by the caller
    neighbours = []
    for label in draws.labels[:count]:
        same = auxiliary.inputs[auxiliary.labels == label]
        middle = (same if len(same) else auxiliary.inputs).mean(0)
        candidates = draws.inputs[draws.labels == label]
        neighbours.append(candidates[(candidates - middle).square().flatten(1).sum(1).argmin()])
    return torch.stack(neighbours)

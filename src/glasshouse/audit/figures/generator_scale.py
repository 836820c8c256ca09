"""The scale on which an attack through a generator stands: nulls at one end, the ceiling at the other.

Nulls: the one that the finding quotes, a draw of the generator, the best of many draws by the inferred
label, and the attack on another victim's update. The ceiling is the true image itself inverted through the
generator, here on the scoring side, where the truth may be used. A poor ceiling says that the generator is
poor, not that nothing leaks.

Shape letters: N images, D latent entries, C channels, H and W pixels.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import PriorSamples, Reconstruction
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.score import Judge, score_outcomes
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric
from glasshouse.metrics.interval import RESAMPLES, Interval, paired_gain
from glasshouse.metrics.shares import paired_share_gain
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.wire import Batch

Prior = Callable[[Tensor, Tensor], Tensor]
Scores = Sequence[NDArray[np.float64]]
"""Of one adversary: an array per victim."""

STEPS: Final = 300
STARTS: Final = 4
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


def inverted(prior: Prior, images: Tensor, labels: Tensor, *, latent: int, rng: Rng) -> Tensor:
    """The generator's images (N, C, H, W) nearest to ``images`` (mean squared error), as Adam finds them.

    The best of ``STARTS`` starts from N(0, 1), ``STEPS`` steps each; it may miss the optimum, so it is a
    lower bound on the ceiling.
    """
    count = len(images)
    wanted, repeated = images.repeat(STARTS, 1, 1, 1), labels.repeat(STARTS)
    points = torch.randn(STARTS * count, latent, generator=rng.torch()).requires_grad_()
    optimiser = torch.optim.Adam([points], lr=0.1)
    best, errors = wanted.clone(), torch.full((STARTS * count,), torch.inf)
    for _ in range(STEPS):
        made = prior(points, repeated)
        error = (made - wanted).square().flatten(1).mean(1)
        (points.grad,) = torch.autograd.grad(error.sum(), points)
        with torch.no_grad():
            better = error < errors
            best[better], errors[better] = made.detach()[better], error.detach()[better]
        optimiser.step()
    chosen = errors.reshape(STARTS, count).argmin(0)
    return best.reshape(STARTS, count, *images.shape[1:])[chosen, torch.arange(count)]


def scale_rows(
    cell: Cell, outcomes: Sequence[Outcome], judge: Judge, *, prior: Prior, latent: int
) -> list[list[str]]:
    """A row of ``COLUMNS`` for each metric of the cell that compares images."""
    claims = [c for o in outcomes for c in o.claims if isinstance(c, Reconstruction)]
    truths = [judge.truth.batch(c.about.rounds[0], c.about.client)[0] for c in claims]
    draws = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
    together = inverted(
        prior,
        torch.cat([t.inputs for t in truths]),
        torch.cat([t.labels for t in truths]),
        latent=latent,
        rng=judge.rng.child("ceiling"),
    )
    made = [c.inputs for c in claims]
    shown: dict[str, list[Tensor] | None] = {
        "random draw": [d.inputs[: len(t)] for d, t in zip(draws, truths, strict=True)],
        "best draw by label": [
            _by_label(d, judge.auxiliary, len(t)) for d, t in zip(draws, truths, strict=True)
        ],
        "another's update": of_another(made, truths),
        "attack": made,
        "ceiling": list(torch.split(together, [len(t) for t in truths])),
    }
    rows = []
    for plugin in cell.scenario.audit.metrics:
        metric: Metric = load("metrics", plugin.name)(**plugin.arguments)
        if metric.claim == "reconstruction" and metric.reads == "inputs":
            ends = _row(plugin.name, metric, outcomes, judge, truths=truths, shown=shown)
            rows.append([plugin.name, *ends])
    return rows


def of_another(made: Sequence[Tensor], truths: Sequence[Batch]) -> list[Tensor] | None:
    """For each victim what was made of the next one's update that shares no label; None without one."""
    found = []
    for i, mine in enumerate(truths):
        following = [(i + k) % len(truths) for k in range(1, len(truths))]
        other = [
            j
            for j in following
            if len(truths[j]) == len(mine) and not torch.isin(truths[j].labels, mine.labels).any()
        ]
        if not other:
            return None
        found.append(made[other[0]])
    return found


def _row(
    name: str,
    metric: Metric,
    outcomes: Sequence[Outcome],
    judge: Judge,
    *,
    truths: Sequence[Batch],
    shown: dict[str, list[Tensor] | None],
) -> list[str]:
    def scores(claimed: Sequence[Tensor]) -> Scores:
        return [
            metric.score(x, t.inputs, context=judge.context) for x, t in zip(claimed, truths, strict=True)
        ]

    try:
        scored = score_outcomes(name, metric, outcomes, judge)
        found = {which: scores(claimed) for which, claimed in shown.items() if claimed is not None}
    except Undefined as error:
        return [f"not determined: {error.got}"] + [""] * (len(COLUMNS) - 2)
    if scored is not None:
        found["quoted null"] = scored.nulls
    sign = 1 if metric.higher_leaks else -1
    means = {which: float(_means(every).mean()) for which, every in found.items()}
    strongest = max((which for which in NULLS if which in found), key=lambda which: sign * means[which])
    rng = judge.rng.child(f"scale/{name}")
    return [
        *(f"{means[which]:.4g}" if which in means else "" for which in (*NULLS, "attack", "ceiling")),
        _share(found["attack"], found[strongest], found["ceiling"], sign, rng=rng.child("share")),
        _paired(metric, found["attack"], found["random draw"], rng=rng.child("draw")),
        _paired(metric, found["attack"], found[strongest], rng=rng.child("strongest")),
    ]


def _means(every: Scores) -> NDArray[np.float64]:
    return np.array([v.mean() for v in every])


def _share(made: Scores, null: Scores, ceiling: Scores, sign: int, *, rng: Rng) -> str:
    """(attack - null) / (ceiling - null) with its interval; no interval where a resample has no room."""

    def share(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
        gain, room = sign * (a.mean(-1) - b.mean(-1)), sign * (c.mean(-1) - b.mean(-1))
        return np.where(room > 0, gain / np.where(room > 0, room, 1.0), np.nan)

    sides = [_means(every) for every in (made, null, ceiling)]
    value, victims = float(share(*sides)), len(sides[0])
    if np.isnan(value):
        return "no room"
    rows = rng.numpy().integers(0, victims, (RESAMPLES, victims))
    drawn = share(*(side[rows] for side in sides))
    if victims < 2 or np.isnan(drawn).any():
        return f"{value:.2f}"
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _paired(metric: Metric, made: Scores, null: Scores, *, rng: Rng) -> str:
    """By how much the attack leaks more than a null about the same victims, with its interval."""
    if len(made) < 2:
        return "one victim"
    found: Interval
    if metric.counts:
        victims = np.repeat(np.arange(len(made)), [len(v) for v in made])
        found = paired_share_gain(np.concatenate(made), np.concatenate(null), victims)
        found = found if metric.higher_leaks else found.negated()
    else:
        found = paired_gain(_means(made), _means(null), rng=rng, higher_leaks=metric.higher_leaks)
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def _by_label(draws: PriorSamples, auxiliary: Batch | None, count: int) -> Tensor:
    """For each label the draw nearest to that label's mean auxiliary image (of all, where it has none)."""
    assert auxiliary is not None  # the caller has checked
    chosen = []
    for label in draws.labels[:count]:
        mine = auxiliary.inputs[auxiliary.labels == label]
        middle = (mine if len(mine) else auxiliary.inputs).mean(0)
        candidates = draws.inputs[draws.labels == label]
        chosen.append(candidates[(candidates - middle).square().flatten(1).sum(1).argmin()])
    return torch.stack(chosen)

"""What is shown of an attack that searches a generator: both ends of its scale, its samples, its detector.

The lower end: a draw of the generator, the best of many draws by the inferred label, the attack on another
victim's
update. The upper end, the ceiling: the true image itself inverted through the generator, here on the scoring
side, where the truth may be used. A poor ceiling says that the generator is poor, not that nothing leaks.

Shape letters: N images, D latent entries, C channels, H and W pixels.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import DefenseGuess, Draws, GenerativeAttack, Reconstruction
from glasshouse.audit.cell import attack_of
from glasshouse.audit.claims import Outcome
from glasshouse.audit.landscape import landscape
from glasshouse.audit.result import Exhibit
from glasshouse.audit.score import Judge, score_outcomes
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric
from glasshouse.metrics.interval import paired_gain
from glasshouse.metrics.shares import paired_share_gain, proportion_bounds
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Batch

Prior = Callable[[Tensor, Tensor], Tensor]

STEPS: Final = 300
STARTS: Final = 4
SHOWN: Final = 8


def generative_exhibits(
    run: str,
    cell: Cell,
    position: int,
    outcomes: Mapping[str, Sequence[Outcome]],
    judges: Mapping[str, Judge],
) -> list[Exhibit]:
    """Exhibits of one attack in one cell; none for attacks without a generator or without a claim."""
    spec = cell.scenario.attacks[position]
    attack = attack_of(spec.name, spec.arguments)
    claims = [c for every in outcomes.values() for o in every for c in o.claims]
    found = _detector(cell, spec.label or spec.name, [c for c in claims if isinstance(c, DefenseGuess)])
    if not isinstance(attack, GenerativeAttack):
        return found
    for folder, every in outcomes.items():
        judge = judges[folder]
        if judge.draws is None or judge.auxiliary is None:
            continue
        terms = read_transcript(Path(folder) / "transcript").terms
        prior = attack.prior(terms, judge.auxiliary if cell.scenario.grants.auxiliary else None)
        path = Path(folder) / "truth" / f"samples-{position:02d}-{spec.name}.npz"
        found.append(
            _samples(
                Path(run),
                path,
                cell=cell,
                attack=spec.label or spec.name,
                draws=judge.draws,
                auxiliary=judge.auxiliary,
            )
        )
        found.append(_scale(cell, spec.label or spec.name, every, judge, prior=prior, latent=attack.latent))
        found += _landscape(cell, position, Path(folder), every, judge)
        break  # the other groups repeat the cell with other seeds
    return found


def _landscape(
    cell: Cell, position: int, folder: Path, outcomes: Sequence[Outcome], judge: Judge
) -> list[Exhibit]:
    spec = cell.scenario.attacks[position]
    claims = [c for o in outcomes for c in o.claims if isinstance(c, Reconstruction)]
    title = _title(f"{spec.label or spec.name}: loss around the private image", cell)
    distance = spec.arguments.get("distance", "squared")
    shown = landscape(cell, title, folder, claims[0], judge, distance=distance) if claims else None
    return [shown] if shown else []


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


def _scale(
    cell: Cell, attack: str, outcomes: Sequence[Outcome], judge: Judge, *, prior: Prior, latent: int
) -> Exhibit:
    claims = [c for o in outcomes for c in o.claims if isinstance(c, Reconstruction)]
    truths = [judge.truth.batch(c.about.rounds[0], c.about.client)[0] for c in claims]
    draws = [c for o in outcomes for c in o.claims if isinstance(c, Draws)]
    together = inverted(
        prior,
        torch.cat([t.inputs for t in truths]),
        torch.cat([t.labels for t in truths]),
        latent=latent,
        rng=judge.rng.child("ceiling"),
    )
    ceilings = torch.split(together, [len(t) for t in truths])
    rows = []
    for plugin in cell.scenario.audit.metrics:
        metric: Metric = load("metrics", plugin.name)(**plugin.arguments)
        if metric.claim == "reconstruction" and metric.reads == "inputs":
            rows.append(
                [
                    plugin.name,
                    *_ends(
                        plugin.name,
                        metric,
                        outcomes,
                        judge=judge,
                        truths=truths,
                        draws=draws,
                        ceilings=ceilings,
                    ),
                ]
            )
    return Exhibit(
        kind="table",
        scenario=cell.scenario.name,
        title=_title(f"{attack}: both ends of its scale", cell),
        caption="Means over victims. Share: gain over the strongest null here, of what the ceiling gains "
        "over it; it is the strongest on these very victims, which can only make the share smaller. Last: "
        "the paired gain over a random draw, above 0 where the attack leaks more, 95 % interval.",
        data={
            "columns": [
                "metric", "quoted null", "random draw", "best draw by label", "another's update", "attack",
                "ceiling", "share of ceiling", "gain over the draw",
            ],
            "rows": rows,
        },
    )  # fmt: skip


def _ends(
    name: str,
    metric: Metric,
    outcomes: Sequence[Outcome],
    *,
    judge: Judge,
    truths: Sequence[Batch],
    draws: Sequence[Draws],
    ceilings: Sequence[Tensor],
) -> list[str]:
    """Quoted null, random draw, best draw by label, another's update, attack, ceiling, share, gain."""

    def scores(claimed: Sequence[Tensor]) -> list[NDArray[np.float64]]:
        return [
            metric.score(x, t.inputs, context=judge.context) for x, t in zip(claimed, truths, strict=True)
        ]

    def mean(claimed: Sequence[Tensor]) -> float:
        return float(np.mean([found.mean() for found in scores(claimed)]))

    try:
        scored = score_outcomes(name, metric, outcomes, judge)
        made = [c.inputs for o in outcomes for c in o.claims if isinstance(c, Reconstruction)]
        quoted = float(np.mean([n.mean() for n in scored.nulls])) if scored else float("nan")
        drawn = [d.inputs[: len(t)] for d, t in zip(draws, truths, strict=True)]
        labelled = [_by_label(d, judge.auxiliary, len(t)) for d, t in zip(draws, truths, strict=True)]
        nulls = [
            quoted,
            mean(drawn),
            mean(labelled),
            mean([*made[1:], made[0]]),
        ]
        value, ceiling = mean(made), mean(ceilings)
        gain = _paired(metric, scores(made), scores(drawn), rng=judge.rng.child(f"over the draw/{name}"))
    except Undefined as error:
        return [f"not determined: {error.got}"] + [""] * 7
    strongest = max(nulls) if metric.higher_leaks else min(nulls)
    room = ceiling - strongest
    share = (
        "no room" if room * (1 if metric.higher_leaks else -1) <= 0 else f"{(value - strongest) / room:.2f}"
    )
    return [f"{x:.4g}" for x in (*nulls, value, ceiling)] + [share, gain]


def _paired(
    metric: Metric, made: Sequence[NDArray[np.float64]], drawn: Sequence[NDArray[np.float64]], *, rng: Rng
) -> str:
    """By how much the attack leaks more than a random draw about the same victims, with its interval."""
    if len(made) < 2:
        return "one victim"
    if metric.counts:
        victims = np.repeat(np.arange(len(made)), [len(v) for v in made])
        found = paired_share_gain(np.concatenate(made), np.concatenate(drawn), victims)
        found = found if metric.higher_leaks else found.negated()
    else:
        means = [[float(v.mean()) for v in side] for side in (made, drawn)]
        found = paired_gain(*means, rng=rng, higher_leaks=metric.higher_leaks)
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def _by_label(draws: Draws, auxiliary: Batch | None, count: int) -> Tensor:
    """For each label the draw nearest to that label's mean auxiliary image (of all, where it has none)."""
    assert auxiliary is not None  # the caller has checked
    chosen = []
    for label in draws.labels[:count]:
        mine = auxiliary.inputs[auxiliary.labels == label]
        middle = (mine if len(mine) else auxiliary.inputs).mean(0)
        candidates = draws.inputs[draws.labels == label]
        chosen.append(candidates[(candidates - middle).square().flatten(1).sum(1).argmin()])
    return torch.stack(chosen)


def _samples(run: Path, path: Path, *, cell: Cell, attack: str, draws: Batch, auxiliary: Batch) -> Exhibit:
    """Draws of the generator, each beside the nearest auxiliary image: has it learnt them by heart?"""
    shown = draws.inputs[:: max(1, len(draws) // SHOWN)][:SHOWN]
    gaps = torch.cdist(shown.flatten(1), auxiliary.inputs.flatten(1))
    pairs = torch.stack([shown, auxiliary.inputs[gaps.argmin(1)]], dim=1)
    np.savez_compressed(path, images=pairs.permute(0, 1, 3, 4, 2).clamp(0, 1).numpy())
    return Exhibit(
        kind="pictures",
        scenario=cell.scenario.name,
        title=_title(f"{attack}: samples of its generator", cell),
        caption="What the generator draws without any update, each with the auxiliary image nearest to it.",
        data={
            "columns": ["sample", "nearest auxiliary image"],
            "rows": [str(i + 1) for i in range(len(shown))],
        },
        file=str(path.resolve().relative_to(run.resolve())),
        private=("nearest auxiliary image",),
    )


def _detector(cell: Cell, attack: str, guesses: Sequence[DefenseGuess]) -> list[Exhibit]:
    """How often the attack named the defences that were on, in their order."""
    if not guesses:
        return []
    right = " + ".join(d.name for d in cell.scenario.defenses) or "none"
    hits = sum(g.name == right for g in guesses)
    low, high = proportion_bounds(hits, len(guesses))
    rows = [
        [name, str(count), "yes" if name == right else ""]
        for name, count in Counter(g.name for g in guesses).most_common()
    ]
    return [
        Exhibit(
            kind="table",
            scenario=cell.scenario.name,
            title=_title(f"{attack}: which defence it sees", cell),
            caption=f"On were: {right}. Named right: {hits} of {len(guesses)} ({low:.2f} to {high:.2f}).",
            data={"columns": ["named", "updates", "right"], "rows": rows},
        )
    ]


def _title(text: str, cell: Cell) -> str:
    where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
    return text + (f" ({where})" if where else "")

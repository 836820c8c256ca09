"""Verdicts on single victims: do the claims match a private example better than held-out ones?

The claims about a victim are compared in the same way with its own example and with M held-out ones: each
example is paired with its best candidate. If the claims are independent of the example, its rank among the
held-out ones is uniformly distributed, and (1 + rank) / (1 + M) is a p-value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.audit.scoring.claims import longest_prefix
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.errors import GlasshouseError
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.reconstruction import Mse
from glasshouse.metrics.statistics.multiplicity import holm
from glasshouse.metrics.statistics.rank import ALPHA, FEWEST, comparisons_for, rank_p_value
from glasshouse.metrics.statistics.units import Numbers
from glasshouse.results.records import Victim

MOST: Final = 64
"""Largest number of candidates of one claim that are compared, for metrics without ``pairwise``."""


def can_judge_victims(metric: Metric) -> bool:
    """Whether the metric compares single images."""
    return metric.claim == "reconstruction" and metric.reads == "inputs"


def victims_of(
    name: str, metric: Metric, scored: ScoredMetric, runs: Sequence[Run]
) -> tuple[Victim, ...] | str:
    """A verdict for every private example with a claim about it, Holm-corrected; or why there is none.

    The same private data in another round or run are not counted again. If the metric is binary, examples are
    ranked by their squared error, and the value is the metric's.

    Args:
        name: of the metric.
        metric: an image metric.
        scored: its scores on the same runs.
        runs: the attack's federations.
    """
    ranked = Mse() if metric.counts else metric
    own = dict(zip(scored.victims, scored.values, strict=True))
    rows: list[Victim] = []
    seen_names: set[str] = set()
    for position, run in enumerate(runs):
        if reason := _unfit(run.ground):
            return f"{name}: {reason}"
        where = f"run {position + 1}, " if len(runs) > 1 else ""
        try:
            rows += [replace(v, name=where + v.name) for v in _of_run(ranked, run, own, seen_names)]
        except GlasshouseError as error:
            return f"{name}: {error}"
    compared = min((row.compared for row in rows), default=0)
    if rows and compared < comparisons_for(len(rows)):
        wanted = f"{comparisons_for(len(rows))} held-out examples, got {compared}"
        return (
            f"{name}: no verdict on single victims: for {len(rows)} of them it needs {wanted}; "
            "with fewer, nobody could be named after the correction"
        )
    adjusted = holm([row.p for row in rows])
    return tuple(
        replace(row, p_adjusted=float(p), leaks=bool(p < ALPHA))
        for row, p in zip(rows, adjusted, strict=True)
    )


def _unfit(ground: GroundTruth) -> str:
    count = 0 if ground.heldout is None else len(ground.heldout)
    if count < FEWEST:
        return f"no verdict on single victims: it needs {FEWEST} held-out examples, got {count}"
    if not ground.comparable:
        return "no verdict on single victims: held-out examples are of other classes than private ones"
    return ""


def _of_run(
    metric: Metric, run: Run, values: Mapping[str, Numbers], seen_names: set[str]
) -> Iterator[Victim]:
    assert run.ground.heldout is not None  # _unfit has checked
    heldout = run.ground.heldout.inputs
    for about, number, inputs in _claims(run):
        identity = run.ground.truth.identity(number, about.client)
        if identity in seen_names:
            continue
        seen_names.add(identity)
        own = run.ground.target(number, about.client).batch.inputs
        best = best_of(metric, inputs, torch.cat([own, heldout]), context=run.ground.context)
        sign = 1 if metric.higher_leaks else -1
        for i, match in enumerate(best[: len(own)]):
            rank = int((sign * best[len(own) :] >= sign * match).sum())
            p = rank_p_value(rank, len(heldout))
            client = "" if about.client is None else f", client {about.client}"
            yield Victim(
                name=f"round {number}{client}, example {i + 1}",
                value=float(values[identity][i]),
                rank=rank,
                compared=len(heldout),
                p=p,
                p_adjusted=p,
                leaks=False,
            )


def _claims(run: Run) -> Iterator[tuple[About, int, Tensor]]:
    """Every round of every claim with an image, with the candidates that count."""
    for outcome in run.outcomes:
        for claim in longest_prefix(outcome.claims):
            if isinstance(claim, Reconstruction) and len(claim.inputs):
                inputs = claim.part("inputs", run.ground.allowed(claim.about))
                assert inputs is not None  # a reconstruction has inputs
                for number in claim.about.rounds:
                    yield claim.about, number, inputs


def best_of(metric: Metric, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> Numbers:
    """The best score of any candidate with each example, (N,)."""
    table = metric.pairwise(candidates, examples, context=context)
    if table is None:
        each = (one.expand(len(examples), -1, -1, -1) for one in candidates[:MOST])
        table = np.stack([metric.score(one, examples, context=context) for one in each])
    return np.asarray(table.max(0) if metric.higher_leaks else table.min(0), dtype=np.float64)

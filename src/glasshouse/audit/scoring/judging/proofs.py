"""Hold everything that an attack says it proved against the truth, whatever metrics the scenario asks for.

A kind of claim names the metric of its proofs (``Claim.proofs``): every score must be 1. Anything below is
a defect of the attack, or the federation is not what its terms say; either way no finding of it can be
believed.
"""

from collections.abc import Sequence

from glasshouse.attacks.base import Claim
from glasshouse.audit import guarded
from glasshouse.audit.scoring.pair import claimed_kinds, pair
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.words import place_of
from glasshouse.errors import NothingClaimed
from glasshouse.metrics.base import Metric
from glasshouse.registry import create, load
from glasshouse.results.strength import Proofs
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Refusal


def hold_proofs(cell: Cell, attack: Plugin, runs: Sequence[Run]) -> tuple[list[Proofs], list[Refusal]]:
    """What one attack proved in one cell and how much of it is wrong, by kind of claim; and refusals."""
    label = attack.label or attack.name
    runs = [run for run in runs if run.ground.truth.used]
    held, refusals = [], []
    for kind in claimed_kinds(outcome for run in runs for outcome in run.outcomes):
        if not kind.proofs:
            continue

        def work(kind: type[Claim] = kind) -> tuple[int, int]:
            metric: Metric = create(load("metrics", kind.proofs), {})
            return _count(kind, metric, runs)

        answer = guarded.call("metric", kind.proofs, work, about=f"of attack '{label}'")
        if isinstance(answer, Refusal):
            refusals.append(answer)
        elif answer[0]:
            place = place_of(cell)
            where = {key: place[key] for key in ("scenario", "cell", "axes")}
            stated, wrong = answer
            held.append(Proofs(**where, attack=label, claim=kind.kind, stated=stated, wrong=wrong))
    return held, refusals


def _count(kind: type[Claim], metric: Metric, runs: Sequence[Run]) -> tuple[int, int]:
    """How many assertions were proved, and how many of them are wrong."""
    stated = wrong = 0
    for run in runs:
        claims = [c for outcome in run.outcomes for c in outcome.claims if type(c) is kind]
        for one in (one for claim in claims for one in pair(claim, metric, run.ground)):
            if one.own is None:
                continue
            context = one.own.context or run.ground.context
            try:
                scores = metric.score(one.own.claimed, one.own.truth, context=context)
            except NothingClaimed:
                continue
            stated += len(scores)
            wrong += int((scores < 1).sum())
    return stated, wrong

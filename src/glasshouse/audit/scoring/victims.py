"""Verdicts on single victims: does a claim know its private example, and not what others have in common?

The statistics are those of ``metrics.statistics.victims``; here the results of an attack's runs are put
together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import scipy

from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.audit.scoring.table import Table
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.errors import GlasshouseError
from glasshouse.metrics.base import Metric
from glasshouse.metrics.reconstruction import Mse
from glasshouse.metrics.statistics.multiplicity import benjamini_hochberg
from glasshouse.metrics.statistics.rank import FEWEST
from glasshouse.metrics.statistics.victims import ALPHA, NamedVictims, name_victims
from glasshouse.results.records import Victim

__all__ = ["can_judge_victims", "ranked_by", "victims_of"]

_SHIFTED: Final = "private and held-out examples are of different distributions, and claims are too few"


def can_judge_victims(metric: Metric) -> bool:
    """Whether the metric compares single examples."""
    return metric.claim == "reconstruction" and metric.reads == "inputs"


def ranked_by(metric: Metric) -> Metric:
    """The metric by which single examples are ranked: a binary one cannot, so that squared error does."""
    return Mse() if metric.counts else metric


def victims_of(
    name: str,
    scored: ScoredMetric,
    runs: Sequence[Run],
    compared: Iterable[Table | None],
) -> tuple[Victim, ...] | str:
    """A verdict for every private example with a claim about it, or why there is none.

    The same private data in another run are not counted again. Who is named is corrected for how many there
    are (Benjamini and Hochberg).

    Args:
        name: of the metric.
        scored: its scores on the same runs, however examples are ranked.
        runs: the attack's federations.
        compared: every claim against every victim, of :func:`ranked_by`, by run.
    """
    for run in runs:
        if reason := _unfit(run.ground):
            return f"{name}: {reason}"
    own = dict(zip(scored.victims, scored.values, strict=True))
    rows: list[Victim] = []
    shared: list[frozenset[str]] = []
    levels: list[float] = []  # up to which a victim is named; below 0: never
    seen: set[str] = set()
    try:
        for position, table in enumerate(compared):
            where = f"run {position + 1}, " if len(runs) > 1 else ""
            if table is None:
                continue
            judged = _judge(table)
            if not judged.judged.all():
                return (
                    f"{name}: no verdict on single victims: {_SHIFTED if judged.by_claims else _few(table)}"
                )
            for i, identity in enumerate(table.identities):
                if identity in seen:
                    continue
                value = float(own[identity][table.places[i]])
                rows.append(
                    Victim(
                        name=where + table.names[i],
                        value=value,
                        rank=int(judged.rank[i]),
                        compared=int(judged.compared[i]),
                        p=float(judged.p[i]),
                        p_adjusted=float(judged.p[i]),
                        leaks=False,
                        out=bool(judged.best[i] and judged.p[i] <= ALPHA),
                        draw=runs[position].ground.run,
                    )
                )
                shared.append(table.shared[i])
                levels.append(judged.level if judged.best[i] else -1.0)
            seen |= set(table.identities)
    except GlasshouseError as error:
        return f"{name}: {error}"
    adjusted = benjamini_hochberg([row.p for row in rows])
    return tuple(
        replace(row, p_adjusted=float(p), leaks=bool(p <= level), unit=unit)
        for row, p, level, unit in zip(rows, adjusted, levels, _units(shared), strict=True)
    )


def _units(shared: Sequence[frozenset[str]]) -> list[str]:
    """Names of independent victims: equal where two share anything, or others between them do.

    Examples:
        >>> _units([frozenset("a"), frozenset("bc"), frozenset("ca"), frozenset("d")])
        ['1', '1', '1', '2']
    """
    rows = np.repeat(np.arange(len(shared)), [len(one) for one in shared])
    names = [name for one in shared for name in sorted(one)]
    columns = np.unique(names, return_inverse=True)[1] if names else np.zeros(0, dtype=np.int64)
    # Victims and what they have are the two sides of a graph, whose components are the units.
    size = len(shared) + int(columns.max(initial=-1)) + 1
    links = scipy.sparse.coo_matrix((np.ones(len(rows)), (rows, len(shared) + columns)), shape=(size, size))
    _, found = scipy.sparse.csgraph.connected_components(links, directed=False)
    return [str(1 + number) for number in found[: len(shared)]]


def _judge(table: Table) -> NamedVictims:
    # Of errors their logarithm is taken: a lead of one exact copy is then larger than that of a fair guess.
    matches, heldout, baseline = table.matches, table.heldout, table.baseline
    if float(np.max(matches)) <= 0 and float(np.max(heldout)) <= 0:
        tiny = 1e-10 * max(float(np.median(-heldout)), 1e-300)
        matches, heldout = (-np.log(tiny - one) for one in (matches, heldout))
        baseline = baseline and (-np.log(tiny - baseline[0]), -np.log(tiny - baseline[1]))
    return name_victims(
        matches,
        heldout,
        table.strata,
        table.heldout_strata,
        claim_of=table.claim_of,
        alike=table.alike,
        baseline=baseline,
        shift_p=table.shift_p,
    )


def _few(table: Table) -> str:
    return f"it needs more held-out examples of every label than {table.heldout.shape[1]} have"


def _unfit(ground: GroundTruth) -> str:
    count = 0 if ground.heldout is None else len(ground.heldout)
    if count < FEWEST:
        return f"no verdict on single victims: it needs {FEWEST} held-out examples, got {count}"
    if not ground.comparable:
        return "no verdict on single victims: held-out examples are of other classes than private ones"
    return ""

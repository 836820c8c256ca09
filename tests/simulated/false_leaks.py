"""False-positive rate and power of an audit's leak verdicts, through the public scoring functions.

Each row of the table is a kind of measurement, each column a number of victims (clients, for metrics over
clients). ``python -m tests.simulated.false_leaks`` prints the table of ``docs/result.md``.
"""

import sys
from dataclasses import dataclass

import numpy as np
from tests.simulated.false_leaks_families import FAMILIES, Family, Sample

from glasshouse.audit.scoring.exchange import exchange
from glasshouse.audit.scoring.gains import gain_of, null_of
from glasshouse.audit.scoring.judging.verdict import Evidence, decide
from glasshouse.audit.scoring.nulls import CHANCE
from glasshouse.audit.scoring.score import ClientSample, ScoredMetric, join_parts
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics import interval, pairing, permutation
from glasshouse.registry import load
from glasshouse.results.records import Control
from glasshouse.rng import Rng

RUNS = 2000
SIZES = (3, 4, 8, 20, 50)
PASSED = Control(
    positive=1.0, positive_low=1.0, negative=0.0, negative_low=-1.0, passed=True, setting="", n=6
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Shares of ``runs`` measurements of ``n`` victims that the rules and the exact test call a leak."""

    family: str
    n: int
    runs: int
    leaks: float
    exact: float | None


def metric_of(family: Family) -> Metric:
    """The registered metric; at an FPR of 0.1, which a few clients can resolve."""
    arguments = {"fpr": 0.1} if family.metric == "tpr_at_fpr" else {}
    metric: Metric = load("metrics", family.metric)(**arguments)
    return metric


def scored_of(sample: Sample) -> ScoredMetric:
    """The measurement in the audit's format, claim by claim."""
    if sample.clients:
        every = (ClientSample(run=run, scores=scores, truth=truth) for run, scores, truth in sample.clients)
        return join_parts([ScoredMetric(clients=(one,), baseline="coin") for one in every])
    baseline = CHANCE if sample.known else "null"
    others = () if sample.exchanged is None else tuple(sample.exchanged[:, :, None])
    return ScoredMetric(
        values=tuple(sample.values),
        nulls=tuple(sample.null),
        exchanged=others,
        victims=tuple(map(str, range(len(sample.values)))),
        baseline=baseline,
        null_most=sample.most,
    )


def is_leak(sample: Sample, metric: Metric, rng: Rng) -> bool:
    """Whether the audit's verdict is ``leaks``."""
    scored = scored_of(sample)
    gain = gain_of(scored, metric, rng=rng)
    other = None if sample.exchanged is None else exchange(scored, metric, rng=rng)
    over_exchange = None if other is None else other.gain
    null = null_of(scored, metric)
    evidence = Evidence(metric=metric, gain=gain, null=null, control=PASSED, exchange=over_exchange)
    return decide(evidence).verdict == "leaks"


def measure(family: Family, n: int, *, leaks: bool, runs: int = RUNS, seed: int = 0) -> Rate:
    """Simulate ``runs`` measurements and count."""
    random, root, metric = np.random.default_rng([seed, n, leaks]), Rng.root(seed), metric_of(family)
    called, exact = 0, 0
    for run in range(runs):
        sample = family.draw(random, n, leaks)
        called += is_leak(sample, metric, root.child(str(run)))
        exact += sample.p is not None and sample.p < 0.025
    return Rate(
        family=family.name,
        n=n,
        runs=runs,
        leaks=called / runs,
        exact=exact / runs if family.exact else None,
    )


def resample_less() -> None:
    """Reduce resampling to speed up the study, without biasing it in favour of the rules.

    The bootstrap only widens upper ends, on which no leak verdict depends. Permutations of the truth give a
    valid test for any number of them; fewer of them reduce power.
    """
    interval.RESAMPLES = 50
    permutation.EXCHANGES = 999
    pairing.EXCHANGES = 999  # type: ignore[attr-defined]  # imported there by value


def row(family: Family, *, leaks: bool, runs: int) -> str:
    """One row of the table; each power is followed by that of the exact test, if there is one."""
    cells = [family.name]
    for n in SIZES:
        if n not in family.sizes:
            cells.append("")
            continue
        rate = measure(family, n, leaks=leaks, runs=runs)
        beside = f" / {rate.exact:.2f}" if leaks and rate.exact is not None else ""
        cells.append((f"{rate.leaks:.2f}" if leaks else f"{rate.leaks:.3f}") + beside)
    return "| " + " | ".join(cells) + " |"


def print_tables(runs: int = RUNS) -> None:
    """Print both tables in Markdown."""
    resample_less()
    for leaks in (False, True):
        head = ["power" if leaks else "false leaks", *(f"n = {n}" for n in SIZES)]
        print("| " + " | ".join(head) + " |")
        print("|---" * len(head) + "|")
        for family in FAMILIES:
            print(row(family, leaks=leaks, runs=runs), flush=True)
        print()


if __name__ == "__main__":
    print_tables(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)

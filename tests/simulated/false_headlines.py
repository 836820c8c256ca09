"""False-positive rate of headlines: reports of 75 findings without a leak that claim one.

``python -m tests.simulated.false_headlines`` prints the rates of ``docs/result.md``.
"""

import sys
from typing import Final

import numpy as np
from tests.simulated.false_leaks import PASSED, metric_of, resample_less, scored_of
from tests.simulated.false_leaks_families import FAMILIES, Family

from glasshouse.audit.scoring.exchange import exchange
from glasshouse.audit.scoring.gains import gain_of, null_of, p_of
from glasshouse.audit.scoring.judging.family import with_family
from glasshouse.audit.scoring.judging.verdict import Evidence, decide, settle
from glasshouse.metrics.statistics.multiplicity import holm
from glasshouse.metrics.statistics.rank import rank_p_value
from glasshouse.report.readings import read
from glasshouse.report.verdicts.answer import overall
from glasshouse.results.records import Finding, Result, Victim
from glasshouse.rng import Rng

FINDINGS: Final = 75
REPORTS: Final = 500
COMPARED: Final = 200
KINDS: Final = ("PSNR, normal differences", "share, chance .1", "share, chance .5", "AUC")
HEADLINES: Final = ("Private data came out", "Single victims' data came out")


def finding(family: Family, number: int, random: np.random.Generator, rng: Rng, *, victims: int) -> Finding:
    """One primary finding without a leak, in a cell of its own, with ranks of single victims."""
    metric, sample = metric_of(family), family.draw(random, 20, False)
    scored, stream = scored_of(sample), rng.child(str(number))
    gain, p, null = (
        gain_of(scored, metric, rng=stream),
        p_of(scored, metric, rng=stream),
        null_of(scored, metric),
    )
    other = None if sample.exchanged is None else exchange(scored, metric, rng=stream)
    return Finding(
        scenario="null",
        cell=str(number),
        axes={},
        attack="attack",
        protocol="fedsgd",
        defenses=(),
        metric=family.metric,
        unit_of_value=metric.unit,
        higher_leaks=metric.higher_leaks,
        value=null + gain.value,
        low=null + gain.low,
        high=null + gain.high,
        n=gain.n,
        unit="victims",
        baseline="null",
        baseline_value=null,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        control=PASSED,
        verdict=decide(
            Evidence(
                metric=metric,
                gain=gain,
                null=null,
                control=PASSED,
                exchange=None if other is None else other.gain,
            )
        ).verdict,
        chosen="",
        given=(),
        seconds=0.0,
        about="",
        primary=True,
        p=max(p, other.p if other else 0.0),
        victims=_victims(random, victims),
    )


def _victims(random: np.random.Generator, count: int) -> tuple[Victim, ...]:
    ranks = random.integers(0, COMPARED + 1, count)
    p_values = [rank_p_value(int(rank), COMPARED) for rank in ranks]
    return tuple(
        Victim(
            name=f"example {i}",
            value=0.0,
            rank=int(rank),
            compared=COMPARED,
            p=p,
            p_adjusted=float(adjusted),
            leaks=bool(adjusted < 0.05),
        )
        for i, (rank, p, adjusted) in enumerate(zip(ranks, p_values, holm(p_values), strict=True))
    )


def wrong_headlines(reports: int = REPORTS, *, victims: int = 0, seed: int = 0) -> tuple[float, float]:
    """Shares of reports that claim a leak: by the headline, and by any finding's own verdict.

    Args:
        reports: number of simulated reports.
        victims: number of victims per finding with a verdict of their own.
        seed: seed of the simulation.
    """
    families = [family for family in FAMILIES if family.name in KINDS]
    wrong = single = 0
    for report in range(reports):
        random, rng = np.random.default_rng([seed, report]), Rng.root(seed).child(str(report))
        items = [
            finding(families[i % len(families)], i, random, rng, victims=victims) for i in range(FINDINGS)
        ]
        result = Result(suite="null", findings=settle(with_family(items), {}))
        wrong += overall(read(result)).text in HEADLINES
        single += any(f.verdict == "leaks" or any(v.leaks for v in f.victims) for f in items)
    return wrong / reports, single / reports


if __name__ == "__main__":
    resample_less()
    for judged in (0, 3):
        headline, alone = wrong_headlines(int(sys.argv[1]) if len(sys.argv) > 1 else REPORTS, victims=judged)
        print(f"{judged} victims judged per finding: headline {headline:.3f}, any finding alone {alone:.3f}")

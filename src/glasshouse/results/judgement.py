"""Which findings decide for a whole run: the primary ones, corrected for multiple comparisons."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from glasshouse.results.records import Finding, Verdict, Victim

OUT: Final[tuple[Verdict, ...]] = ("contradiction", "leaks", "label leak")
"""Verdicts that mean a leak."""
ALPHA: Final = 0.05
"""Significance level of Holm's correction, over the primary findings of a run and over a cell's victims."""
ONE_SIDE: Final = 0.025
"""Fraction of the findings without any leak whose 95 % interval lies above 0 by chance."""

FEW_DRAWS: Final = 4
"""Draws of first weights below which a finding is about these alone."""
FEW_DRAWS_OF_CLIENTS: Final = 6
"""The same of rates over clients: so few may all be lucky (the signs of their gains cannot reach 0.025)."""


def these_weights(draws: int, *, of_clients: bool = False) -> str:
    """The draws of first weights that a finding is about, where they are too few for more; else empty.

    Examples:
        >>> these_weights(1), these_weights(5, of_clients=True), these_weights(5), these_weights(0)
        ('these weights', 'these 5 draws of weights', '', '')
    """
    if not 0 < draws < (FEW_DRAWS_OF_CLIENTS if of_clients else FEW_DRAWS):
        return ""
    return "these weights" if draws == 1 else f"these {draws} draws of weights"


def expected_by_luck(finding: Finding) -> bool:
    """Whether a finding's interval lies above 0 but the finding does not survive Holm's correction."""
    return finding.by_luck


def victims_by_claim(findings: Iterable[Finding]) -> dict[tuple[str, ...], tuple[Victim, ...]]:
    """The verdicts on single victims of each claim: any of its metrics may have judged them."""
    judged: dict[tuple[str, ...], tuple[Victim, ...]] = {}
    for finding in findings:
        if finding.victims:
            judged.setdefault(finding.claim_key, finding.victims)
    return judged


def anybody_p_value(victims: Sequence[Victim]) -> float:
    """p-value of "no victim's example leaked" from the verdicts on all victims of a finding.

    For each k, the chance that at least k of v victims have a p-value as small as the k-th smallest is
    binomial; the smallest of these over all k, times v, is valid for any k. Two of three victims ahead of 200
    held-out examples give 2e-4, one gives 0.045.

    Examples:
        >>> from glasshouse.results.records import Victim
        >>> rest = {"value": 9.0, "rank": 0, "compared": 200, "p_adjusted": 0.01, "leaks": True}
        >>> one = Victim(name="round 0, client 0, example 1", p=1 / 201, **rest)
        >>> round(anybody_p_value([one]), 4), round(anybody_p_value([one] * 3), 9)
        (0.005, 3.69e-07)
    """
    ordered, count = sorted(v.p for v in victims), len(victims)
    # Of equal p-values the last one has the smallest chance; there are few, as many as ranks.
    last = {p: k for k, p in enumerate(ordered, start=1)}
    return min(1.0, count * min((_at_least(k, count, p) for p, k in last.items()), default=1.0))


def _at_least(k: int, count: int, p: float) -> float:
    """The chance of at least k of ``count`` draws of chance p; in logarithms, as thousands overflow."""
    if not 0 < p < 1:
        return float(p >= 1)
    drawn, missed, every = math.log(p), math.log1p(-p), math.lgamma(count + 1)
    ways = (every - math.lgamma(j + 1) - math.lgamma(count - j + 1) for j in range(k, count + 1))
    return math.fsum(math.exp(w + j * drawn + (count - j) * missed) for j, w in enumerate(ways, start=k))


def with_somebody_out(findings: Sequence[Sequence[Victim]]) -> list[bool]:
    """Which findings show that some victim leaked, after Holm's correction over all findings.

    Within a finding the verdicts are corrected already; 4 of 75 findings would still name a victim by chance.

    Args:
        findings: the verdicts on single victims of each finding that judges any.
    """
    values = [anybody_p_value(victims) for victims in findings]
    out, holds = [False] * len(values), True
    for place, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        holds = holds and values[i] * (len(values) - place) < ALPHA
        out[i] = holds and any(v.leaks for v in findings[i])
    return out


def primaries(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that decide headline and exit code; all of them if none is marked as primary."""
    return [f for f in findings if f.primary] or list(findings)

"""The way down from an attack's claims to numbers: attack → metric → claim (the table in ``scorers``)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from glasshouse.attacks.base import Claim
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.claims.scored import ScoredMetric, join_parts
from glasshouse.audit.scoring.claims.scorers import compare_together, scorer_of
from glasshouse.audit.scoring.claims.silence import claimed_kinds, score_silence, silences
from glasshouse.audit.scoring.judge import Judge
from glasshouse.errors import NothingClaimed
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.base import Metric
from glasshouse.results.strength import Search


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What one attack did in one federation, and who judges it.

    Attributes:
        folder: of the group.
        units: what it was called for, with what came out.
        judge: of the group, with the attack's own prior as a further null.
        searches: certificates of its claims, of an attack that says what it minimises.
        guarantee: of the federation's defences; None: they prove nothing.
        scored: what :func:`score_metric` made of its claims, by metric; None: the metric scores none.
    """

    folder: str
    units: Sequence[tuple[Unit, Outcome]]
    judge: Judge
    searches: tuple[Search, ...] = ()
    guarantee: Guarantee | None = None
    scored: dict[str, ScoredMetric | None] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all units, in order."""
        return [outcome for _, outcome in self.units]


def score_metric(name: str, metric: Metric, runs: Sequence[Run]) -> ScoredMetric | None:
    """One metric of one attack over all its federations; None when it scores no claim of the attack.

    Silence counts as a miss wherever something was claimed in some federation.

    Raises:
        Undefined: the metric or its null is not determined by the data.
    """
    parts, nothing = [], None
    for run in runs:
        try:
            one = run.scored[name] = score_outcomes(name, metric, run.outcomes, run.judge)
        except NothingClaimed as error:
            nothing = error
            continue
        if one:
            parts.append(one)
    if not parts:
        if nothing:
            raise nothing
        return None
    kinds = claimed_kinds(outcome for run in runs for outcome in run.outcomes)
    silent = [one for run in runs for one in _score_silences(name, metric, run, kinds)]
    return join_parts([*parts, *silent])


def score_outcomes(
    name: str, metric: Metric, outcomes: Iterable[Outcome], judge: Judge
) -> ScoredMetric | None:
    """All claims of one attack in one federation that ``metric`` can score; None when there are none.

    A number about what was claimed leaves out victims of whom nothing was, unless that is all of them.

    Raises:
        Undefined: the metric or its null is not determined by the data.
    """
    parts, nothing = [], None
    claims = [claim for outcome in outcomes for claim in longest_prefix(outcome.claims)]
    compare_together(metric, claims, judge)
    for claim in claims:
        scorer = scorer_of(type(claim), metric)
        if scorer is None:
            continue
        try:
            one = scorer(name, metric, claim, judge)
        except NothingClaimed as error:
            nothing = error
            continue
        if one:
            parts.append(one)
    if not parts and nothing:
        raise nothing
    return join_parts(parts) if parts else None


def longest_prefix(claims: Sequence[Claim]) -> list[Claim]:
    """Only the claims after the most rounds: earlier ones are drawn as a curve, not judged."""
    longest: dict[str, int] = {}
    for claim in claims:
        longest[claim.kind] = max(longest.get(claim.kind, 0), len(claim.about.rounds))
    return [c for c in claims if not c.grows or len(c.about.rounds) == longest[c.kind]]


def _score_silences(
    name: str, metric: Metric, run: Run, kinds: Sequence[type[Claim]]
) -> Iterator[ScoredMetric]:
    for silence in silences(run.units, kinds, run.judge):
        try:
            one = score_silence(name, metric, silence, run.judge)
        except NothingClaimed:  # metrics of what was claimed leave out victims about whom nothing was claimed
            continue
        if one:
            yield one

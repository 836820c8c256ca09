"""Score an attack's claims: attack → metric → claim (the table in ``scorers``)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
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
    """The claims of one attack in one federation, with their judge.

    Attributes:
        folder: of the group.
        units: the units that it was called for, with their outcomes.
        judge: of the group, with the attack's own prior as an additional null.
        searches: certificates of its claims, if the attack declares its loss.
        guarantee: of the federation's defences; None: they prove nothing.
        scored: results of :func:`score_metric`, by metric; None: the metric scores none of the claims.
    """

    folder: str
    units: Sequence[tuple[Unit, Outcome]]
    judge: Judge
    searches: tuple[Search, ...] = ()
    guarantee: Guarantee | None = None
    scored: dict[str, ScoredMetric | None] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all units, in order."""
        return [outcome for _, outcome in self.units]


def score_metric(name: str, metric: Metric, runs: Sequence[Run]) -> ScoredMetric | None:
    """Score one metric of one attack over all its federations; None if it scores no claim of the attack.

    Victims without a claim count as misses if the attack made a claim in any federation.

    Raises:
        Undefined: the data do not determine the metric or its null.
    """

    def score_run(run: Run) -> ScoredMetric | None:
        run.scored[name] = score_outcomes(name, metric, run.outcomes, run.judge)
        return run.scored[name]

    parts = _some_scores(partial(score_run, run) for run in runs)
    if not parts:
        return None
    kinds = claimed_kinds(outcome for run in runs for outcome in run.outcomes)
    unclaimed = [one for run in runs for one in _score_silences(name, metric, run, kinds)]
    return join_parts([*parts, *unclaimed])


def score_outcomes(
    name: str, metric: Metric, outcomes: Iterable[Outcome], judge: Judge
) -> ScoredMetric | None:
    """Score all claims of one attack in one federation that ``metric`` can score; None if there are none.

    A metric of the claims leaves out victims without a claim, unless none has one.

    Raises:
        Undefined: the data do not determine the metric or its null.
    """
    claims = [claim for outcome in outcomes for claim in longest_prefix(outcome.claims)]
    compare_together(metric, claims, judge)
    able = ((scorer_of(type(claim), metric), claim) for claim in claims)
    parts = _some_scores(partial(scorer, name, metric, claim, judge) for scorer, claim in able if scorer)
    return join_parts(parts) if parts else None


def _some_scores(works: Iterable[Callable[[], ScoredMetric | None]]) -> list[ScoredMetric]:
    """All scores that there are.

    Raises:
        NothingClaimed: there is none, and this is a reason.
    """
    scores, nothing = [], None
    for work in works:
        try:
            scores.append(work())
        except NothingClaimed as error:
            nothing = error
    found = [one for one in scores if one]
    if nothing and not found:
        raise nothing
    return found


def longest_prefix(claims: Sequence[Claim]) -> list[Claim]:
    """Keep only the claims after the most rounds: earlier ones are drawn as a curve, not judged."""
    longest: dict[str, int] = {}
    for claim in claims:
        longest[claim.kind] = max(longest.get(claim.kind, 0), len(claim.about.rounds))
    return [c for c in claims if not c.grows or len(c.about.rounds) == longest[c.kind]]


def _score_silences(
    name: str, metric: Metric, run: Run, kinds: Sequence[type[Claim]]
) -> Iterator[ScoredMetric]:
    for kind, about in silences(run.units, kinds, run.judge):
        with suppress(NothingClaimed):  # metrics of the claims leave out victims without one
            if one := score_silence(name, metric, kind, about, run.judge):
                yield one

"""The loop shared by most scorers: over the rounds of a claim, with null and exchanged scores."""

from collections.abc import Callable

import numpy as np

from glasshouse.attacks.base import About
from glasshouse.audit.scoring.claims.scored import Numbers, ScoredMetric
from glasshouse.audit.scoring.judge import Judge, Target
from glasshouse.errors import NothingClaimed

Measure = Callable[[Target, Target], Numbers]
"""(target, the claim's own target) → scores of the claim against the target, its own or another."""
Null = Callable[[int, Target, Numbers], Numbers]
"""(round, the claim's own target, the claim's scores) → scores of the null adversary on that target."""
Exchange = Callable[[Target], list[float]]
"""The claim's mean score for each exchange of its own target; empty: it cannot be exchanged."""


def score_rounds(
    about: About,
    judge: Judge,
    *,
    measure: Measure,
    null: Null,
    claimed: bool,
    exchange: Exchange | None = None,
) -> ScoredMetric:
    """Score a claim with one victim per round.

    Args:
        about: of the claim.
        judge: of its group.
        measure: scores the claim against a target.
        null: scores the null adversary.
        claimed: the claim is not empty.
        exchange: scores exchanged targets; None: the claim is measured against other victims.
    """
    values, nulls, exchanged, victims = [], [], [], []
    people: dict[str, frozenset[int]] = {}
    for number in about.rounds:
        target = judge.target(number, about.client)
        values.append(measure(target, target))
        nulls.append(null(number, target, values[-1]))
        levels = exchange(target) if exchange else _exchange_scores(about, number, judge, measure, target)
        exchanged.append(np.outer(levels, np.ones(len(values[-1]))) if levels else None)
        victims.append(judge.truth.identity(number, about.client))
        people[victims[-1]] = judge.truth.people(number, about.client)
    return ScoredMetric(
        values=tuple(values),
        nulls=tuple(nulls),
        exchanged=tuple(exchanged),
        victims=tuple(victims),
        people={victim: group for victim, group in people.items() if group},
        claimed=frozenset(victims if claimed else ()),
        runs=frozenset({judge.run}),
    )


def _exchange_scores(about: About, number: int, judge: Judge, measure: Measure, own: Target) -> list[float]:
    """The claim's mean score against each other victim with a score."""
    levels = []
    for target in judge.others(about, number):
        try:
            levels.append(float(measure(target, own).mean()))
        except NothingClaimed:
            continue
    return levels

"""The walk that most scorers share: over the rounds of a claim, with its null and its exchange."""

from collections.abc import Callable

import numpy as np

from glasshouse.attacks.base import About
from glasshouse.audit.scoring.claims.scored import Numbers, ScoredMetric
from glasshouse.audit.scoring.judge import Judge, Target
from glasshouse.errors import NothingClaimed

Measure = Callable[[Target, Target], Numbers]
"""The claim against a target, its own or another; then its own."""
Null = Callable[[int, Target, Numbers], Numbers]
"""The null adversary in a round, on the claim's own target; it may need the claim's own numbers."""
Exchange = Callable[[Target], list[float]]
"""What the claim gets each time its own target is exchanged; empty: that cannot be."""


def score_rounds(
    about: About,
    judge: Judge,
    *,
    measure: Measure,
    null: Null,
    claimed: bool,
    exchange: Exchange | None = None,
) -> ScoredMetric:
    """One victim per round of a claim.

    Args:
        about: of the claim.
        judge: of its group.
        measure: the claim against a target.
        null: what a null adversary gets.
        claimed: the claim says anything at all.
        exchange: how to exchange; None: the claim is measured against other victims.
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
    """One for each other victim of whom something is claimed."""
    levels = []
    for target in judge.others(about, number):
        try:
            levels.append(float(measure(target, own).mean()))
        except NothingClaimed:
            continue
    return levels

"""A ladder of null adversaries, each of which knows more than the one below, and the highest rung beaten.

A claim that beats a mean picture may still show nothing but its label. So the null adversaries are ordered by
what they know: nothing, the domain, the victim's label, everything but the example itself. A finding states
the highest rung up to which it beats *all* null adversaries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.errors import BadValue
from glasshouse.metrics.statistics.interval import Interval, gain_p_value, paired_gain
from glasshouse.metrics.statistics.shares import paired_share_gain, paired_share_p_value, share_interval
from glasshouse.rng import Rng

__all__ = ["Guess", "Kappa", "Step", "best_guess", "climb", "highest_rung"]

ALPHA: Final = 0.025
"""A rung is beaten if the gain over each of its nulls is above 0 at this level, one-sided, as everywhere."""

Guess = Mapping[str, ArrayLike]
"""Scores of the null adversaries of one rung, by name: (n,) each, on the victims of the claims."""


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """One rung of the ladder: the gain over its strongest null adversary.

    Attributes:
        rung: what it knows: "nothing", "domain", "label", "twin".
        null: name of the null adversary over which the gain is least certain.
        null_value: its mean score over victims.
        gain: over it, paired by victim; above 0 leaks.
        p: one-sided, the largest over the rung's null adversaries.
        beaten: p is below ``ALPHA``, and so are those of all rungs below.
    """

    rung: str
    null: str
    null_value: float
    gain: Interval
    p: float
    beaten: bool


@final
@dataclass(frozen=True, kw_only=True)
class Kappa:
    """The best guess without the update, as a bound on any attack needs it.

    Attributes:
        value: mean score of the best one.
        limit: what the best guess can score, from the leaking side, at 97.5 % over all guesses together; a
            bound that starts here is not contradicted by a good guess.
        name: of the best one.
        rung: what it knows.
    """

    value: float
    limit: float
    name: str
    rung: str


def climb(
    values: ArrayLike,
    nulls: Mapping[str, Guess],
    *,
    rng: Rng,
    higher_leaks: bool = True,
    share: bool = False,
    clusters: ArrayLike | None = None,
) -> tuple[Step, ...]:
    """Compare scores with the null adversaries of every rung, from the lowest up.

    The rungs are tested in their order, and none counts as beaten above one that is not: a sequence fixed in
    advance needs no correction for how many there are. On each rung all null adversaries must be beaten.

    Args:
        values: ``(n,)``, one score per victim; for shares one per example.
        nulls: the scores of null adversaries by rung, from the bottom of the ladder; empty rungs are left
            out.
        rng: stream of the intervals.
        higher_leaks: False for errors and distances.
        share: the scores are yes/no outcomes, and null scores means of them.
        clusters: of shares: the victim of each outcome.

    Raises:
        BadValue: numbers of victims differ, or a score is not finite.
        Undefined: fewer than two victims.

    Source:
        Maurer, Hothorn & Lehmacher 1995 (fixed sequences of tests); Berger 1982, Technometrics 24(4)
        (intersection-union tests: all nulls of a rung at their own level).

    Examples:
        >>> nulls = {"domain": {"mean": [1.0, 2.0, 1.5, 1.2]}, "label": {"class mean": [8.0, 9.1, 8.4, 8.8]}}
        >>> [step.beaten for step in climb([8.1, 8.9, 8.5, 8.7], nulls, rng=Rng.root(0))]
        [True, False]
    """
    steps: list[Step] = []
    reached = True
    for rung, guesses in nulls.items():
        if not guesses:
            continue
        tests = {
            name: _compare(
                values, null, rng.child(name), higher_leaks=higher_leaks, share=share, clusters=clusters
            )
            for name, null in guesses.items()
        }
        hardest = max(tests, key=lambda name: (tests[name][1], -tests[name][0].value))
        gain, p = tests[hardest]
        reached = reached and p < ALPHA
        mean = float(np.asarray(guesses[hardest], dtype=np.float64).mean())
        steps.append(Step(rung=rung, null=hardest, null_value=mean, gain=gain, p=p, beaten=reached))
    return tuple(steps)


def highest_rung(
    values: ArrayLike,
    nulls: Mapping[str, Guess],
    *,
    rng: Rng,
    higher_leaks: bool = True,
    share: bool = False,
    clusters: ArrayLike | None = None,
) -> Step | None:
    """The highest rung of :func:`climb` that is beaten; None: not even the lowest.

    Args:
        values: as :func:`climb`.
        nulls: as :func:`climb`.
        rng: as :func:`climb`.
        higher_leaks: as :func:`climb`.
        share: as :func:`climb`.
        clusters: as :func:`climb`.

    Examples:
        >>> nulls = {"domain": {"mean": [1.0, 2.0, 1.5, 1.2]}, "label": {"class mean": [8.0, 9.1, 8.4, 8.8]}}
        >>> step = highest_rung([8.1, 8.9, 8.5, 8.7], nulls, rng=Rng.root(0))
        >>> step.rung
        'domain'
    """
    steps = climb(values, nulls, rng=rng, higher_leaks=higher_leaks, share=share, clusters=clusters)
    return next((step for step in reversed(steps) if step.beaten), None)


def best_guess(
    guesses: Mapping[str, Guess],
    *,
    low: float,
    high: float,
    rng: Rng,
    higher_leaks: bool = True,
    share: bool = False,
    level: float = 0.95,
) -> Kappa:
    """κ: how much the best adversary without a victim's update scores, with its uncertainty.

    A bound e^ε κ + δ holds for κ of the *best* guess. So every guess at hand counts, on all rungs, and the
    claims themselves scored against other victims as one of them (rung "exchange"): a picture that was fitted
    to the metric scores on others what it scores on its victim, and it knows nothing about either's update.

    Args:
        guesses: scores by rung and name, (n,) each, n >= 2; a constant chance level is an array of equal
            numbers.
        low: smallest possible score, finite.
        high: largest possible score, finite.
        rng: stream of the intervals.
        higher_leaks: False for errors and distances: the best guess has the smallest score.
        share: scores in [0, 1] are hits: of none of n the end is that of an exact interval, and not 0.
        level: of the two-sided interval whose leaking end is taken, Bonferroni-corrected for how many guesses
            there are, since the best of them is taken.

    Raises:
        BadValue: there is no guess, or a score is outside the range.
        Undefined: fewer than two victims.

    Examples:
        >>> kappa = best_guess({"domain": {"mean": [0.2, 0.3, 0.25]}}, low=-1.0, high=1.0, rng=Rng.root(0))
        >>> kappa.name, kappa.value, round(kappa.limit, 2)
        ('mean', 0.25, 0.37)
    """
    rows = [(rung, name, np.asarray(v, np.float64)) for rung, r in guesses.items() for name, v in r.items()]
    if not rows or any(not ((row >= low) & (row <= high)).all() for _, _, row in rows):
        raise BadValue(
            "best guess without the update",
            needs=f"scores of at least one null adversary, each in [{low}, {high}]",
            got=f"{len(rows)} null adversaries",
            fix="score the null adversaries of the modality on the victims of the claims",
        )
    sign = 1.0 if higher_leaks else -1.0
    certainty = 1 - (1 - level) / len(rows)
    means = [
        share_interval(row, level=certainty)
        if share
        else paired_gain(sign * row, np.zeros(len(row)), rng=rng.child(name), level=certainty)
        for _, name, row in rows
    ]
    best = max(range(len(rows)), key=lambda i: means[i].value)
    limit = float(np.clip(sign * max(mean.high for mean in means), low, high))
    return Kappa(value=sign * means[best].value, limit=limit, name=rows[best][1], rung=rows[best][0])


def _compare(
    values: ArrayLike,
    null: ArrayLike,
    rng: Rng,
    *,
    higher_leaks: bool,
    share: bool,
    clusters: ArrayLike | None,
) -> tuple[Interval, float]:
    """The gain over one null adversary, and its p-value."""
    if share:
        return paired_share_gain(values, null, clusters), paired_share_p_value(values, null, clusters)
    gain = paired_gain(values, null, rng=rng, higher_leaks=higher_leaks)
    return gain, gain_p_value(values, null, higher_leaks=higher_leaks)

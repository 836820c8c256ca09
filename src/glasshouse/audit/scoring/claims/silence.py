"""Score victims without a claim: they count as misses and are not left out."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from glasshouse.attacks.base import About, Claim
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.claims.rounds import null_numbers, score_rounds
from glasshouse.audit.scoring.claims.scored import Numbers, ScoredMetric
from glasshouse.audit.scoring.claims.scorers import scorer_of
from glasshouse.audit.scoring.judge import Judge, Target
from glasshouse.metrics.base import Metric

SILENT: Final = "nothing was claimed: scored like a guess"


def claimed_kinds(outcomes: Iterable[Outcome]) -> list[type[Claim]]:
    """The kinds of claims that were made and are scored, each once, in order."""
    return list(dict.fromkeys(type(c) for o in outcomes for c in o.claims if c.scored))


def silences(
    units: Sequence[tuple[Unit, Outcome]], kinds: Sequence[type[Claim]], judge: Judge
) -> Iterator[tuple[type[Claim], About]]:
    """Every victim of every unit without a claim of a kind that the attack makes elsewhere.

    The victims of a unit are its update or its rounds; if an attack called for a round or the run makes
    claims about clients, every client in it.
    """
    for kind in kinds:
        named = any(
            c.about.client is not None and unit.client is None
            for unit, outcome in units
            for c in outcome.claims
            if isinstance(c, kind)
        )
        for unit, outcome in units:
            claims = [c for c in outcome.claims if isinstance(c, kind)]
            for about in _victims(unit, judge, clients=named, whole=kind.grows):
                if not any(_covers(claim.about, about) for claim in claims):
                    yield kind, about


def score_silence(
    name: str, metric: Metric, kind: type[Claim], about: About, judge: Judge
) -> ScoredMetric | None:
    """The scores of a victim without a claim; None: the metric does not score claims of this kind."""
    scorer = scorer_of(kind, metric)
    if scorer is None:
        return None
    if judge.terms is not None and (empty := kind.silence(about, judge.terms)) is not None:
        return scorer(name, metric, empty, judge)
    if kind.grows:  # its victims are classes or clients, which only a claim names
        return None

    def measure(target: Target, _: Target) -> Numbers:
        return null_numbers(name, metric, target, judge, count=len(target.batch))

    scored = score_rounds(about, judge, measure=measure, null=lambda _, __, values: values, claimed=False)
    return scored.named(SILENT)


def _victims(unit: Unit, judge: Judge, *, clients: bool, whole: bool) -> list[About]:
    rounds = unit.rounds or tuple(sorted({number for number, _ in judge.truth.used}))
    if whole:
        return [About(rounds=rounds, client=unit.client)]
    if unit.client is not None or not clients:
        return [About(rounds=(number,), client=unit.client) for number in rounds]
    announced = [key for key in judge.announced if key[1] is not None]
    known = {number for number, _ in announced}  # rounds with known participants
    keys = [key for key in sorted(judge.truth.used) if key in announced or key[0] not in known]
    return [About(rounds=(number,), client=client) for number, client in keys if number in rounds]


def _covers(claimed: About, victim: About) -> bool:
    """Whether a claim covers a victim: a claim about a whole round covers all its clients."""
    rounds = set(victim.rounds) & set(claimed.rounds)
    return bool(rounds) and claimed.client in (None, victim.client)

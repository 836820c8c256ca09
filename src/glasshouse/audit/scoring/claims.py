"""Which claims of an attack are judged, and which victims it said nothing about: they count as misses."""

from collections.abc import Iterable, Iterator, Sequence

from glasshouse.attacks.base import About, Claim
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.truth import GroundTruth


def longest_prefix(claims: Sequence[Claim]) -> list[Claim]:
    """Keep only the claims after the most rounds: earlier ones are drawn as a curve, not judged."""
    longest: dict[str, int] = {}
    for claim in claims:
        longest[claim.kind] = max(longest.get(claim.kind, 0), len(claim.about.rounds))
    return [c for c in claims if not c.grows or len(c.about.rounds) == longest[c.kind]]


def claimed_kinds(outcomes: Iterable[Outcome]) -> list[type[Claim]]:
    """The kinds of claims that were made and are scored, each once, in order."""
    return list(dict.fromkeys(type(c) for o in outcomes for c in o.claims if c.scored))


def silences(
    units: Sequence[tuple[Unit, Outcome]], kinds: Sequence[type[Claim]], ground: GroundTruth
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
            for about in _victims(unit, ground, clients=named, whole=kind.grows):
                if not any(_covers(claim.about, about) for claim in claims):
                    yield kind, about


def _victims(unit: Unit, ground: GroundTruth, *, clients: bool, whole: bool) -> list[About]:
    rounds = unit.rounds or ground.rounds
    if whole:
        return [About(rounds=rounds, client=unit.client)]
    if unit.client is not None or not clients:
        return [About(rounds=(number,), client=unit.client) for number in rounds]
    announced = [key for key in ground.announced if key[1] is not None]
    known = {number for number, _ in announced}  # rounds with known participants
    keys = [key for key in sorted(ground.truth.used) if key in announced or key[0] not in known]
    return [About(rounds=(number,), client=client) for number, client in keys if number in rounds]


def _covers(claimed: About, victim: About) -> bool:
    """Whether a claim covers a victim: a claim about a whole round covers all its clients."""
    rounds = set(victim.rounds) & set(claimed.rounds)
    return bool(rounds) and claimed.client in (None, victim.client)

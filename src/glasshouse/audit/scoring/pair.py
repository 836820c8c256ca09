"""Pair claims with the truth: what was claimed about each victim, beside the victim's own and others' truth.

A kind of claim says how it is paired (``Claim.paired``), a metric which part it reads and what it compares
that with. Victims of whom nothing was claimed are paired with silence: they count as misses. Everything
afterwards sees pairs alone. A kind of another package needs no entry here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import (
    About,
    Claim,
    ClassRepresentatives,
    DefenseGuess,
    Reconstruction,
    label_counts,
)
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.truth import EXAMPLES, SHIFTS, GroundTruth, Target
from glasshouse.errors import NothingClaimed, Undefined
from glasshouse.metrics.attribution import said_of_recovered
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.wire import Batch

TURNS: Final = 20
"""Number of exchanges of owners and labels; more would only reduce the variance of the mean."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """A claim's part and the part of a truth that it is compared with; ``context`` None: the usual one."""

    claimed: Tensor
    truth: Tensor
    context: ScoreContext | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """One claim beside the truth of its victim.

    Attributes:
        victim: unique id of the victim's private data, by which two attacks are paired; several if the units
            of the score are victims themselves (classes).
        own: the claim and its victim's truth; None: nothing was claimed, and the victim scores as a guess.
        others: the same claim and other victims' truth.
        blind: the claim without what is judged, which the null adversary scores; None: it guesses examples.
        examples: the victim's private examples; None: it has none of its own.
        twins: other private examples of the victims' labels, for a null who knows all but the victims.
        number: the round; with the client it names the null adversary's random stream.
        client: whose update; None: the whole round.
        people: the people behind the examples.
        guessed: a null adversary that guesses examples makes such a claim.
        answered: the claim says something.
        run: the federation.
        clients: who has the property, (N,), for claims about all clients.
    """

    victim: tuple[str, ...]
    own: Sides | None
    others: tuple[Sides, ...] = ()
    blind: Sides | None = None
    examples: Batch | None = None
    twins: Batch | None = None
    number: int = 0
    client: int | None = None
    people: frozenset[int] = frozenset()
    guessed: bool = False
    answered: bool = True
    run: str = ""
    clients: NDArray[np.bool_] | None = None


def longest_prefix(claims: Sequence[Claim]) -> list[Claim]:
    """Keep only the claims after the most rounds: earlier ones are drawn as a curve, not judged."""
    longest: dict[str, int] = {}
    for claim in claims:
        longest[claim.kind] = max(longest.get(claim.kind, 0), len(claim.about.rounds))
    return [c for c in claims if not c.grows or len(c.about.rounds) == longest[c.kind]]


def claimed_kinds(outcomes: Iterable[Outcome]) -> list[type[Claim]]:
    """The kinds of claims that were made and are scored, each once, in order."""
    return list(dict.fromkeys(type(c) for o in outcomes for c in o.claims if c.scored))


def can_score(kind: type[Claim], metric: Metric) -> bool:
    """Whether the metric scores claims of this kind."""
    return kind.scored and metric.claim in {kind.kind, *kind.also}


def scored_claims(claims: Iterable[Claim], metric: Metric) -> list[Claim]:
    """The claims that the metric scores.

    A claim that holds the metric's matter beside its own, as rebuilt examples hold labels, counts only where
    no claim says it outright: what is certain by counting is not halved by examples that could not be read.
    """
    able = [claim for claim in claims if can_score(type(claim), metric)]
    outright = [claim.about for claim in able if claim.kind == metric.claim]
    return [c for c in able if c.kind == metric.claim or not _is_covered(c.about, outright)]


def pair(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """The claim beside the truth of each of its victims; empty: it lacks the part that the metric reads."""
    paired = "recovered" if metric.of_recovered and claim.paired == "examples" else claim.paired
    return _WAYS[paired](claim, metric, ground)


def pair_claims(claims: Iterable[Claim], metric: Metric, ground: GroundTruth) -> list[Pair]:
    """Every claim that the metric scores, beside the truth of each of its victims."""
    return [one for claim in scored_claims(claims, metric) for one in pair(claim, metric, ground)]


def pair_silences(
    units: Sequence[tuple[Unit, Outcome]], kinds: Sequence[type[Claim]], metric: Metric, ground: GroundTruth
) -> Iterator[list[Pair]]:
    """The pairs of every victim without a claim of a kind that the attack makes elsewhere.

    Metrics of the claims themselves leave out such victims.

    Args:
        units: of one federation, with their outcomes.
        kinds: of all claims of the attack.
        metric: that scores them.
        ground: of the federation.
    """
    claims = [claim for _, outcome in units for claim in outcome.claims]
    outright = [c.about for c in scored_claims(claims, metric) if c.kind == metric.claim]
    for kind, about in silences(units, [kind for kind in kinds if can_score(kind, metric)], ground):
        if kind.kind != metric.claim and _is_covered(about, outright):
            continue
        with suppress(NothingClaimed):
            yield pair_silence(kind, about, metric, ground)


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
                if not _is_covered(about, (claim.about for claim in claims)):
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


def _is_covered(victim: About, claimed: Iterable[About]) -> bool:
    """Whether any of these is about a victim."""
    return any(_covers(about, victim) for about in claimed)


def _covers(claimed: About, victim: About) -> bool:
    """Whether a claim covers a victim: a claim about a whole round covers all its clients."""
    rounds = set(victim.rounds) & set(claimed.rounds)
    return bool(rounds) and claimed.client in (None, victim.client)


def pair_silence(kind: type[Claim], about: About, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """Pairs of a victim without a claim: with the kind's empty claim, else scored like a guess."""
    if ground.terms is not None and (empty := kind.silence(about, ground.terms)) is not None:
        return pair(empty, metric, ground)
    if kind.grows:  # its victims are classes or clients, which only a claim names
        return []
    return [replace(_victim(about, number, ground), answered=False) for number in about.rounds]


def _victim(about: About, number: int, ground: GroundTruth) -> Pair:
    """The victim of a claim in one of its rounds, with nothing claimed about it."""
    return Pair(
        victim=(ground.truth.identity(number, about.client),),
        own=None,
        examples=ground.target(number, about.client).batch,
        number=number,
        client=about.client,
        people=ground.truth.people(number, about.client),
        run=ground.run,
    )


def _with_examples(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """One pair per round of the claim."""
    pairs = []
    whole = metric.against == "inputs" and claim.guessed  # a claim about examples, which have twins
    for number in claim.about.rounds:
        target = ground.target(number, claim.about.client)
        beside = partial(_beside, claim, metric, ground, size=len(target.batch))
        own = beside(target)
        if own is None:
            return []
        others = [beside(other) for other in ground.others(claim.about, number)]
        pairs.append(
            replace(
                _victim(claim.about, number, ground),
                own=own,
                others=tuple(side for side in others if side is not None),
                twins=ground.twins(number, claim.about.client) if whole else None,
                guessed=claim.guessed,
                answered=not claim.says_nothing,
            )
        )
    return pairs


def _beside(claim: Claim, metric: Metric, ground: GroundTruth, other: Target, *, size: int) -> Sides | None:
    """The claim about a victim of ``size`` examples beside another's truth.

    As many candidates count as announced, in proportion for a victim of another size.
    """
    most = ground.allowed(claim.about)
    return _sides(claim, metric, other, ground, count=max(1, most * len(other.batch) // size))


def cross_claims(
    claims: Iterable[Claim], metric: Metric, ground: GroundTruth, *, most: int
) -> list[tuple[Target, list[Sides]]]:
    """Every claim about examples beside the truth of every victim of these claims, in one order.

    Each with the victim that it is about.

    Empty: the metric scores no such claim or more than ``most``, or one lacks the part that it reads.
    """
    if metric.of_recovered:
        return []
    own = [
        (claim, ground.target(number, claim.about.client))
        for claim in scored_claims(claims, metric)
        if claim.paired == "examples"
        for number in claim.about.rounds
    ]
    if len(own) > most:
        return []
    table: list[tuple[Target, list[Sides]]] = []
    for claim, target in own:
        row = (_beside(claim, metric, ground, other, size=len(target.batch)) for _, other in own)
        table.append((target, [side for side in row if side is not None]))
        if len(table[-1][1]) < len(own):  # an exchange needs every pair
            return []
    return table


def _sides(claim: Claim, metric: Metric, target: Target, ground: GroundTruth, *, count: int) -> Sides | None:
    """What is claimed and what is true; None: the claim lacks the part that the metric reads."""
    claimed = claim.part(metric.reads, count)
    if claimed is None:
        return None
    truth = truth_part(metric, target, ground.context)
    if metric.against == "counts":  # both sides over the same classes
        classes = max(ground.context.classes or 0, len(claimed), len(truth))
        claimed, truth = (torch.nn.functional.pad(x, (0, classes - len(x))) for x in (claimed, truth))
    return Sides(claimed=claimed, truth=truth)


def truth_part(metric: Metric, target: Target, context: ScoreContext) -> Tensor:
    """The part of the ground truth that the metric compares with."""
    if metric.against == "vectors":
        assert context.features is not None  # every ground truth has the broadcast model
        return context.features(target.batch.inputs)
    if metric.against == "counts":
        return label_counts(target.batch.labels)
    if metric.against == "examples":
        rows = target.batch.inputs.flatten(1).double()
        return torch.cat([rows, target.batch.labels.double()[:, None]], 1)
    parts = {"inputs": target.batch.inputs, "labels": target.batch.labels, "owners": target.owners}
    return parts[metric.against]


def _with_recovered(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """What is said of the examples that the claim also rebuilt; others keep them, with moved truths."""
    assert isinstance(claim, Reconstruction)
    most, pairs = ground.allowed(claim.about), []
    inputs, said = claim.part("inputs", most), claim.part(metric.reads, most)
    assert inputs is not None
    pool = torch.cat([truth_part(metric, ground.target(r, None), ground.context) for r in ground.rounds])
    step = max(1, len(pool) // TURNS)
    for number in claim.about.rounds:
        target = ground.target(number, claim.about.client)
        originals, true = target.batch.inputs, truth_part(metric, target, ground.context)
        claimed = said_of_recovered(inputs, said, originals, context=ground.context)
        unsaid = said_of_recovered(inputs, None, originals, context=ground.context)
        # The exchange: truths of others, at shifts spread evenly over the pool instead of all of them.
        shifted = [pool.roll(shift)[: len(true)] for shift in range(step, len(pool), step)]
        pairs.append(
            replace(
                _victim(claim.about, number, ground),
                own=Sides(claimed=claimed, truth=true),
                others=tuple(Sides(claimed=claimed, truth=other) for other in shifted),
                blind=Sides(claimed=unsaid, truth=true),
                answered=not claim.says_nothing,
            )
        )
    return pairs


def _with_classes(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """One pair with one unit per private class; others are the same images under moved class names."""
    assert isinstance(claim, ClassRepresentatives)
    gallery = ground.context.gallery
    if gallery is None:
        metric.score(claim.inputs, claim.labels, context=ground.context)  # raises, and says what is missing
        return []
    claimed = claim.source if metric.reads == "source" else claim.inputs
    # Owners cost nothing to compare, so they are exchanged with all other classes.
    most = max(1, min(SHIFTS, EXAMPLES // (2 * gallery.targets)))
    shifts = range(1, gallery.targets if metric.reads == "source" else min(gallery.targets, 1 + most))
    others = [
        Sides(claimed=claimed, truth=claim.labels, context=ground.with_classes_moved(by)) for by in shifts
    ]
    return [
        Pair(
            victim=tuple(f"class {gallery.classes[j]}" for j in claim.labels.tolist()),
            own=Sides(claimed=claimed, truth=claim.labels, context=ground.context),
            others=tuple(others),
            run=ground.run,
        )
    ]


def _with_clients(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """All clients of the federation in one pair."""
    claimed = claim.part(metric.reads, 0)
    assert claimed is not None
    truth = ground.truth.with_property(len(claimed))
    return [
        Pair(
            victim=tuple(f"{ground.run} client {i}" for i in range(len(claimed))),
            own=Sides(claimed=claimed, truth=torch.from_numpy(truth)),
            answered=not claim.says_nothing,
            run=ground.run,
            clients=truth,
        )
    ]


def _with_defense(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """The claimed defences and the real ones; the same for all victims, so without others."""
    del metric
    assert isinstance(claim, DefenseGuess)
    guess = torch.tensor([0 if claim.name == ground.defense else -1])
    behind = " ".join(ground.truth.identity(number, claim.about.client) for number in claim.about.rounds)
    own = Sides(claimed=guess, truth=torch.zeros_like(guess))
    return [Pair(victim=(behind,), own=own, answered=not claim.says_nothing, run=ground.run)]


def _with_authors(claim: Claim, metric: Metric, ground: GroundTruth) -> list[Pair]:
    """One pair for every client but the adversary, with one unit for each of its messages after the first.

    The null links every message to the one that came in the same place of the first round, or to any with
    equal chances: whichever is right more often, as somebody may know that the order hardly changes.
    """
    claimed = claim.part(metric.reads, 0)
    arrived = ground.truth.arrived
    assert claimed is not None
    rows = {number: row for number, row in zip(claim.about.rounds, claimed, strict=True) if number in arrived}
    if claim.says_nothing:  # about every round whose messages were sent round, which the last one's were not
        rows = dict.fromkeys(sorted(arrived)[:-1], claimed[0])
    start = min(arrived, default=0)
    rows.pop(start, None)
    if not rows:
        raise Undefined(
            f"metric '{metric.wording.label}'",
            needs="a claim about rounds after the first, and the order in which messages came",
            got=f"rounds {list(claim.about.rounds)}, of {len(arrived)} recorded ones",
            fix="record every round from the first on, and audit three rounds or more",
        )
    first, mine = arrived[start], ground.adversary
    others = [place for place, client in enumerate(first) if client != mine]
    said = torch.stack(list(rows.values()))
    weights = torch.nn.functional.one_hot(said.clamp(min=0), len(first)) * (said >= 0)[..., None]
    uniform = torch.zeros(len(first)).index_fill(0, torch.tensor(others), 1 / len(others))
    # The places of the nameless messages in every round, by the place of their author's first message.
    places = [[arrived[number].index(first[place]) for place in others] for number in rows]
    kept = np.mean([sorted(now).index(now[j]) == j for now in places for j in range(len(others))])
    same_order = kept * len(others) > 1
    pairs = []
    for j, place in enumerate(others):
        own = torch.stack([weights[t, now[j]] for t, now in enumerate(places)]).double()
        ranks = [others[sorted(now).index(now[j])] for now in places]
        stay = torch.nn.functional.one_hot(torch.tensor(ranks), len(first)).double()
        truth = torch.full((len(own),), place)
        turned = [others[(j + by) % len(others)] for by in range(1, min(SHIFTS, len(others) - 1) + 1)]
        side = Sides(claimed=own, truth=truth)
        pairs.append(
            Pair(
                victim=(f"{ground.run} client {first[place]}",),
                own=side,
                others=tuple(replace(side, truth=torch.full_like(truth, other)) for other in turned),
                blind=replace(side, claimed=stay if same_order else uniform.expand(len(own), -1)),
                answered=not claim.says_nothing,
                run=ground.run,
            )
        )
    return pairs


_WAYS: Final[Mapping[str, Callable[[Claim, Metric, GroundTruth], list[Pair]]]] = {
    "examples": _with_examples,
    "recovered": _with_recovered,
    "classes": _with_classes,
    "clients": _with_clients,
    "defense": _with_defense,
    "authors": _with_authors,
}
"""By what a kind of claim declares, or a metric of recovered examples."""

"""Joins claim and truth, in one place: numbers per victim for every metric of one attack in one cell."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import (
    Claim,
    ClassRepresentatives,
    ClientScores,
    DefenseGuess,
    Labels,
    PriorSamples,
    Reconstruction,
    Representations,
)
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.class_score import score_classes
from glasshouse.audit.scoring.nulls import CHANCE, average_score, chosen, counts
from glasshouse.errors import NothingClaimed, Undefined
from glasshouse.metrics.attribution import said_of_recovered
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch

COIN = "coin that knows the prior and how many were called"
GUESS = "guess among the clients or classes"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """The scoring side of one group: truth, what metrics need beside it, and the adversary's auxiliary data.

    Attributes:
        truth: of the group. context: for the metrics. auxiliary: what null adversaries know.
        rng: for the draws of null adversaries; unrelated to the attacks' streams.
        quoted: null already chosen, by metric name and batch size.
        draws: of the generator of the attack that is judged, where it filed some.
        defense: names of the defences that are on, joined by " + "; "none" without.
    """

    truth: Truth
    context: ScoreContext
    auxiliary: Batch | None
    rng: Rng
    among: tuple[str, ...] = ()
    quoted: dict[tuple[str, int], str] = field(default_factory=dict)
    draws: Batch | None = None
    defense: str = "none"

    def null(self, name: str, metric: Metric, count: int) -> str:
        """Name of the null that is quoted for this metric and batch size.

        Raises:
            Undefined: no auxiliary data to choose on.
        """
        if self.auxiliary is None:
            raise Undefined(
                f"null baseline of metric '{name}'",
                needs="auxiliary data",
                got="none",
                fix="set data.auxiliary: a number without a null adversary beside it proves nothing",
            )
        if (name, count) not in self.quoted:
            stream = self.rng.child(f"null/{name}/{count}")
            self.quoted[name, count] = chosen(
                metric,
                self.auxiliary,
                count=count,
                context=self.context,
                rng=stream,
                among=self.among,
                draws=self.draws,
            )
        return self.quoted[name, count]

    def against(self, truth: Truth) -> "Judge":
        """The same judge with another truth; the nulls chosen so far stay."""
        gallery = self.context.gallery
        other = None if gallery is None else gallery.holding(truth.private, truth.shards)
        return Judge(
            truth=truth,
            context=dataclasses.replace(self.context, gallery=other),
            auxiliary=self.auxiliary,
            rng=self.rng,
            among=self.among,
            quoted=self.quoted,
            draws=self.draws,
            defense=self.defense,
        )

    def of(self, outcomes: Iterable[Outcome]) -> "Judge":
        """The judge of one attack: with what it filed of its generator as a further null."""
        filed = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
        if not filed:
            return self
        draws = Batch(
            inputs=torch.cat([c.inputs for c in filed]), labels=torch.cat([c.labels for c in filed])
        )
        return dataclasses.replace(self, draws=draws, quoted={})


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """One metric of one attack: for each victim its numbers, and those of the null adversary on the same.

    Attributes:
        values, nulls: one array per victim. baseline: name of the null.
        victims: the private data behind each of ``values``, no two alike; two attacks are paired by it.
        clients: (scores, truth) of pooled metrics, one pair per run; values are empty then.
    """

    values: tuple[NDArray[np.float64], ...] = ()
    nulls: tuple[NDArray[np.float64], ...] = ()
    victims: tuple[str, ...] = ()
    baseline: str = ""
    clients: tuple[tuple[NDArray[np.float64], NDArray[np.bool_]], ...] = ()

    def __add__(self, other: "Scored") -> "Scored":
        """Two claims, rounds or seeds together: the same private data twice is one victim (decision 0007)."""
        values: dict[str, list[NDArray[np.float64]]] = {}
        nulls: dict[str, list[NDArray[np.float64]]] = {}
        for part in (self, other):
            for victim, value, null in zip(part.victims, part.values, part.nulls, strict=True):
                values.setdefault(victim, []).append(value)
                nulls.setdefault(victim, []).append(null)
        return Scored(
            values=tuple(map(np.concatenate, values.values())),
            nulls=tuple(map(np.concatenate, nulls.values())),
            victims=tuple(values),
            baseline=self.baseline or other.baseline,
            clients=self.clients + other.clients,
        )


def score_outcomes(name: str, metric: Metric, outcomes: Iterable[Outcome], judge: Judge) -> Scored | None:
    """All claims of one attack that ``metric`` can score; None when there are none.

    A number about what was claimed leaves out victims of whom nothing was, unless that is all of them.

    Raises:
        Undefined: the metric or its null is not determined by the data.
    """
    total, nothing = Scored(), None
    for claim in (claim for outcome in outcomes for claim in judged(outcome.claims)):
        try:
            one = _score(name, metric, claim, judge)
        except NothingClaimed as error:
            nothing = error
            continue
        if one:
            total += one
    if total.values or total.clients:
        return total
    if nothing:
        raise nothing
    return None


def _score(name: str, metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    return (
        _score_clients(metric, claim, judge)
        or _score_said(metric, claim, judge)
        or _score_vectors(metric, claim, judge)
        or _score_classes(metric, claim, judge)
        or _score_defense(metric, claim, judge)
        or _score_examples(name, metric, claim, judge)
    )


def judged(claims: Sequence[Claim]) -> list[Claim]:
    """Without what was claimed after fewer rounds: that makes a curve, the longest prefix is judged."""
    grows = (ClientScores, ClassRepresentatives)
    longest = max((len(c.about.rounds) for c in claims if isinstance(c, grows)), default=0)
    return [c for c in claims if not isinstance(c, grows) or len(c.about.rounds) == longest]


def _score_classes(metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    if metric.claim != "class_representatives" or not isinstance(claim, ClassRepresentatives):
        return None
    values, nulls, baseline = score_classes(metric, claim, judge.context, judge.draws)
    assert judge.context.gallery is not None  # the metric has refused otherwise
    people = tuple(f"class {judge.context.gallery.classes[j]}" for j in claim.labels.tolist())
    return Scored(values=values, nulls=nulls, victims=people, baseline=baseline)


def _score_defense(metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    """The named defences against those that were on; a guess is right with the metric's chance."""
    if metric.claim != "defense" or not isinstance(claim, DefenseGuess):
        return None
    told = torch.tensor([0 if claim.name == judge.defense else -1])
    value = metric.score(told, torch.zeros_like(told), context=judge.context)
    null = np.full(1, metric.chance(judge.context) or 0.0)
    behind = " ".join(_victims(claim, judge))
    return Scored(values=(value,), nulls=(null,), victims=(behind,), baseline=CHANCE)


def _victims(claim: Claim, judge: Judge) -> tuple[str, ...]:
    """The private data behind each round of a claim."""
    return tuple(judge.truth.identity(number, claim.about.client) for number in claim.about.rounds)


def _score_examples(name: str, metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    claimed = _claimed_batch(metric, claim)
    if claimed is None:
        return None
    values, nulls, baseline = [], [], ""
    for number in claim.about.rounds:
        truth, _ = judge.truth.batch(number, claim.about.client)
        baseline = judge.null(name, metric, len(truth))
        where = f"victim/{name}/{number}/{claim.about.client}"
        assert judge.auxiliary is not None  # judge.null has checked
        values.append(_score_claim(metric, claimed, truth, judge.context))
        nulls.append(
            average_score(
                baseline,
                metric,
                judge.auxiliary,
                truth,
                context=judge.context,
                rng=judge.rng.child(where),
                draws=judge.draws,
            )
        )
    return Scored(values=tuple(values), nulls=tuple(nulls), victims=_victims(claim, judge), baseline=baseline)


def _score_said(metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    """What a reconstruction says beside the image; the null guesses at chance level on the same examples."""
    if metric.reads not in ("source", "labels") or not isinstance(claim, Reconstruction):
        return None
    said = claim.source if metric.reads == "source" else claim.labels
    values: list[NDArray[np.float64]] = []
    nulls: list[NDArray[np.float64]] = []
    for number in claim.about.rounds:
        truth, owners = judge.truth.batch(number, claim.about.client)
        known = owners if metric.reads == "source" else truth.labels
        for told, into in ((said, values), (None, nulls)):
            paired = said_of_recovered(claim.inputs, told, truth.inputs, context=judge.context)
            into.append(metric.score(paired, known, context=judge.context))
    return Scored(values=tuple(values), nulls=tuple(nulls), victims=_victims(claim, judge), baseline=GUESS)


def _score_vectors(metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    """Representations against those of the private examples; a guess is right with the metric's chance."""
    if metric.claim != "representations" or not isinstance(claim, Representations):
        return None
    assert judge.context.features is not None  # every judge rebuilds the model that was sent
    values = [
        metric.score(
            claim.vectors,
            judge.context.features(judge.truth.batch(number, claim.about.client)[0].inputs),
            context=judge.context,
        )
        for number in claim.about.rounds
    ]
    level = metric.chance(judge.context) or 0.0
    nulls = tuple(np.full(len(v), level) for v in values)
    return Scored(values=tuple(values), nulls=nulls, victims=_victims(claim, judge), baseline=CHANCE)


def _claimed_batch(metric: Metric, claim: Claim) -> Tensor | None:
    """The part of a claim that the metric reads; labels as counts."""
    if metric.claim == "reconstruction" and metric.reads == "inputs" and isinstance(claim, Reconstruction):
        return claim.inputs
    if metric.claim == "labels" and isinstance(claim, Labels):
        return claim.counts
    if metric.claim == "labels" and isinstance(claim, Reconstruction) and claim.labels is not None:
        return counts(claim.labels, 0)
    return None


def _score_claim(metric: Metric, claimed: Tensor, truth: Batch, context: ScoreContext) -> NDArray[np.float64]:
    if metric.claim != "labels":
        return metric.score(claimed, truth.inputs, context=context)
    classes = max(context.classes or 0, len(claimed), int(truth.labels.max()) + 1)
    padded = torch.nn.functional.pad(claimed, (0, classes - len(claimed)))
    return metric.score(padded, counts(truth.labels, classes), context=context)


def _score_clients(metric: Metric, claim: Claim, judge: Judge) -> Scored | None:
    if metric.claim != "clients" or not isinstance(claim, ClientScores):
        return None
    claimed = claim.scores if metric.reads == "scores" else claim.decisions
    return Scored(
        clients=((claimed.double().numpy(), judge.truth.with_property(len(claim.scores))),), baseline=COIN
    )


def relabelled(truth: Truth) -> Truth:
    """The truth with every private class's images exchanged for the next class's, for a negative control."""
    labels = truth.private.labels
    turned = Batch(inputs=truth.private.inputs, labels=(labels + 1) % (int(labels.max()) + 1))
    return dataclasses.replace(truth, private=turned)


def shifted(truth: Truth, units: Mapping[tuple[int, int], tuple[int, int]]) -> Truth:
    """The truth with each victim's examples exchanged for another's, for a negative control.

    Properties move to as many clients that do not have them, as far as there are so many.
    """
    used = {key: truth.used[other] for key, other in units.items()}
    marked = {
        name: tuple(c for c in truth.shards if c not in clients)[: len(clients)]
        for name, clients in truth.marked.items()
    }
    return Truth(private=truth.private, shards=truth.shards, used=used, marked=marked)

"""Scorers: how a metric scores a kind of claim, by the kind and by what the metric reads.

A kind of claim or a metric of another package needs no entry here: if the metric names the kind as its
``claim``, it gets the claim's field that it ``reads`` and the private examples (:func:`score_field`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, ClientScores, DefenseGuess, Labels, Reconstruction, Representations
from glasshouse.attacks.sequences import OccurredTokens, Sequences
from glasshouse.audit.scoring.claims.candidates import most_confident, surest
from glasshouse.audit.scoring.claims.class_score import score_classes
from glasshouse.audit.scoring.claims.rounds import Measure, score_field, score_rounds
from glasshouse.audit.scoring.claims.scored import ClientSample, Numbers, ScoredMetric
from glasshouse.audit.scoring.judge import Judge, Target
from glasshouse.audit.scoring.nulls import AT_ONCE, CHANCE, batched, counts
from glasshouse.metrics.attribution import said_of_recovered
from glasshouse.metrics.base import ComparingMetric, Metric, check_images

COIN: Final = "coin that knows the prior and how many were called"
GUESS: Final = "guess among the clients or classes"
TURNS: Final = 20
"""Number of exchanges of owners and labels; more would only reduce the variance of the mean."""

Scorer = Callable[[str, Metric, Claim, Judge], ScoredMetric | None]
"""Name of the metric, the metric, one claim, the judge → scores; None: the claim lacks what is scored."""


def scorer_of(kind: type[Claim], metric: Metric) -> Scorer | None:
    """The scorer of ``metric`` for claims of ``kind``; None: it does not score them."""
    if not kind.scored:
        return None
    listed = SCORERS.get((kind.kind, metric.claim, metric.reads))
    return listed or (score_field if metric.claim == kind.kind else None)


def score_images(name: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score images against the private ones."""
    assert isinstance(claim, Reconstruction)
    most, together = judge.announced_for(claim.about), judge.compared.get(claim, {})

    def measure(target: Target, own: Target) -> Numbers:
        if target in together:
            return together[target]
        count = _allowed_count(most, target, own)
        return metric.score(most_confident(claim, count).inputs, target.batch.inputs, context=judge.context)

    return _beside_nulls(name, metric, claim, judge, measure=measure, claimed=len(claim.inputs) > 0)


def compare_together(metric: Metric, claims: Sequence[Claim], judge: Judge) -> None:
    """Compare single images of all claims with their victims and with other victims, in few operations.

    Only for victims of one example. Stores the results in ``judge.compared``, replacing another metric's.
    """
    judge.compared.clear()
    if not isinstance(metric, ComparingMetric) or scorer_of(Reconstruction, metric) is not score_images:
        return
    shape = judge.truth.private.inputs.shape[1:]
    pairs = [
        (claim, target)
        for claim in claims
        if isinstance(claim, Reconstruction) and claim.inputs.shape == (1, *shape)
        for number in claim.about.rounds
        for target in (judge.target(number, claim.about.client), *judge.others(claim.about, number))
        if len(target.batch) == 1
    ]
    for part in batched(pairs, max(1, AT_ONCE // shape.numel())):
        claimed = torch.cat([claim.inputs for claim, _ in part])
        truths = torch.cat([target.batch.inputs for _, target in part])
        check_images("images", claimed, truths)
        values = metric.compare(claimed.double(), truths.double(), context=judge.context)
        for i, (claim, target) in enumerate(part):
            judge.compared.setdefault(claim, {})[target] = values[i : i + 1]


def score_sentences(name: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score sentences against the private ones."""
    assert isinstance(claim, Sequences)
    most = judge.announced_for(claim.about)

    def measure(target: Target, own: Target) -> Numbers:
        tokens = surest(claim.tokens, claim.confidence, _allowed_count(most, target, own))
        return metric.score(tokens, target.batch.inputs, context=judge.context)

    return _beside_nulls(name, metric, claim, judge, measure=measure, claimed=len(claim.tokens) > 0)


def score_tokens(name: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score claimed tokens against those of the private sentences."""
    assert isinstance(claim, OccurredTokens)

    def measure(target: Target, _: Target) -> Numbers:
        return metric.score(claim.ids, target.batch.inputs, context=judge.context)

    return _beside_nulls(name, metric, claim, judge, measure=measure, claimed=len(claim.ids) > 0)


def _allowed_count(most: int, target: Target, own: Target) -> int:
    """Number of candidates that count: as many as announced, in proportion for a target of another size."""
    return max(1, most * len(target.batch) // len(own.batch))


def score_counts(name: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric | None:
    """Score class counts, claimed directly or as the labels of images."""
    assert isinstance(claim, Labels | Reconstruction)
    if isinstance(claim, Reconstruction) and claim.labels is None and len(claim.inputs):
        return None
    most = judge.announced_for(claim.about)

    def measure(target: Target, own: Target) -> Numbers:
        if isinstance(claim, Labels):
            claimed = claim.counts
        else:
            labels = most_confident(claim, _allowed_count(most, target, own)).labels
            claimed = counts(torch.zeros(0) if labels is None else labels, 1)
        classes = max(judge.context.classes or 0, len(claimed), int(target.batch.labels.max()) + 1)
        padded = torch.nn.functional.pad(claimed, (0, classes - len(claimed)))
        return metric.score(padded, counts(target.batch.labels, classes), context=judge.context)

    anything = bool(claim.counts.any()) if isinstance(claim, Labels) else len(claim.inputs) > 0
    return _beside_nulls(name, metric, claim, judge, measure=measure, claimed=anything)


def _beside_nulls(
    name: str,
    metric: Metric,
    claim: Claim,
    judge: Judge,
    *,
    measure: Measure,
    claimed: bool,
) -> ScoredMetric:
    """Score a claim and, on the same victims, the null adversary quoted for batches of their size."""
    quoted: list[str] = []
    most: list[float] = []

    def null(number: int, target: Target, values: Numbers) -> Numbers:
        quoted.append(judge.null(name, metric, len(target.batch)))
        most.extend(x for x in (judge.null_most(name, metric, len(target.batch)),) if x is not None)
        guessed = judge.null_scores(name, metric, target.batch, number=number, client=claim.about.client)
        # Scores per claim have as many units as claims, and a null may make another number of claims.
        return guessed if len(guessed) == len(values) else np.full(len(values), guessed.mean())

    scored = score_rounds(claim.about, judge, measure=measure, null=null, claimed=claimed)
    return scored.named(quoted[-1], most=max(most, default=None))


def score_statements(_: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score the owners or labels in a reconstruction; the null guesses at chance level on the same examples.

    The exchange replaces the owners or labels of recovered examples by those from the whole ground truth.
    """
    assert isinstance(claim, Reconstruction)
    candidates = most_confident(claim, judge.announced_for(claim.about))
    statements = candidates.source if metric.reads == "source" else candidates.labels

    def score(guesses: Tensor | None, target: Target, labels: Tensor) -> Numbers:
        paired = said_of_recovered(candidates.inputs, guesses, target.batch.inputs, context=judge.context)
        return metric.score(paired, labels, context=judge.context)

    def measure(target: Target, _: Target) -> Numbers:
        return score(statements, target, _known_labels(metric, target))

    def null(_: int, target: Target, __: Numbers) -> Numbers:
        return score(None, target, _known_labels(metric, target))

    def exchange(target: Target) -> list[float]:
        rounds = sorted({number for number, _ in judge.truth.used})
        pool = torch.cat([_known_labels(metric, judge.target(number, None)) for number in rounds])
        shifts = range(max(1, len(pool) // TURNS), len(pool), max(1, len(pool) // TURNS))
        count = len(target.batch)
        return [float(score(statements, target, pool.roll(shift)[:count]).mean()) for shift in shifts]

    scored = score_rounds(
        claim.about, judge, measure=measure, null=null, claimed=len(claim.inputs) > 0, exchange=exchange
    )
    return scored.named(GUESS)


def _known_labels(metric: Metric, target: Target) -> Tensor:
    return target.owners if metric.reads == "source" else target.batch.labels


def score_vectors(_: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score representations against those of the private examples; the null is the metric's chance level."""
    assert isinstance(claim, Representations)
    features = judge.context.features
    assert features is not None  # every judge builds the broadcast model

    def measure(target: Target, _: Target) -> Numbers:
        return metric.score(claim.vectors, features(target.batch.inputs), context=judge.context)

    def null(_: int, __: Target, values: Numbers) -> Numbers:
        return np.full(len(values), metric.chance(judge.context) or 0.0)

    claimed = len(claim.vectors) > 0
    return score_rounds(claim.about, judge, measure=measure, null=null, claimed=claimed).named(CHANCE)


def score_defense(_: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Score the claimed defences against the real ones; the same for all victims, so without exchange."""
    assert isinstance(claim, DefenseGuess)
    guess = torch.tensor([0 if claim.name == judge.defense else -1])
    value = metric.score(guess, torch.zeros_like(guess), context=judge.context)
    null = np.full(1, metric.chance(judge.context) or 0.0)
    behind = " ".join(judge.truth.identity(number, claim.about.client) for number in claim.about.rounds)
    claimed = frozenset({behind} if claim.name != "unknown" else ())
    return ScoredMetric(
        values=(value,),
        nulls=(null,),
        victims=(behind,),
        baseline=CHANCE,
        claimed=claimed,
        runs=frozenset({judge.run}),
    )


def score_clients(_: str, metric: Metric, claim: Claim, judge: Judge) -> ScoredMetric:
    """Collect scores or decisions about all clients of one federation."""
    assert isinstance(claim, ClientScores)
    values = claim.scores if metric.reads == "scores" else claim.decisions
    truth = judge.truth.with_property(len(values))
    informative = len(torch.unique(claim.scores)) > 1 or len(torch.unique(claim.decisions)) > 1
    clients = frozenset(f"{judge.run} client {i}" for i in range(len(values)) if informative)
    sample = ClientSample(run=judge.run, scores=values.double().numpy(), truth=truth)
    return ScoredMetric(clients=(sample,), baseline=COIN, claimed=clients, runs=frozenset({judge.run}))


SCORERS: Final[Mapping[tuple[str, str, str], Scorer]] = {
    ("reconstruction", "reconstruction", "inputs"): score_images,
    ("reconstruction", "reconstruction", "source"): score_statements,
    ("reconstruction", "reconstruction", "labels"): score_statements,
    ("reconstruction", "labels", "counts"): score_counts,
    ("labels", "labels", "counts"): score_counts,
    ("representations", "representations", "vectors"): score_vectors,
    ("class_representatives", "class_representatives", "inputs"): score_classes,
    ("class_representatives", "class_representatives", "source"): score_classes,
    ("clients", "clients", "scores"): score_clients,
    ("clients", "clients", "decisions"): score_clients,
    ("defense", "defense", "names"): score_defense,
    ("sequences", "sequences", "tokens"): score_sentences,
    ("occurred_tokens", "occurred_tokens", "ids"): score_tokens,
}
"""Scorers by (kind of the claim, kind that the metric scores, what the metric reads)."""

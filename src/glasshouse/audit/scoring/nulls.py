"""Null adversaries: baselines that make claims without seeing an update.

Each is scored like an attack, on the same victims. The quoted one is fixed before the judged data are seen:
the one that scores best on pseudo-victims sampled from the auxiliary data (the adversary's own), with the
rest of these data as its knowledge.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import PriorSamples
from glasshouse.audit.scoring.claims.scored import cluster, means_of
from glasshouse.audit.scoring.sentence_nulls import KEPT, SENTENCES, frequent_tokens
from glasshouse.errors import Undefined
from glasshouse.metrics.base import ComparingMetric, Metric, ScoreContext, check_images
from glasshouse.metrics.match import pair_groups
from glasshouse.metrics.statistics.shares import share_interval, share_p_value
from glasshouse.rng import Rng
from glasshouse.wire import Batch

T = TypeVar("T")
Guess = Callable[[Batch, int, Rng], Batch]
Parts = tuple[Batch, Batch, ScoreContext]
"""Auxiliary data split into a null's knowledge and the pool of pseudo-victims, with the scoring context."""
OF_SENTENCES: Final = ("sequences", "occurred_tokens")
"""Kinds of claims about tokens."""
PSEUDO_VICTIMS = 40
DRAWS = 10
EXAMPLES = 1000
"""Largest number of examples for a choice or an average: large batches get fewer pseudo-victims and draws."""
AT_ONCE = 2**21
"""Image values that a metric compares at a time; in float64, with SSIM's intermediates, about 150 MB."""
FEW_VALUES = 2**20
"""Image values of pseudo-victims up to which all nulls are compared with them at a time, to save memory."""
LUCK = 0.025
"""A null replaces a known chance level only if its hit rate exceeds it at this level, over all nulls."""
CHANCE = "chance"
"""The metric's own chance level, where known in closed form."""


def mean_image(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """The mean of the auxiliary images, ``count`` times; labels sampled from the auxiliary labels."""
    mean = _mean(auxiliary)
    inputs = mean.expand(count, *mean.shape[1:])
    return Batch(inputs=inputs.contiguous(), labels=draw(auxiliary, count, rng).labels)


def draw(examples: Batch, count: int, rng: Rng) -> Batch:
    """``count`` random examples with their labels, with replacement."""
    return examples.pick(torch.randint(len(examples), (count,), generator=rng.torch()))


def class_means(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """For ``count`` labels sampled from the auxiliary labels, the mean auxiliary image of each."""
    labels, means = draw(auxiliary, count, rng).labels, _means_by_class(auxiliary)
    return Batch(inputs=torch.stack([means[label] for label in labels.tolist()]), labels=labels)


@lru_cache(maxsize=KEPT)
def _mean(auxiliary: Batch) -> Tensor:
    return auxiliary.inputs.mean(0, keepdim=True)


@lru_cache(maxsize=KEPT)
def _means_by_class(auxiliary: Batch) -> dict[int, Tensor]:
    classes = torch.unique(auxiliary.labels).tolist()
    return {label: auxiliary.inputs[auxiliary.labels == label].mean(0) for label in classes}


def grey(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """A mid-grey image; labels sampled from the auxiliary labels."""
    batch = draw(auxiliary, count, rng)
    return Batch(inputs=torch.full_like(batch.inputs, 0.5), labels=batch.labels)


GENERATOR = "random draw of the attack's generator"
"""For attacks that return samples of their prior: one of these, independent of the update."""
LABELS = "labels drawn from auxiliary data"
NULLS: Mapping[str, Guess] = {
    "mean auxiliary image": mean_image,
    "random auxiliary image": draw,
    "mean image of a guessed class": class_means,
    "grey image": grey,
    LABELS: draw,
    **SENTENCES,
}
STEADY: Final = frozenset({mean_image, grey, frequent_tokens})
"""Deterministic nulls."""


def auxiliary_needed(count: int) -> int:
    """Number of auxiliary examples needed to choose a null adversary for ``count`` examples."""
    return 2 * count + 6


def choose_null(
    metric: Metric,
    auxiliary: Batch,
    *,
    count: int,
    context: ScoreContext,
    rng: Rng,
    among: tuple[str, ...] = (),
    draws: Batch | None = None,
) -> str:
    """Name of the null that scores best on pseudo-victims of ``count`` examples each.

    ``draws``: samples of the attack's own generator, if it has one; they add a null.

    Raises:
        Undefined: too few auxiliary examples to hold any out.
    """
    if len(auxiliary) < auxiliary_needed(count):
        raise Undefined(
            f"null baseline for metric '{metric.card.summary}'",
            needs=f"at least {auxiliary_needed(count)} auxiliary examples",
            got=f"{len(auxiliary)}",
            fix="raise data.auxiliary: it is also what the null adversary knows",
        )
    parts = examples, heldout, context = _parts(auxiliary, context, rng)
    sign = 1 if metric.higher_leaks else -1
    level = metric.chance(context)
    best, best_score = (CHANCE, sign * level) if level is not None and not among else ("", -np.inf)
    further = (GENERATOR,) if draws is not None and metric.claim != "labels" else ()
    names = among or (*_fitting(metric), *further)
    if best and level is not None and metric.counts:
        chance = level if metric.higher_leaks else 1 - level
        every = {name: _pseudo_hits(name, metric, parts, draws, count=count, rng=rng) for name in names}
        names = tuple(name for name in names if _chance_p(every[name], chance) < LUCK / len(every))
    if not names or (len(names) == 1 and not best):
        return best or names[0]  # nothing to choose
    number, stream = _enough(PSEUDO_VICTIMS, count), rng.child("pseudo")
    victims = draw(heldout, number * count, stream.child("victim"))
    together = len(names) if victims.inputs.numel() <= FEW_VALUES else 1  # as they meet the same victims
    scores = []
    for some in batched(names, together):
        guesses = [_guess(name, examples, draws, number * count, stream.child("guess")) for name in some]
        drawn = join_batches(guesses), join_batches([victims] * len(some))
        scores += score_drawn(metric, *drawn, count=count, context=context)
    for name, own in zip(names, batched(scores, number), strict=True):
        value = float(np.mean(means_of(own))) * sign
        if value > best_score:
            best, best_score = name, value
    return best


def largest_share(
    name: str,
    metric: Metric,
    auxiliary: Batch,
    *,
    count: int,
    context: ScoreContext,
    rng: Rng,
    draws: Batch | None = None,
) -> float | None:
    """Upper bound on the hit rate of the null ``name``: upper end of its interval on pseudo-victims.

    If a low rate is the leak, misses are counted. No two pseudo-victims share an example.

    Returns:
        None for metrics that are not rates, or with fewer than two pseudo-victims.
    """
    if not metric.counts or name == CHANCE:
        return None
    parts = _parts(auxiliary, context, rng)
    hits = _pseudo_hits(name, metric, parts, draws, count=count, rng=rng)
    return share_interval(*cluster(hits)).high if len(hits) > 1 else None


def score(metric: Metric, claimed: Batch, truth: Batch, *, context: ScoreContext) -> NDArray[np.float64]:
    """Score a guessed batch as a reconstruction, or by its labels."""
    if metric.claim == "labels":
        classes = context.classes or int(max(claimed.labels.max(), truth.labels.max())) + 1
        return metric.score(counts(claimed.labels, classes), counts(truth.labels, classes), context=context)
    guess = torch.unique(claimed.inputs) if metric.claim == "occurred_tokens" else claimed.inputs
    return metric.score(guess, truth.inputs, context=context)


def score_drawn(
    metric: Metric, guesses: Batch, victims: Batch, *, count: int, context: ScoreContext
) -> list[NDArray[np.float64]]:
    """Score each guess on its victim like :func:`score`; many in one operation if the metric supports it.

    Args:
        metric: of images, sentences or labels.
        guesses: concatenated guesses of ``count`` examples each.
        victims: as many concatenated victims, likewise.
        count: examples per victim.
        context: for the metric.
    """
    if metric.claim == "labels" or not isinstance(metric, ComparingMetric):
        pairs = zip(_split_batches(guesses, count), _split_batches(victims, count), strict=True)
        return [score(metric, guess, victim, context=context) for guess, victim in pairs]
    check_images("null adversary", guesses.inputs, victims.inputs)
    size = max(1, AT_ONCE // victims.inputs[:count].numel()) * count
    each = []
    for claimed, true in zip(
        torch.split(guesses.inputs, size), torch.split(victims.inputs, size), strict=True
    ):
        left, right = claimed.double(), true.double()
        each.append(metric.compare(pair_groups(right, left, count=count), right, context=context))
    return list(np.concatenate(each).reshape(-1, count))


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split the items into chunks of ``size``, in order.

    Examples:
        >>> list(batched("abcde", 2))
        ['ab', 'cd', 'e']
    """
    return (items[i : i + size] for i in range(0, len(items), size))


def average_score(
    name: str,
    metric: Metric,
    auxiliary: Batch,
    truth: Batch,
    *,
    context: ScoreContext,
    rng: Rng,
    draws: Batch | None = None,
) -> NDArray[np.float64]:
    """Scores of the null ``name`` on one victim, per unit, averaged over its random draws.

    Without averaging, the randomness of a single draw would widen, or fake, the gain over the null.
    """
    if name == CHANCE:
        level = metric.chance(context)
        return np.full(len(truth), np.nan if level is None else level)
    is_random = metric.claim == "labels" or name == GENERATOR or NULLS[name] not in STEADY
    number = _enough(DRAWS, len(truth)) if is_random else 1
    guesses = _guess(name, auxiliary, draws, number * len(truth), rng)
    same = truth.pick(torch.arange(len(truth)).repeat(number))
    scores = score_drawn(metric, guesses, same, count=len(truth), context=context)
    if len({len(one) for one in scores}) > 1:  # scores per claim, and guesses differ in number
        return np.array([np.concatenate(scores).mean()])
    return np.asarray(np.mean(scores, axis=0), dtype=np.float64)


def counts(labels: Tensor, classes: int) -> Tensor:
    """Number of labels of each class, (K,)."""
    return torch.bincount(labels.long(), minlength=classes)


def _parts(auxiliary: Batch, context: ScoreContext, rng: Rng) -> Parts:
    """A null's knowledge, pseudo-victims, and the context with distractors that are in neither."""
    order = torch.randperm(len(auxiliary), generator=rng.child("split").torch())
    half = len(auxiliary) // 2
    first, rest = auxiliary.pick(order[:half]), auxiliary.pick(order[half:])
    heldout, others = rest.pick(torch.arange(0, len(rest), 2)), rest.pick(torch.arange(1, len(rest), 2))
    if context.distractors is not None:
        context = replace(context, distractors=others.inputs[: len(context.distractors)])
    return first, heldout, context


def _pseudo_hits(
    name: str, metric: Metric, parts: Parts, draws: Batch | None, *, count: int, rng: Rng
) -> list[NDArray[np.float64]]:
    """A null's outcomes on disjoint pseudo-victims of ``count`` examples each."""
    examples, heldout, context = parts
    every = min(len(heldout) // count, max(2, EXAMPLES // count)) * count
    if not every:
        return []
    victims = heldout.pick(torch.arange(every))
    guesses = _guess(name, examples, draws, every, rng.child(f"apart/{name}"))
    outcomes = score_drawn(metric, guesses, victims, count=count, context=context)
    return outcomes if metric.higher_leaks else [1 - one for one in outcomes]


def _chance_p(hits: list[NDArray[np.float64]], level: float) -> float:
    """p-value of "the null's hit rate is not above chance"; 1 with too few pseudo-victims."""
    if len(hits) < 2:
        return 1.0
    outcomes, clusters = cluster(hits)
    return share_p_value(outcomes, level, clusters)


def _enough(most: int, count: int) -> int:
    return max(2, min(most, EXAMPLES // count))


def _guess(name: str, examples: Batch, draws: Batch | None, count: int, rng: Rng) -> Batch:
    if name == GENERATOR:
        assert draws is not None  # this null exists only if the attack returned samples
        return draw(draws, count, rng)
    return NULLS[name](examples, count, rng)


def join_batches(parts: Sequence[Batch | PriorSamples]) -> Batch:
    """All examples in one batch."""
    columns = zip(*((part.inputs, part.labels) for part in parts), strict=True)
    inputs, labels = map(torch.cat, columns)
    return Batch(inputs=inputs, labels=labels)


def _split_batches(batch: Batch, count: int) -> list[Batch]:
    """Split the examples into batches of ``count``, one per victim."""
    columns = torch.split(batch.inputs, count), torch.split(batch.labels, count)
    return [Batch(inputs=x, labels=y) for x, y in zip(*columns, strict=True)]


def _fitting(metric: Metric) -> tuple[str, ...]:
    """Names of the nulls that guess what the metric scores: labels, images, or sentences."""
    if metric.claim == "labels":
        return (LABELS,)
    about_text = metric.claim in OF_SENTENCES
    return tuple(n for n in NULLS if n != LABELS and (n in SENTENCES) == about_text)

"""The metric interfaces, and the context and the wording that all metrics use.

A metric is a frozen dataclass whose fields are its settings. It receives the part of a claim named by
``reads``, the matching ground truth and a context, and returns one number per unit. Means, intervals and
gains are computed elsewhere (``interval``), because they need all victims at once; a pooled
metric is not a mean.

Shape letters: B private examples, R reconstructions, C channels, H and W pixels, K classes, D features,
N clients, M images among which one is identified.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue, NothingClaimed
from glasshouse.examples import Batch
from glasshouse.limits import Fix, Probability, check_value
from glasshouse.metrics.gallery import Gallery
from glasshouse.metrics.match import mse_table
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.modalities.base import Modality
from glasshouse.registry import Card
from glasshouse.tensors import all_finite
from glasshouse.tokens.vocabulary import Vocabulary

__all__ = [
    "ClaimKind",
    "Features",
    "Hits",
    "Layers",
    "Metric",
    "Reads",
    "Requirement",
    "ScoreContext",
    "Scores",
    "Wording",
    "check_images",
    "nothing_claimed",
    "rate_wording",
]

ClaimKind = str
"""Registered name of a kind of claim: ``reconstruction``, ``labels``, ``clients``, ``class_representatives``,
``representations``, ``defense``, ``sequences``, ``occurred_tokens``, or another package's."""
Reads = str
"""A tensor of the claim, or what the audit derives from one for its own metrics: ``inputs``, ``counts``,
``vectors``, ``scores``, ``decisions``, ``source``, ``labels``, ``names``, ``tokens``, ``ids``."""

Requirement = Literal["distractors", "stand_in"]
"""What the score context must contain: other images, or a network trained on auxiliary data."""

Scores = NDArray[np.float64]
"""What a metric returns: one number per unit."""
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

Features = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) in [0, 1] to vectors (B, D)."""
Layers = Callable[[Tensor], Sequence[Tensor]]
"""Images (B, C, H, W) in [0, 1] to activations (B, C', H', W') of several layers."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreContext:
    """What some metrics need besides claim and truth; available to the scorer only, never to an attack.

    Attributes:
        distractors: (M - 1, C, H, W), other images from the distribution of the private examples, none of
            them a private example of this claim; for identification.
        features: for ``mse_r``.
        perceptual: for ``perceptual``; a network that no attack of the run has used.
        classes: K.
        prior: share of positives that random guessing assumes, in (0, 1).
        called: share of the clients that the claim calls positive, in [0, 1]; a guess may call as many.
        inputs: what examples look like; None: not known.
        image_range: declared smallest and largest pixel value.
        gallery: mean images of classes.
        classify: images to classes (B,), by a network that no attack has used.
        vocabulary: for sentences; None in an audit of images.
    """

    distractors: Tensor | None = None
    features: Features | None = None
    perceptual: Layers | None = None
    classes: int | None = None
    prior: float | None = None
    called: float | None = None
    inputs: Modality | None = None
    image_range: tuple[float, float] = (0.0, 1.0)
    gallery: Gallery | None = None
    classify: Features | None = None
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        low, high = self.image_range
        if not low < high:
            raise BadValue(
                "score context",
                needs="image_range = (low, high) with low < high",
                got=f"{self.image_range}",
                fix="declare the range of the images: (0.0, 1.0)",
            )
        hint = Annotated[Probability, Fix("give the share of positives")] | None
        check_value("score context", "prior", self.prior, hint)

    @property
    def data_range(self) -> float:
        """Largest minus smallest possible pixel."""
        return self.image_range[1] - self.image_range[0]

    @property
    def grey(self) -> float:
        """Middle of the image range: the reconstruction assumed for an original without a pair."""
        return (self.image_range[0] + self.image_range[1]) / 2


@final
@dataclass(frozen=True, kw_only=True)
class Wording:
    """How a report explains a metric to a reader who does not know it.

    Attributes:
        label: for tables and axes.
        sentence: what the attack did, with one ``{}`` for the value ("rebuilt private images at PSNR {}").
        explanation: one line for a lay reader: what it is, which direction is worse, what guessing reaches.
        display: ``rate`` as a percentage, ``level`` in decibels, ``plain`` unformatted.
        severity: the kind of private information that leaked; the report orders by it.
        order: position among metrics of the same severity; smaller ones are quoted first.
        note: what to know when comparing the number with one in a paper.
        private: the number is about private data; where False, it is never a headline.
        worse: the direction in which more leaks.
        chance: what guessing reaches, in words.
        range: smallest and largest possible number; infinite where it is unbounded.
        unit: of the numbers.
        headline: what came out, for a title, with one ``{}`` for how many of which ("8 of 8 pictures");
            empty: ``sentence`` serves.
        landmarks: example values and their meaning, for an image metric that needs no context; the report
            shows a picture of each.
    """

    label: str
    sentence: str
    explanation: str
    display: Literal["rate", "level", "plain"] = "plain"
    severity: Literal["images", "membership", "descriptions", "labels", "other"] = "other"
    order: int = 1000
    note: str = ""
    private: bool = True
    worse: Literal["up", "down"] = "up"
    chance: str = "depends on the data: see the null baseline"
    range: tuple[float, float] = (-math.inf, math.inf)
    unit: Literal["dB", "share", ""] = ""
    landmarks: tuple[tuple[float, str], ...] = ()
    headline: str = ""

    @property
    def higher_leaks(self) -> bool:
        """A larger number means more leakage."""
        return self.worse == "up"

    def __post_init__(self) -> None:
        places = {text.count("{}") for text in (self.sentence, self.headline) if text}
        if not self.sentence or places != {1} or not self.label or not self.explanation:
            raise BadValue(
                f"wording of metric '{self.label}'",
                needs="a label, an explanation, and a sentence with one {} for the value",
                got=f"sentence '{self.sentence}', explanation '{self.explanation}'",
                fix="docs/plugins.md shows a complete metric",
            )


rate_wording = partial(Wording, display="rate", unit="share", range=(0.0, 1.0))
"""The wording of a metric that a report shows as a percentage."""


def nothing_claimed(name: str, what: str, instead: str) -> NothingClaimed:
    """The error of a metric of what was claimed, for a claim that is empty."""
    subject, fix = f"metric '{name}'", f"look at '{instead}' instead"
    return NothingClaimed(subject, needs=f"at least one {what}", got="none", fix=fix)


class Metric(ABC):
    """A metric with one number per unit, to be averaged over units. The defaults are those for examples.

    ``score`` is required. The other methods are optional: they return None where a metric has no such thing.
    Direction, range and unit stand in its wording.

    Class attributes:
        card: summary and source; the direction and the chance level are added from the wording.
        wording: how a report shows it.
        requires: what it needs from the context; the audit provides only that.
        claim: kind of claim that it scores.
        reads: the part of the claim that is the first argument of ``score``.
        against: the part of the ground truth that is the second: ``inputs``, ``labels``, ``counts`` of
            labels, ``examples`` (rows with their label behind them, (B, F + 1)), ``owners`` or ``vectors``
            (features of the inputs).
        of_recovered: the part that it reads counts only for examples that the claim also rebuilt.
        counts: numbers are 0 or 1 per unit, so that the mean is a share and its interval is exact.
        of_claims: units are claimed examples, not private ones.
        null_name: its own :meth:`null` in words.
    """

    card: ClassVar[Card]
    wording: ClassVar[Wording]
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    claim: ClassVar[ClaimKind] = "reconstruction"
    reads: ClassVar[Reads] = "inputs"
    against: ClassVar[Reads] = "inputs"
    of_recovered: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    of_claims: ClassVar[bool] = False
    null_name: ClassVar[str] = "the metric's own null adversary"

    def __init_subclass__(cls) -> None:
        card, wording = cls.__dict__.get("card"), cls.__dict__.get("wording")
        if isinstance(card, Card) and isinstance(wording, Wording):
            words = {"direction": f"{wording.worse} is worse for privacy", "chance": wording.chance}
            cls.card = replace(card, details={**words, **card.details})

    @property
    def higher_leaks(self) -> bool:
        """A larger number means more leakage."""
        return self.wording.higher_leaks

    @property
    def unit(self) -> str:
        """Of the numbers, ``"dB"``, ``"share"`` or ``""``."""
        return self.wording.unit

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest possible number."""
        return self.wording.range

    @abstractmethod
    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """One number per unit of the truth, for one claim against one truth.

        Units are private examples for reconstructions and labels; a pooled metric returns a single number.

        Raises:
            BadValue: shapes do not match, or a value is not finite.
            Undefined: the data or the context do not determine the number.
        """

    def chance(self, context: ScoreContext) -> float | None:
        """Expected score of an uninformed guess, where it is known in closed form."""
        del context
        return None

    def null(self, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext) -> Scores | None:
        """Scores of the metric's own null adversary, who does not see the update, as :meth:`score`."""
        del truth, auxiliary, context
        return None

    def blind(
        self, claimed: Tensor, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext
    ) -> Scores | None:
        """Scores of a claim of the same form that somebody makes from auxiliary data alone, as :meth:`score`.

        For claims that choose themselves what they are about: a null must answer the same questions.
        """
        del claimed, truth, auxiliary, context
        return None

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> Scores | None:
        """One number per pair, (B,), of a metric that pairs examples and compares each pair on its own.

        Scoring many claims in one batch gives the same numbers as one by one.

        Args:
            left: claimed examples, (B, ...).
            right: the original of each, (B, ...).
            context: as for ``score``.
        """
        del left, right, context
        return None

    def costs(self, originals: Tensor, candidates: Tensor, *, context: ScoreContext) -> Scores:
        """What pairing examples costs within each of N groups, (N, B, R), for a metric with ``compare``.

        ``score`` pairs by least total cost; by this, many guesses are paired in one operation.

        Args:
            originals: (N, B, ...).
            candidates: (N, R, ...).
            context: as for ``score``.
        """
        del context
        return mse_table(originals, candidates, grouped=True)

    def pairwise(self, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> Scores | None:
        """(R, N): each of R candidates against each of N examples."""
        del candidates, examples, context
        return None

    def pool(
        self, claimed: Scores, truth: Bools, *, runs: Ints | None = None, level: float = 0.95
    ) -> Interval | None:
        """The metric over the clients of all runs together, with its interval; not an average over claims.

        Args:
            claimed: (N,) scores or decisions (0 or 1), as declared by ``reads``.
            truth: (N,).
            runs: (N,), which run (seed) a client belongs to; None treats clients as independent.
            level: coverage of the interval.
        """
        del claimed, truth, runs, level
        return None

    def values(self, claimed: Scores, truths: Bools) -> Scores | None:
        """The pooled metric against each of several truths, (D,), for the permutation test against guessing.

        Args:
            claimed: (N,) scores or decisions.
            truths: (D, N), the true one or permutations of it.

        Raises:
            Undefined: a truth does not determine the number.
        """
        del claimed, truths
        return None

    def most(self, share: Callable[[float], float]) -> float | None:
        """Upper bound of a pooled metric for any attack, from one on the success of single guesses.

        Args:
            share: maps a false-positive rate to the highest true-positive rate possible at it (a bound on the
                ROC curve); concave and non-decreasing.
        """
        del share
        return None


class Hits(Metric):
    """A metric that is 0 or 1 per unit: the mean is a share."""

    counts: ClassVar[bool] = True


def check_images(name: str, claimed: Tensor, truth: Tensor) -> None:
    """Raise unless both are finite batches of examples of one shape (the batch sizes may differ).

    Raises:
        BadValue: names the invalid one of the two, and why.
    """
    for word, x in (("claimed", claimed), ("true", truth)):
        if x.ndim < 2 or x.shape[1:].numel() == 0 or not all_finite(x):
            bad = int((~torch.isfinite(x)).sum())
            raise BadValue(
                f"metric '{name}'",
                needs="examples (B, ...) of finite numbers",
                got=f"{word} images of shape {tuple(x.shape)}, {bad} values not finite",
                fix="refuse the claim before scoring it: a NaN is no image",
            )
    if len(truth) == 0 or claimed.shape[1:] != truth.shape[1:]:
        raise BadValue(
            f"metric '{name}'",
            needs="at least one original, and images of one size",
            got=f"claimed {tuple(claimed.shape)}, true {tuple(truth.shape)}",
            fix="score each claim against the batch that it is about",
        )

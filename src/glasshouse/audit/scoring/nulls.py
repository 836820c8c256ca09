"""Null adversaries: baselines that make claims without seeing an update, from the modality of the examples.

Each is scored like an attack, on the same victims. They stand on a ladder by what they know: nothing, the
domain, the victim's label, everything but the example. On every rung, the one that is quoted is fixed before
the judged data are seen: the one that scores best on pseudo-victims sampled from the auxiliary data (the
adversary's own), with the rest of these data as its knowledge.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Claim
from glasshouse.audit.scoring.measure import AT_ONCE, batched, compare
from glasshouse.audit.scoring.pair import Pair
from glasshouse.audit.scoring.truth import DRAWS, EXAMPLES
from glasshouse.audit.simulation.known import which_known
from glasshouse.cache import digest, once
from glasshouse.errors import Undefined
from glasshouse.examples import join
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.gallery import null_images
from glasshouse.metrics.match import pair_groups
from glasshouse.metrics.statistics.shares import share_interval, share_p_value
from glasshouse.metrics.statistics.units import Numbers, cluster, means_of
from glasshouse.modalities import guesses
from glasshouse.modalities.array import Array
from glasshouse.modalities.base import Modality, Null, Rung, Wanted
from glasshouse.modalities.image import Image
from glasshouse.modalities.row import Column, Row
from glasshouse.modalities.sentence import Sentence
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.wire import Batch

T = TypeVar("T")
Parts = tuple[Batch, Batch, ScoreContext]
"""Auxiliary data split into a null's knowledge and the pool of pseudo-victims, with the scoring context."""
PSEUDO_VICTIMS: Final = 40
FEW_VALUES: Final = 2**20
"""Image values of pseudo-victims up to which all nulls are compared with them at a time, to save memory."""
LUCK: Final = 0.025
"""A null replaces a known chance level only if its hit rate exceeds it at this level, over all nulls."""
SILENT: Final = "nothing was claimed: scored like a guess"
CHANCE: Final = "chance"
"""The metric's own chance level, where known in closed form."""
GUESS: Final = "guess among the clients or classes"
OWNERS: Final = "guess among the clients"
TWIN: Final = "another private example of the same label"
GENERATOR: Final = "random draw of the attack's generator"
LABELS: Final = Null(name="labels drawn from auxiliary data", knows="domain", guess=guesses.draw)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Blind:
    """What a null adversary scores on one victim.

    Attributes:
        name: of the null.
        scores: per unit, averaged over its random draws.
        most: upper bound on its hit rate, from auxiliary data alone; None: unknown.
    """

    name: str
    scores: Numbers
    most: float | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Guessed:
    """What null adversaries score on one victim: the quoted one, and those of further rungs."""

    quoted: Blind
    rungs: Mapping[Rung, Blind] = field(default_factory=dict)


def generator(draws: Batch) -> Null:
    """The null of an attack that returned samples of its prior: one of these, independent of the update."""

    def draw(_: Batch, wanted: Wanted, rng: Rng) -> Batch:
        return guesses.draw(draws, wanted, rng)

    return Null(name=GENERATOR, knows="domain", guess=draw)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class NullBook:
    """The null adversaries of one federation; it owns the choices drawn so far.

    Attributes:
        modality: of the examples, which says who guesses.
        auxiliary: the data that null adversaries know; None: none.
        context: for the metrics.
        rng: for their random draws; unrelated to the attacks' streams.
        among: names of the null adversaries to choose from; empty: all that fit.
        draws: samples of the judged attack's prior, if it returned any.
        further: what the judged attack claims of every class without any upload, by the null's name.
        networks: digest of the networks of the context; empty: unknown.
    """

    modality: Modality
    auxiliary: Batch | None
    context: ScoreContext
    rng: Rng
    among: tuple[str, ...] = ()
    draws: Batch | None = None
    further: Mapping[str, Batch] = field(default_factory=dict)
    networks: str = ""
    _chosen: dict[tuple[str, int, str], str] = field(default_factory=dict, init=False)
    _digests: dict[str, str] = field(default_factory=dict, init=False)
    _public: dict[bytes, bool] = field(default_factory=dict, init=False)

    def guess(self, name: str, metric: Metric, pair: Pair, scores: Numbers) -> Guessed:
        """What null adversaries score on one victim, beside these ``scores`` of a claim.

        Raises:
            Undefined: neither a null adversary nor a chance level is known.
        """
        if pair.own is None:  # nothing was claimed: the scores are a guess's
            return Guessed(quoted=Blind(name=SILENT, scores=scores))
        quoted = self.quote(name, metric, pair, len(scores))
        return Guessed(quoted=quoted, rungs=self.rungs(name, metric, pair, len(scores)))

    def strangers(self, examples: Tensor) -> NDArray[np.int64] | None:
        """Positions of the examples whose like is not in the auxiliary data, (U,); None: all of them.

        Only of data in which equal examples may be several people: pictures are dealt without copies.
        """
        if self.auxiliary is None or not self.modality.recurs or not len(self.auxiliary):
            return None
        # Every claim meets the same few victims, and each metric all claims.
        keys = [example.numpy().tobytes() for example in examples.cpu()]
        if asked := [place for place, key in enumerate(keys) if key not in self._public]:
            found = which_known(examples[asked], self.auxiliary.inputs, self.modality)
            self._public.update(zip([keys[place] for place in asked], found.tolist(), strict=True))
        known = np.array([self._public[key] for key in keys], dtype=bool)
        return np.flatnonzero(~known) if known.any() else None

    def quote(self, name: str, metric: Metric, pair: Pair, units: int) -> Blind:
        """The quoted null's scores on one victim, ``units`` of them.

        Raises:
            Undefined: neither a null adversary nor a chance level is known.
        """
        assert pair.own is not None or pair.examples is not None
        if pair.blind is not None:
            scores = metric.score(pair.blind.claimed, pair.blind.truth, context=self.context)
            return Blind(name=GUESS, scores=scores)
        own = pair.own
        if own is not None and own.context is not None:
            return self._of_classes(metric, pair, units)
        if own is not None:
            own_null = metric.null(own.truth, self.auxiliary, context=self.context)
            if own_null is None:
                own_null = metric.blind(own.claimed, own.truth, self.auxiliary, context=self.context)
            if own_null is not None:
                return Blind(name=metric.null_name, scores=own_null)
        if pair.examples is None or not pair.guessed:
            return Blind(name=CHANCE, scores=np.full(units, self._chance(name, metric)))
        return self._guessed(name, metric, pair, "domain", units)

    def silent(self, name: str, metric: Metric, pair: Pair) -> Numbers:
        """Scores of a guess about a victim without a claim, of a kind that has no empty claim.

        Raises:
            Undefined: neither a null adversary nor a chance level is known.
        """
        assert pair.examples is not None
        own_null = metric.null(pair.examples.inputs, self.auxiliary, context=self.context)
        if own_null is not None:
            return own_null
        return np.full(len(pair.examples), self._chance(name, metric))

    def rungs(self, name: str, metric: Metric, pair: Pair, units: int) -> dict[Rung, Blind]:
        """Null adversaries on one victim beside the quoted one: who know nothing, its label, its twins.

        Empty for what is no claim about examples, and without auxiliary data.
        """
        if self.auxiliary is None or pair.own is None or pair.examples is None or pair.blind is not None:
            return {}
        if metric.against != "inputs" or not pair.guessed:
            return {}
        known: dict[Rung, Blind] = {}
        if any(null.knows == "nothing" for null in self._nulls(metric)):
            known["nothing"] = self._guessed(name, metric, pair, "nothing", units)
        if any(null.knows == "label" for null in self._nulls(metric)):
            known["label"] = self._guessed(name, metric, pair, "label", units)
        if pair.twins is not None:
            known["twin"] = Blind(name=TWIN, scores=self._of_twins(metric, pair, units))
        return known

    def _chance(self, name: str, metric: Metric) -> float:
        chance = metric.chance(self.context)
        if chance is None:
            raise Undefined(
                f"null baseline of metric '{name}'",
                needs="a chance level, or a method 'null' of the metric",
                got="neither",
                fix="say what somebody without the update would get",
            )
        return chance

    def _of_classes(self, metric: Metric, pair: Pair, units: int) -> Blind:
        """The best of the images that null adversaries claim for the private classes.

        All are scored on the judged classes, which can only make the gain smaller.
        """
        assert pair.own is not None
        if metric.reads == "source":
            chance = metric.chance(self.context)
            return Blind(name=OWNERS, scores=np.full(units, np.nan if chance is None else chance))
        gallery, labels = self.context.gallery, pair.own.truth
        assert gallery is not None  # otherwise the claim could not be paired
        sign = 1 if metric.higher_leaks else -1
        prior = None if self.draws is None else self.draws.inputs
        images = null_images(gallery, labels, prior, self.further)
        scored = [(n, metric.score(image, labels, context=self.context)) for n, image in images.items()]
        name, scores = max(scored, key=lambda row: sign * float(row[1].mean()))
        return Blind(name=name, scores=scores)

    def _of_twins(self, metric: Metric, pair: Pair, units: int) -> Numbers:
        """Mean scores of guesses that are other private examples of each victim's label."""
        assert pair.twins is not None
        assert pair.examples is not None
        count, times = len(pair.examples), len(pair.twins) // len(pair.examples)
        victims = pair.examples.pick(torch.arange(count).repeat(times))
        scores = score_drawn(metric, pair.twins, victims, count=count, context=self.context)
        return _averaged(scores, units)

    def _guessed(self, name: str, metric: Metric, pair: Pair, rung: Rung, units: int) -> Blind:
        """The scores of the null that is quoted on a rung, for batches of this size."""
        assert pair.examples is not None
        count = len(pair.examples)
        quoted = self._choice(name, metric, count, rung)
        most = None
        if rung == "domain":
            most = self._once("most", partial(self.most, metric, quoted, count), metric,
                              f"null/{name}/{count}", count, quoted)  # fmt: skip
        inputs, labels = pair.examples.inputs, pair.examples.labels
        work = partial(self.average, metric, quoted, pair.examples)
        stream = f"victim/{name}/{pair.number}/{pair.client}"
        scores = self._once("scores", work, metric, stream, quoted, inputs, labels)
        # Scores per claim have as many units as claims, and a null may make another number of claims.
        return Blind(name=quoted, scores=_averaged([scores], units), most=most)

    def _choice(self, name: str, metric: Metric, count: int, rung: Rung) -> str:
        """Name of the null that is quoted for this metric, batch size and rung.

        Raises:
            Undefined: there are no auxiliary data to choose it on.
        """
        if self.auxiliary is None:
            raise Undefined(
                f"null baseline of metric '{name}'",
                needs="auxiliary data",
                got="none",
                fix="set data.auxiliary: a number without a null adversary beside it proves nothing",
            )
        key = name, count, rung
        if key not in self._chosen:
            work = partial(self.choose, metric, count, rung)
            what = "choice" if rung == "domain" else f"choice of {rung}"
            self._chosen[key] = self._once(what, work, metric, f"null/{name}/{count}", count)
        return self._chosen[key]

    def _nulls(self, metric: Metric) -> tuple[Null, ...]:
        """The nulls that guess what the metric scores, from the lowest rung up."""
        if metric.against == "counts":
            return (LABELS,)
        further = () if self.draws is None else (generator(self.draws),)
        known = (*self.modality.nulls(), *further)
        return tuple(null for null in known if not self.among or null.name in self.among)

    def _candidates(self, metric: Metric, rung: Rung) -> tuple[Null, ...]:
        """The nulls to choose from on a rung: up to the domain, whoever knows no more than that."""
        wanted = ("domain", "nothing") if rung == "domain" else (rung,)  # of equals, the one who knows more
        return tuple(null for knows in wanted for null in self._nulls(metric) if null.knows == knows)

    def _null(self, metric: Metric, name: str) -> Null:
        return next(null for null in self._nulls(metric) if null.name == name)

    def choose(self, metric: Metric, count: int, rung: Rung, rng: Rng) -> str:
        """Name of the null that scores best on pseudo-victims of ``count`` examples each.

        Raises:
            Undefined: too few auxiliary examples to hold any out.
        """
        assert self.auxiliary is not None  # _choice has checked
        if len(self.auxiliary) < auxiliary_needed(count):
            raise Undefined(
                f"null baseline for metric '{metric.card.summary}'",
                needs=f"at least {auxiliary_needed(count)} auxiliary examples",
                got=f"{len(self.auxiliary)}",
                fix="raise data.auxiliary: it is also what the null adversary knows",
            )
        parts = examples, heldout, context = split_auxiliary(self.auxiliary, self.context, rng)
        sign = 1 if metric.higher_leaks else -1
        level = metric.chance(self.context)
        uses_chance = level is not None and not self.among and rung in ("nothing", "domain")
        best, best_score = (CHANCE, sign * cast("float", level)) if uses_chance else ("", -np.inf)
        nulls = self._candidates(metric, rung)
        # A rate: only a null that beats a known chance level beyond luck takes its place.
        if best and level is not None and metric.counts:
            chance = level if metric.higher_leaks else 1 - level
            hits = {null.name: _pseudo_hits(null, metric, parts, count=count, rng=rng) for null in nulls}
            nulls = tuple(null for null in nulls if _chance_p(hits[null.name], chance) < LUCK / len(hits))
        if not nulls or (len(nulls) == 1 and not best):
            return best or nulls[0].name  # nothing to choose
        number, stream = _enough(PSEUDO_VICTIMS, count), rng.child("pseudo")
        victims = guesses.draw(heldout, Wanted(count=number * count), stream.child("victim"))
        wanted = Wanted(count=len(victims), labels=victims.labels if rung == "label" else None)
        together = len(nulls) if victims.inputs.numel() <= FEW_VALUES else 1  # as they meet the same victims
        scores = []
        for some in batched(nulls, together):
            guessed = [null.guess(examples, wanted, stream.child("guess")) for null in some]
            drawn = join(guessed), join([victims] * len(some))
            scores += score_drawn(metric, *drawn, count=count, context=context)
        for null, own in zip(nulls, batched(scores, number), strict=True):
            value = float(np.mean(means_of(own))) * sign
            if value > best_score:
                best, best_score = null.name, value
        return best

    def most(self, metric: Metric, quoted: str, count: int, rng: Rng) -> float | None:
        """Upper bound on the hit rate of a null: upper end of its interval on pseudo-victims.

        If a low rate is the leak, misses are counted. No two pseudo-victims share an example. None for
        metrics that are not rates, or with fewer than two pseudo-victims.
        """
        if not metric.counts or quoted == CHANCE or self.auxiliary is None:
            return None
        parts = split_auxiliary(self.auxiliary, self.context, rng)
        hits = _pseudo_hits(self._null(metric, quoted), metric, parts, count=count, rng=rng)
        return share_interval(*cluster(hits)).high if len(hits) > 1 else None

    def average(self, metric: Metric, quoted: str, truth: Batch, rng: Rng) -> Numbers:
        """Scores of a null on one victim, per unit, averaged over its random draws.

        Without averaging, the randomness of a single draw would widen, or fake, the gain over the null.
        """
        if quoted == CHANCE:
            level = metric.chance(self.context)
            return np.full(len(truth), np.nan if level is None else level)
        assert self.auxiliary is not None  # _choice has checked
        null = self._null(metric, quoted)
        number = 1 if null.steady and metric.against != "counts" else _enough(DRAWS, len(truth))
        labels = torch.cat([truth.labels] * number) if null.knows == "label" else None
        guessed = null.guess(self.auxiliary, Wanted(count=number * len(truth), labels=labels), rng)
        same = truth.pick(torch.arange(len(truth)).repeat(number))
        scores = score_drawn(metric, guessed, same, count=len(truth), context=self.context)
        if len({len(one) for one in scores}) > 1:  # scores per claim, and guesses differ in number
            return np.array([np.concatenate(scores).mean()])
        return np.asarray(np.mean(scores, axis=0), dtype=np.float64)

    def _once(self, what: str, work: Callable[..., T], metric: Metric, stream: str, *more: object) -> T:
        """What ``work`` returns; cached if everything that a null's score depends on can be listed."""
        kind: type[object] = type(metric)
        rng = self.rng.child(stream)
        call = partial(work, rng=rng)
        known = self._known()
        if known is None or not dataclasses.is_dataclass(kind):
            return call()
        of_metric = kind.__module__, kind.__qualname__, repr(metric)
        return once([what, known, *of_metric, rng.key, *more], call)

    def _known(self) -> str | None:
        """Digest of the null adversaries' knowledge and of the context in which they are scored."""
        context = self.context
        if not self.networks or self.auxiliary is None or context.gallery is not None:
            return None
        if "known" not in self._digests:
            batches = [(b.inputs, b.labels) for b in (self.auxiliary, self.draws) if b is not None]
            settings = [context.classes, context.prior, context.called, context.image_range]
            words = [self.among, self.networks, repr(context.vocabulary)]
            self._digests["known"] = digest([batches, words, settings, context.distractors])
        return self._digests["known"]


def null_names() -> tuple[str, ...]:
    """Names of the null adversaries of our own modalities, which ``audit.baselines`` may list."""
    words = Vocabulary(size=2, pad=0)
    kinds: tuple[Modality, ...] = (
        Image(size=(1, 1, 1)),
        Sentence(vocabulary=words, length=1),
        Array(size=(1,)),
        Row(columns=(Column(name="a", kind="integer"),)),
    )
    return tuple(dict.fromkeys([*(null.name for kind in kinds for null in kind.nulls()), LABELS.name]))


def claim_of(metric: Metric) -> type[Claim]:
    """The kind of claim that the metric scores."""
    return cast("type[Claim]", load("claims", metric.claim))


def auxiliary_needed(count: int) -> int:
    """Number of auxiliary examples needed to choose a null adversary for ``count`` examples."""
    return 2 * count + 6


def score_guess(metric: Metric, guessed: Batch, truth: Batch, *, context: ScoreContext) -> Numbers:
    """Score a guessed batch as the claim that the metric scores."""
    claimed = claim_of(metric).guess(guessed, metric.reads)
    if metric.against != "counts":
        return metric.score(claimed, truth.inputs, context=context)
    counts = torch.bincount(truth.labels.long(), minlength=1)
    classes = context.classes or max(len(claimed), len(counts))
    padded = (torch.nn.functional.pad(x, (0, max(0, classes - len(x)))) for x in (claimed, counts))
    return metric.score(*padded, context=context)


def score_drawn(
    metric: Metric, guessed: Batch, victims: Batch, *, count: int, context: ScoreContext
) -> list[Numbers]:
    """Score each guess on its victim; many in one operation if the metric compares pairs.

    Args:
        metric: of examples, or of their labels.
        guessed: concatenated guesses of ``count`` examples each.
        victims: as many concatenated victims, likewise.
        count: examples per victim.
        context: for the metric.
    """
    # Neither the examples nor the tables of costs of the groups that meet at a time fill the memory.
    size = max(1, AT_ONCE // max(victims.inputs[:count].numel(), count * count)) * count
    if metric.reads == "inputs" and metric.against == "inputs":
        each = []
        for start in range(0, len(victims), size):
            claimed, true = (part.inputs[start : start + size].double() for part in (guessed, victims))
            values = compare(metric, _paired(metric, claimed, true, count, context), true, context)
            if values is None:
                break
            each.append(values)
        else:
            return list(np.concatenate(each).reshape(-1, count))
    parts = zip(_split_batches(guessed, count), _split_batches(victims, count), strict=True)
    return [score_guess(metric, guess, victim, context=context) for guess, victim in parts]


def _paired(metric: Metric, claimed: Tensor, true: Tensor, count: int, context: ScoreContext) -> Tensor:
    """The guess for each example, paired within groups of ``count`` as the metric pairs them."""
    if count == 1:
        return claimed
    groups = (side.reshape(-1, count, *side.shape[1:]) for side in (true, claimed))
    return claimed[torch.from_numpy(pair_groups(metric.costs(*groups, context=context))).to(claimed.device)]


def split_auxiliary(auxiliary: Batch, context: ScoreContext, rng: Rng) -> Parts:
    """A null's knowledge, pseudo-victims, and the context with distractors that are in neither."""
    order = torch.randperm(len(auxiliary), generator=rng.child("split").torch())
    half = len(auxiliary) // 2
    first, rest = auxiliary.pick(order[:half]), auxiliary.pick(order[half:])
    heldout, others = rest.pick(torch.arange(0, len(rest), 2)), rest.pick(torch.arange(1, len(rest), 2))
    if context.distractors is not None:
        context = replace(context, distractors=others.inputs[: len(context.distractors)])
    return first, heldout, context


def _pseudo_hits(null: Null, metric: Metric, parts: Parts, *, count: int, rng: Rng) -> list[Numbers]:
    """A null's outcomes on disjoint pseudo-victims of ``count`` examples each."""
    examples, heldout, context = parts
    total = min(len(heldout) // count, max(2, EXAMPLES // count)) * count
    if not total:
        return []
    victims = heldout.pick(torch.arange(total))
    wanted = Wanted(count=total, labels=victims.labels if null.knows == "label" else None)
    guessed = null.guess(examples, wanted, rng.child(f"apart/{null.name}"))
    outcomes = score_drawn(metric, guessed, victims, count=count, context=context)
    return outcomes if metric.higher_leaks else [1 - one for one in outcomes]


def _chance_p(hits: list[Numbers], level: float) -> float:
    """p-value of "the null's hit rate is not above chance"; 1 with too few pseudo-victims."""
    if len(hits) < 2:
        return 1.0
    outcomes, clusters = cluster(hits)
    return share_p_value(outcomes, level, clusters)


def _averaged(scores: Sequence[Numbers], units: int) -> Numbers:
    """The mean over guesses, one per unit; the overall mean where guesses have another number of units."""
    if any(len(one) != units for one in scores):
        return np.full(units, np.concatenate(list(scores)).mean())
    return np.asarray(np.mean(scores, axis=0), dtype=np.float64)


def _enough(most: int, count: int) -> int:
    return max(2, min(most, EXAMPLES // count))


def _split_batches(batch: Batch, count: int) -> list[Batch]:
    """Split the examples into batches of ``count``, one per victim."""
    columns = torch.split(batch.inputs, count), torch.split(batch.labels, count)
    return [Batch(inputs=x, labels=y) for x, y in zip(*columns, strict=True)]

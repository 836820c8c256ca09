"""Scores per victim: one metric on the pairs of one attack, before they become a finding."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.measure import measure
from glasshouse.audit.scoring.nulls import SILENT, Guessed, NullBook
from glasshouse.audit.scoring.pair import Pair, claimed_kinds, longest_prefix, pair_claims, pair_silences
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.errors import NothingClaimed, Undefined
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.units import Numbers
from glasshouse.modalities.base import RUNGS, Rung
from glasshouse.results.vocabulary import STRONGEST

COIN: Final = "coin that knows the prior and how many were called"
_ABOUT_EXAMPLES: Final = frozenset({"reconstruction", "certified_rows"})
"""Kinds of claims that say what private examples are."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSample:
    """Scores of the clients of one federation.

    Attributes:
        run: names the federation.
        scores: (N,), the mean over the claims about it.
        truth: (N,), whether each client has the property.
        claims: number of claims averaged.
    """

    run: str
    scores: NDArray[np.float64]
    truth: NDArray[np.bool_]
    claims: int = 1

    def merge(self, other: "ClientSample") -> "ClientSample":
        """Average both samples: a client is one unit however often it was scored."""
        claims = self.claims + other.claims
        scores = (self.scores * self.claims + other.scores * other.claims) / claims
        return replace(self, scores=scores, claims=claims)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredMetric:
    """One metric of one attack: scores per victim, and those of the null adversary on the same victims.

    Attributes:
        values: one array per victim.
        nulls: of the null adversary, shaped like ``values``.
        exchanged: of the same claims against some other victims, (others, images); None: no other victim.
        drawn: the federation behind every score, shaped like ``values``.
        victims: unique ids of the private data of each of ``values``; used to pair two attacks.
        people: the people in the images of a victim, by its id; several images of a person are one unit.
        baseline: name of the null.
        null_most: upper bound on the null's hit rate, from auxiliary data alone; None: unknown.
        rungs: further null adversaries on the ladder, with the scores of each, shaped like ``values``.
        clients: for pooled metrics, one per federation; values are then empty.
        claimed: victims with at least one claim.
        runs: federations in the sample.
        repeated: the same examples of a victim are scored more than once, in several rounds of a federation.
    """

    values: tuple[Numbers, ...] = ()
    nulls: tuple[Numbers, ...] = ()
    exchanged: tuple[Numbers | None, ...] = ()
    drawn: tuple[NDArray[np.str_], ...] = ()
    victims: tuple[str, ...] = ()
    people: Mapping[str, frozenset[int]] = field(default_factory=dict)
    baseline: str = ""
    null_most: float | None = None
    rungs: Mapping[Rung, tuple[str, tuple[Numbers, ...]]] = field(default_factory=dict)
    clients: tuple[ClientSample, ...] = ()
    claimed: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    repeated: bool = False

    def __post_init__(self) -> None:
        if not self.exchanged:
            object.__setattr__(self, "exchanged", (None,) * len(self.values))
        if not self.drawn:
            object.__setattr__(self, "drawn", tuple(np.full(len(one), "") for one in self.values))

    def counted_twice(self) -> "ScoredMetric":
        """The same scores, the null's twice as far from their mean: how much twins differ from draw to draw.

        A twin is another victim. Whoever is unlike all others is guessed badly, and guesses all others badly:
        each counts as victim and as guess, and the spread over victims alone shows half of it.
        """
        mean = float(np.mean([one.mean() for one in self.nulls]))
        return replace(self, nulls=tuple(2 * one - mean for one in self.nulls))

    @property
    def draws(self) -> tuple[str, ...]:
        """The federations behind the scores of victims, in order; clients have theirs in ``clients``."""
        return tuple(dict.fromkeys(name for one in self.drawn for name in one.tolist()))

    def by_draws(self) -> "ScoredMetric":
        """The same scores with one unit for each federation: all scores of its victims."""
        values, nulls, drawn = (np.concatenate(one) for one in (self.values, self.nulls, self.drawn))
        rows = [drawn == name for name in self.draws]
        return replace(
            self,
            values=tuple(values[own] for own in rows),
            nulls=tuple(nulls[own] for own in rows),
            drawn=tuple(drawn[own] for own in rows),
            exchanged=(),
            victims=self.draws,
            people={},
            rungs={},
        )

    def by_people(self) -> "ScoredMetric":
        """Merge victims that share a person, so that an interval counts people."""
        if not self.people:
            return self
        units: list[tuple[frozenset[int], list[int]]] = []
        for i, victim in enumerate(self.victims):
            who, rows = self.people.get(victim, frozenset()), [i]
            for unit in [u for u in units if u[0] & who]:
                units.remove(unit)
                who, rows = who | unit[0], unit[1] + rows
            units.append((who, rows))
        if len(units) == len(self.victims):
            return self
        names = {self.victims[i]: self.victims[min(rows)] for _, rows in units for i in rows}
        victims = tuple(names[victim] for victim in self.victims)
        claimed = frozenset(names.get(victim, victim) for victim in self.claimed)
        joined = join_parts([replace(self, victims=victims, claimed=claimed, people={})])
        return replace(joined, repeated=self.repeated)  # several pictures of a person are not one twice

    def pick(self, units: NDArray[np.int64]) -> "ScoredMetric":
        """Some units of each victim."""

        def some(numbers: tuple[Numbers, ...]) -> tuple[Numbers, ...]:
            return tuple(one[units] for one in numbers)

        return replace(
            self,
            values=some(self.values),
            nulls=some(self.nulls),
            exchanged=tuple(None if one is None else one[:, units] for one in self.exchanged),
            drawn=tuple(one[units] for one in self.drawn),
            rungs={rung: (name, some(nulls)) for rung, (name, nulls) in self.rungs.items()},
        )

    def against(self, rung: Rung) -> "ScoredMetric":
        """The same scores beside the null adversary of a further rung of the ladder."""
        name, nulls = self.rungs[rung]
        return replace(self, nulls=nulls, baseline=name, null_most=None, rungs={})

    def pool_clients(
        self, *, decisions: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
        """Scores, ground truth and run index of every client.

        Args:
            decisions: scores are 0 or 1; a client counts as positive if most claims call it positive.
        """
        runs = {run: number for number, run in enumerate(dict.fromkeys(c.run for c in self.clients))}
        scores = np.concatenate([c.scores for c in self.clients])
        return (
            (scores > 0.5).astype(np.float64) if decisions else scores,
            np.concatenate([c.truth for c in self.clients]),
            np.concatenate([np.full(len(c.truth), runs[c.run], dtype=np.int64) for c in self.clients]),
        )

    def with_exchange(self) -> "ScoredMetric | None":
        """The victims that could be exchanged, with the exchanged scores instead of the null's."""
        rows = [i for i, one in enumerate(self.exchanged) if one is not None]
        if not rows:
            return None
        return replace(
            self,
            values=tuple(self.values[i] for i in rows),
            nulls=tuple(one.mean(0) for one in self.exchanged if one is not None),
            exchanged=(),
            drawn=tuple(self.drawn[i] for i in rows),
            rungs={},
            victims=tuple(self.victims[i] for i in rows),
            baseline="other victims",
        )


def join_parts(parts: Sequence[ScoredMetric]) -> ScoredMetric:
    """Join several claims, rounds or seeds: equal private data count as one victim (decision 0007)."""
    places: dict[str, list[tuple[ScoredMetric, int]]] = {}
    clients: dict[tuple[str, bytes], ClientSample] = {}
    for part in parts:
        for i, victim in enumerate(part.victims):
            places.setdefault(victim, []).append((part, i))
        for sample in part.clients:
            key = sample.run, sample.truth.tobytes()
            clients[key] = clients[key].merge(sample) if key in clients else sample
    columns = places.values()
    # A rung counts only where every victim has it: others were left out where something is not known.
    scored = [part for part in parts if part.values]
    common = set(scored[0].rungs).intersection(*(part.rungs for part in scored)) if scored else set()
    return ScoredMetric(
        values=tuple(_joined("values", column) for column in columns),
        nulls=tuple(_joined("nulls", column) for column in columns),
        exchanged=tuple(map(_join_exchanged, columns)),
        drawn=tuple(_joined("drawn", column) for column in columns),
        victims=tuple(places),
        people={victim: who for part in parts for victim, who in part.people.items()},
        baseline=_join_names([part.baseline for part in parts if part.baseline]),
        null_most=max((part.null_most for part in parts if part.null_most is not None), default=None),
        rungs={rung: (scored[0].rungs[rung][0], _of_rung(rung, columns)) for rung in RUNGS if rung in common},
        clients=tuple(clients.values()),
        claimed=frozenset().union(*(part.claimed for part in parts)),
        runs=frozenset().union(*(part.runs for part in parts)),
        repeated=any(part.repeated for part in parts) or any(map(_is_repeated, columns)),
    )


def _is_repeated(column: Sequence[tuple[ScoredMetric, int]]) -> bool:
    """Whether two claims are about the same private data in one federation."""
    drawn = [part.drawn[i][0] for part, i in column if len(part.drawn[i])]
    return len(set(drawn)) < len(drawn)


def _join_names(names: Sequence[str]) -> str:
    """The name of the null of all parts; where it differs between federations, that it does."""
    quoted = list(dict.fromkeys(name for name in names if name != SILENT)) or list(names)
    return quoted[0] if len(quoted) == 1 else STRONGEST if quoted else ""


def _of_rung(rung: Rung, columns: Iterable[Sequence[tuple[ScoredMetric, int]]]) -> tuple[Numbers, ...]:
    return tuple(np.concatenate([part.rungs[rung][1][i] for part, i in column]) for column in columns)


def _joined(name: str, column: Sequence[tuple[ScoredMetric, int]]) -> Any:
    """What several claims have of one victim, in order."""
    return np.concatenate([getattr(part, name)[i] for part, i in column])


def _join_exchanged(column: Sequence[tuple[ScoredMetric, int]]) -> Numbers | None:
    """Concatenate images of several claims, on as many others as all of them have; None: one has none."""
    present = [levels for part, i in column if (levels := part.exchanged[i]) is not None]
    if len(present) < len(column):
        return None
    fewest = min(map(len, present))
    return np.concatenate([part[:fewest] for part in present], axis=1)


def score_metric(name: str, metric: Metric, runs: Sequence[Run]) -> ScoredMetric | None:
    """Score one metric of one attack over all its federations; None if it scores no claim of the attack.

    Victims without a claim count as misses if the attack made a claim in any federation.

    Raises:
        Undefined: the data do not determine the metric or its null.
    """
    parts: list[ScoredMetric] = []
    paired = 0
    for run in runs:
        pairs = pair_claims(run.claims, metric, run.ground)
        parts += score_pairs(name, metric, pairs, run.ground, run.book)
        paired += len(pairs)
    if paired and not parts:
        raise Undefined(
            f"metric '{name}'",
            needs="private examples that are not among the auxiliary data",
            got="none: whoever has the auxiliary data knows all of them without any update",
            fix="take auxiliary data of other people",
        )
    if not parts:
        return None
    kinds = claimed_kinds(outcome for run in runs for outcome in run.outcomes)
    for run in runs:
        for pairs in pair_silences(run.units, kinds, metric, run.ground):
            with suppress(NothingClaimed):  # metrics of the claims leave out victims without one
                parts += score_pairs(name, metric, pairs, run.ground, run.book)
    return join_parts(parts)


def score_outcomes(
    name: str, metric: Metric, outcomes: Iterable[Outcome], ground: GroundTruth, book: NullBook
) -> ScoredMetric | None:
    """Score all claims of one attack in one federation that ``metric`` can score; None if there are none.

    A metric of the claims leaves out victims without a claim, unless none has one.

    Raises:
        Undefined: the data do not determine the metric or its null.
        NothingClaimed: no claim determines the metric.
    """
    claims = [claim for outcome in outcomes for claim in longest_prefix(outcome.claims)]
    parts = score_pairs(name, metric, pair_claims(claims, metric, ground), ground, book)
    return join_parts(parts) if parts else None


def score_pairs(
    name: str, metric: Metric, pairs: Sequence[Pair], ground: GroundTruth, book: NullBook
) -> list[ScoredMetric]:
    """The scores of every pair beside its null adversaries and the same claims on other victims.

    Raises:
        NothingClaimed: there are pairs, and none determines the metric.
    """
    of_clients = [_of_clients(one) for one in pairs if one.clients is not None]
    of_victims = [one for one in pairs if one.clients is None]
    # First what the metric says of each claim on its own victim and on others, ...
    own = iter(measure(metric, [p.own for p in of_victims if p.own is not None], ground.context))
    others = iter(measure(metric, [side for pair in of_victims for side in pair.others], ground.context))
    values = [book.silent(name, metric, p) if p.own is None else next(own) for p in of_victims]
    levels = [[(next(others), side.truth) for side in pair.others] for pair in of_victims]

    # ... then what those who guess get on the same victims.
    parts: list[ScoredMetric] = []
    nothing: NothingClaimed | None = None
    for one, value, turned in zip(of_victims, values, levels, strict=True):
        if isinstance(value, NothingClaimed):
            nothing = value
            continue
        truth = None if one.examples is None else one.examples.inputs
        strangers = _strangers(metric, value, truth, book)
        if strangers is not None and not len(strangers):
            continue
        known = [_of_strangers(metric, level, other, book)
                 for level, other in turned if not isinstance(level, NothingClaimed)]  # fmt: skip
        guessed = book.guess(name, metric, one, value)
        scored = _scored(one, value, [level for level in known if len(level)], guessed)
        parts.append(scored if strangers is None else scored.pick(strangers))
    if nothing is not None and not parts and not of_clients:
        raise nothing
    return [*of_clients, *parts]


def _strangers(
    metric: Metric, value: Numbers, truth: Tensor | None, book: NullBook
) -> NDArray[np.int64] | None:
    """Positions of the scores that count, of examples that nobody has without the update; None: all.

    Examples that the adversary has anyway took part in the pairing of claims; their scores are left out.
    """
    about_examples = metric.claim in _ABOUT_EXAMPLES and metric.against == "inputs" and not metric.of_claims
    if not about_examples or truth is None or len(value) != len(truth):
        return None
    return book.strangers(truth)


def _of_strangers(metric: Metric, value: Numbers, truth: Tensor, book: NullBook) -> Numbers:
    """The scores that count."""
    strangers = _strangers(metric, value, truth, book)
    return value if strangers is None else value[strangers]


def _scored(pair: Pair, value: Numbers, levels: Sequence[Numbers], guessed: Guessed) -> ScoredMetric:
    """The scores of one pair.

    Args:
        pair: the claim beside the truth.
        value: its scores.
        levels: of the same claim on other victims.
        guessed: of the null adversaries on this victim.
    """
    several = pair.examples is None and len(pair.victim) > 1
    exchanged: tuple[Numbers | None, ...] = (None,)
    if levels and several:  # every unit is a victim, with levels of its own
        exchanged = tuple(np.stack(list(levels)).T[..., None])
    elif levels:
        exchanged = (np.outer([level.mean() for level in levels], np.ones(len(value))),)

    def split(numbers: Numbers) -> tuple[Numbers, ...]:
        return tuple(numbers[:, None]) if several else (numbers,)

    return ScoredMetric(
        values=split(value),
        nulls=split(guessed.quoted.scores),
        exchanged=exchanged if len(exchanged) == len(split(value)) else (None,) * len(value),
        drawn=tuple(np.full(len(one), pair.run) for one in split(value)),
        victims=pair.victim,
        people={pair.victim[0]: pair.people} if pair.people else {},
        baseline=guessed.quoted.name,
        null_most=guessed.quoted.most,
        rungs={rung: (one.name, split(one.scores)) for rung, one in guessed.rungs.items()},
        claimed=frozenset(pair.victim if pair.answered else ()),
        runs=frozenset({pair.run}),
    )


def _of_clients(pair: Pair) -> ScoredMetric:
    assert pair.own is not None
    assert pair.clients is not None
    sample = ClientSample(run=pair.run, scores=pair.own.claimed.double().numpy(), truth=pair.clients)
    claimed = frozenset(pair.victim if pair.answered else ())
    return ScoredMetric(clients=(sample,), baseline=COIN, claimed=claimed, runs=frozenset({pair.run}))

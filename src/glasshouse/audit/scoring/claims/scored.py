"""Scores per victim: one metric on one attack, before it becomes a finding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def means_of(values: Sequence[Numbers]) -> Numbers:
    """The mean score of every victim."""
    alike = len({len(v) for v in values}) == 1
    return np.stack(values).mean(1) if alike else np.array([v.mean() for v in values])


def cluster(values: Sequence[Numbers]) -> tuple[Numbers, NDArray[np.int64]]:
    """The scores of all victims, and the position of the victim of each."""
    return np.concatenate(values), np.repeat(np.arange(len(values)), [len(v) for v in values])


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
        victims: unique ids of the private data of each of ``values``; used to pair two attacks.
        people: the people in the images of a victim, by its id; several images of a person are one unit.
        baseline: name of the null.
        null_most: upper bound on the null's hit rate, from auxiliary data alone; None: unknown.
        clients: for pooled metrics, one per federation; values are then empty.
        claimed: victims with at least one claim.
        runs: federations in the sample.
    """

    values: tuple[Numbers, ...] = ()
    nulls: tuple[Numbers, ...] = ()
    exchanged: tuple[Numbers | None, ...] = ()
    victims: tuple[str, ...] = ()
    people: Mapping[str, frozenset[int]] = field(default_factory=dict)
    baseline: str = ""
    null_most: float | None = None
    clients: tuple[ClientSample, ...] = ()
    claimed: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.exchanged:
            object.__setattr__(self, "exchanged", (None,) * len(self.values))

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
        return join_parts([replace(self, victims=victims, claimed=claimed, people={})])

    def named(self, baseline: str, *, most: float | None = None) -> "ScoredMetric":
        """A copy with the name of its null, and an upper bound on the null's hit rate."""
        return replace(self, baseline=baseline, null_most=most)

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
            victims=tuple(self.victims[i] for i in rows),
            baseline="other victims",
        )


def join_parts(parts: Sequence[ScoredMetric]) -> ScoredMetric:
    """Join several claims, rounds or seeds: equal private data count as one victim (decision 0007)."""
    scores: dict[str, list[tuple[Numbers, Numbers, Numbers | None]]] = {}
    clients: dict[tuple[str, bytes], ClientSample] = {}
    for part in parts:
        numbers = zip(part.values, part.nulls, part.exchanged, strict=True)
        for victim, three in zip(part.victims, numbers, strict=True):
            scores.setdefault(victim, []).append(three)
        for sample in part.clients:
            key = sample.run, sample.truth.tobytes()
            clients[key] = clients[key].merge(sample) if key in clients else sample
    return ScoredMetric(
        values=tuple(np.concatenate([value for value, _, _ in every]) for every in scores.values()),
        nulls=tuple(np.concatenate([null for _, null, _ in every]) for every in scores.values()),
        exchanged=tuple(_join_numbers([other for _, _, other in every]) for every in scores.values()),
        victims=tuple(scores),
        people={victim: who for part in parts for victim, who in part.people.items()},
        baseline=next((part.baseline for part in parts if part.baseline), ""),
        null_most=max((part.null_most for part in parts if part.null_most is not None), default=None),
        clients=tuple(clients.values()),
        claimed=frozenset().union(*(part.claimed for part in parts)),
        runs=frozenset().union(*(part.runs for part in parts)),
    )


def _join_numbers(parts: Sequence[Numbers | None]) -> Numbers | None:
    """Concatenate images of several claims, on as many others as all of them have; None: one has none."""
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        return None
    fewest = min(map(len, present))
    return np.concatenate([part[:fewest] for part in present], axis=1)

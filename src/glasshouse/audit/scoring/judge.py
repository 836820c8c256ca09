"""The judge of a group: ground truth, context for metrics, null adversaries, other victims."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Final, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import About, Claim, PriorSamples
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.claims.truths import exchange_classes
from glasshouse.audit.scoring.nulls import EXAMPLES, average_score, choose_null, join_batches, largest_share
from glasshouse.cache import digest, once
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch, Terms

T = TypeVar("T")
KEPT: Final = 64
"""Number of victims whose examples a judge caches."""
SHIFTS: Final = 3
"""Largest number of other victims that a claim is scored against; fewer for large batches."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """The examples that a claim is compared with.

    Attributes:
        batch: the examples.
        owners: the client of each, (B,); -1: no client's.
    """

    batch: Batch
    owners: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Scores the claims about one group.

    Attributes:
        truth: ground truth of the group.
        context: for the metrics.
        auxiliary: the data that null adversaries know.
        rng: for the random draws of null adversaries; unrelated to the attacks' streams.
        among: names of the null adversaries to choose from; empty: all that fit.
        quoted: nulls chosen so far, by metric name and batch size.
        most: upper bounds on the hit rates of these nulls, from the auxiliary data.
        draws: samples of the judged attack's prior, if it returned any.
        defense: names of the active defences, joined by " + "; "none" without.
        terms: of the federation; None: unknown, and victims without a claim are scored at chance level.
        announced: number of examples announced in the messages, by round and client (None: the whole round).
        heldout: examples of no client, to exchange victims with and to rank them among; None: none.
        comparable: the held-out examples are of the same classes as the private ones.
        networks: digest of the networks of the context; empty: unknown.
        run: names the federation; claims of one run about the same clients do not add clients.
        moved: judges with the private classes exchanged, by shift.
        compared: scores of single-image claims against single victims, for the metric being scored.
    """

    truth: Truth
    context: ScoreContext
    auxiliary: Batch | None
    rng: Rng
    among: tuple[str, ...] = ()
    quoted: dict[tuple[str, int], str] = field(default_factory=dict)
    most: dict[tuple[str, int], float | None] = field(default_factory=dict)
    draws: Batch | None = None
    defense: str = "none"
    terms: Terms | None = None
    announced: Mapping[tuple[int, int | None], int] = field(default_factory=dict)
    heldout: Batch | None = None
    comparable: bool = True
    networks: str = ""
    run: str = ""
    moved: dict[int, "Judge"] = field(default_factory=dict)
    compared: dict[Claim, dict[Target, NDArray[np.float64]]] = field(default_factory=dict)

    def null(self, name: str, metric: Metric, count: int) -> str:
        """Name of the null that is quoted for this metric and batch size.

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
        if (name, count) not in self.quoted:
            work = partial(choose_null, metric, self.auxiliary, count=count, among=self.among)
            self.quoted[name, count] = self._once("choice", work, metric, f"null/{name}/{count}", count)
        return self.quoted[name, count]

    def null_most(self, name: str, metric: Metric, count: int) -> float | None:
        """Upper bound on the hit rate of the quoted null; None: unknown."""
        quoted = self.null(name, metric, count)
        assert self.auxiliary is not None  # null has checked
        if (name, count) not in self.most:
            work = partial(largest_share, quoted, metric, self.auxiliary, count=count)
            stream = f"null/{name}/{count}"
            self.most[name, count] = self._once("most", work, metric, stream, count, quoted)
        return self.most[name, count]

    def null_scores(
        self, name: str, metric: Metric, batch: Batch, *, number: int, client: int | None
    ) -> NDArray[np.float64]:
        """The quoted null's average scores on one victim in a round."""
        quoted = self.null(name, metric, len(batch))
        assert self.auxiliary is not None  # null has checked
        work = partial(average_score, quoted, metric, self.auxiliary, batch)
        stream = f"victim/{name}/{number}/{client}"
        return self._once("scores", work, metric, stream, quoted, batch.inputs, batch.labels)

    def _once(self, what: str, work: Callable[..., T], metric: Metric, stream: str, *more: object) -> T:
        """What ``work`` returns; cached if everything that a null's score depends on can be listed."""
        kind: type[object] = type(metric)
        rng = self.rng.child(stream)
        call = partial(work, context=self.context, rng=rng, draws=self.draws)
        if self._known is None or not dataclasses.is_dataclass(kind):
            return call()
        of_metric = kind.__module__, kind.__qualname__, repr(metric)
        return once([what, self._known, *of_metric, rng.key, *more], call)

    @cached_property
    def _known(self) -> str | None:
        """Digest of the null adversaries' knowledge and of the context in which they are scored."""
        context = self.context
        if not self.networks or self.auxiliary is None or context.gallery is not None:
            return None
        batches = [(b.inputs, b.labels) for b in (self.auxiliary, self.draws) if b is not None]
        settings = [context.classes, context.prior, context.called, context.image_range]
        words = [self.among, self.networks, repr(context.vocabulary)]
        return digest([batches, words, settings, context.distractors])

    def against(self, truth: Truth) -> "Judge":
        """The same judge with another ground truth; keeps the nulls chosen so far."""
        gallery = self.context.gallery
        other = None if gallery is None else gallery.holding(truth.private, truth.shards)
        return dataclasses.replace(
            self, truth=truth, context=dataclasses.replace(self.context, gallery=other), moved={}
        )

    def with_classes_moved(self, by: int) -> "Judge":
        """The same judge with the images of every private class replaced by those ``by`` classes away."""
        if by not in self.moved:
            truth, gallery = exchange_classes(self.truth, by=by), self.context.gallery
            other = None if gallery is None else gallery.moved(by)
            context = dataclasses.replace(self.context, gallery=other)
            self.moved[by] = dataclasses.replace(self, truth=truth, context=context, moved={})
        return self.moved[by]

    def of(self, outcomes: Iterable[Outcome]) -> "Judge":
        """The judge of one attack, with the prior samples that it returned as an additional null."""
        filed = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
        if not filed:
            return self
        return dataclasses.replace(self, draws=join_batches(filed), quoted={}, most={})

    @cached_property
    def target(self) -> Callable[[int, int | None], Target]:
        """(round, client) → the ground truth of one round of a claim; cached, as every metric needs it."""

        def read(number: int, client: int | None) -> Target:
            batch, owners = self.truth.batch(number, client)
            return Target(batch=batch, owners=owners)

        return lru_cache(maxsize=KEPT)(read)

    def announced_for(self, about: About) -> int:
        """Number of examples that a claim may cover: as announced, but at least the true number."""
        return sum(
            max(self.announced.get((number, about.client), 0), len(self.target(number, about.client).batch))
            for number in about.rounds
        )

    @cached_property
    def others(self) -> Callable[[About, int], tuple[Target, ...]]:
        """(subject of a claim, round) → up to ``SHIFTS`` other victims, which share no example with it.

        The next ones in order, cyclically; if there are none, held-out examples; without those, none. Cached.
        """
        return lru_cache(maxsize=KEPT)(self._find_others)

    def _find_others(self, about: About, number: int) -> tuple[Target, ...]:
        client = about.client
        size = len(self.target(number, client).batch)
        how_many = max(1, min(SHIFTS, EXAMPLES // size))
        own = {p for r in about.rounds for p in self._behind(r, client)}
        keys: list[tuple[int, int | None]] = sorted(
            {(r, None if client is None else c) for r, c in self.truth.used},
            key=lambda key: (key[0], -1 if key[1] is None else key[1]),
        )
        after = keys.index((number, client)) + 1
        different = [key for key in keys[after:] + keys[:after] if own.isdisjoint(self._behind(*key))]
        if different:
            return tuple(self.target(*key) for key in different[:how_many])
        return self._heldout_targets(size, how_many)

    def _heldout_targets(self, size: int, number: int) -> tuple[Target, ...]:
        if self.heldout is None:
            return ()
        every = torch.arange(len(self.heldout))
        rows = [part for part in torch.split(every, size)[:number] if len(part) == size] or [every]
        return tuple(
            Target(batch=self.heldout.pick(index), owners=torch.full((len(index),), -1)) for index in rows
        )

    def _behind(self, number: int, client: int | None) -> set[str]:
        """Digests of the images of one update, or a whole round."""
        keys = [k for k in self.truth.used if k[0] == number and client in (None, k[1])]
        return {self.truth.print_of(row) for key in keys for row in self.truth.used[key].rows()}

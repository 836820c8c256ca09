"""The judge of a group: ground truth, context for metrics, null adversaries, other victims."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import About, Claim, PriorSamples
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.claims.truths import exchange_classes
from glasshouse.audit.scoring.nulls import EXAMPLES, average_score, choose_null, largest_share
from glasshouse.cache import digest, once
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch, Terms

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
            stream, known = self.rng.child(f"null/{name}/{count}"), self.auxiliary
            self.quoted[name, count] = once(
                self._key("choice", metric, stream, count),
                lambda: choose_null(
                    metric,
                    known,
                    count=count,
                    context=self.context,
                    rng=stream,
                    among=self.among,
                    draws=self.draws,
                ),
            )
        return self.quoted[name, count]

    def null_most(self, name: str, metric: Metric, count: int) -> float | None:
        """Upper bound on the hit rate of the quoted null; None: unknown."""
        quoted = self.null(name, metric, count)
        assert self.auxiliary is not None  # null has checked
        if (name, count) not in self.most:
            stream, known = self.rng.child(f"null/{name}/{count}"), self.auxiliary
            self.most[name, count] = once(
                self._key("most", metric, stream, count, quoted),
                lambda: largest_share(
                    quoted,
                    metric,
                    known,
                    count=count,
                    context=self.context,
                    rng=stream,
                    draws=self.draws,
                ),
            )
        return self.most[name, count]

    def null_scores(
        self, name: str, metric: Metric, batch: Batch, *, number: int, client: int | None
    ) -> NDArray[np.float64]:
        """The quoted null's average scores on one victim in a round."""
        quoted = self.null(name, metric, len(batch))
        assert self.auxiliary is not None  # null has checked
        stream, known = self.rng.child(f"victim/{name}/{number}/{client}"), self.auxiliary
        return once(
            self._key("scores", metric, stream, quoted, batch.inputs, batch.labels),
            lambda: average_score(
                quoted, metric, known, batch, context=self.context, rng=stream, draws=self.draws
            ),
        )

    def _key(self, what: str, metric: Metric, stream: Rng, *more: object) -> list[object] | None:
        """Cache key: everything that a null's score depends on; None if that cannot be listed."""
        kind: type[object] = type(metric)
        if self._known is None or not dataclasses.is_dataclass(kind):
            return None
        return [what, self._known, kind.__module__, kind.__qualname__, repr(metric), stream.key, *more]

    @cached_property
    def _known(self) -> str | None:
        """Digest of the null adversaries' knowledge and of the context in which they are scored."""
        context = self.context
        if not self.networks or self.auxiliary is None or context.gallery is not None:
            return None
        batches = [(b.inputs, b.labels) for b in (self.auxiliary, self.draws) if b is not None]
        settings = (context.classes, context.prior, context.called, context.image_range)
        return digest(
            {
                "batches": batches,
                "among": self.among,
                "networks": self.networks,
                "settings": settings,
                "vocabulary": repr(context.vocabulary),
                "distractors": context.distractors,
            }
        )

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
            self.moved[by] = self.against(exchange_classes(self.truth, by=by))
        return self.moved[by]

    def of(self, outcomes: Iterable[Outcome]) -> "Judge":
        """The judge of one attack, with the prior samples that it returned as an additional null."""
        filed = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
        if not filed:
            return self
        draws = Batch(
            inputs=torch.cat([c.inputs for c in filed]), labels=torch.cat([c.labels for c in filed])
        )
        return dataclasses.replace(self, draws=draws, quoted={}, most={})

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

    def others(self, about: About, number: int) -> tuple[Target, ...]:
        """Up to ``SHIFTS`` other victims for round ``number`` of a claim, which share no example with it.

        The next ones in order, cyclically; if there are none, held-out examples; without those, none.
        """
        return self._others(about.rounds, about.client, number)

    @cached_property
    def _others(self) -> Callable[[tuple[int, ...], int | None, int], tuple[Target, ...]]:
        return lru_cache(maxsize=KEPT)(self._find_others)

    def _find_others(self, rounds: tuple[int, ...], client: int | None, number: int) -> tuple[Target, ...]:
        size = len(self.target(number, client).batch)
        how_many = max(1, min(SHIFTS, EXAMPLES // size))
        own = {p for r in rounds for p in self._behind(r, client)}
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
        whole = [
            torch.arange(i * size, (i + 1) * size) for i in range(min(number, len(self.heldout) // size))
        ]
        rows = whole or [torch.arange(len(self.heldout))]
        return tuple(
            Target(batch=self.heldout.pick(index), owners=torch.full((len(index),), -1)) for index in rows
        )

    def _behind(self, number: int, client: int | None) -> set[str]:
        """Digests of the images of one update, or a whole round."""
        keys = [k for k in self.truth.used if k[0] == number and client in (None, k[1])]
        return {self.truth.prints[row] for key in keys for row in self.truth.used[key].rows()}

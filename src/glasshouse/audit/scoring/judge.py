"""The scoring side of a group: truth, what metrics need beside it, null adversaries, other victims."""

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
"""Victims whose examples a judge has at hand."""
SHIFTS: Final = 3
"""Other victims that a claim is scored against, at most; fewer for large batches."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What one claim is compared with.

    Attributes:
        batch: the examples.
        owners: the client of each, (B,); -1: nobody's.
    """

    batch: Batch
    owners: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """The scoring side of one group.

    Attributes:
        truth: of the group.
        context: for the metrics.
        auxiliary: what null adversaries know.
        rng: for the draws of null adversaries; unrelated to the attacks' streams.
        among: names of the null adversaries to choose from; empty: all that fit.
        quoted: null already chosen, by metric name and batch size.
        most: of these nulls, the most that their share can be as far as the auxiliary part tells.
        draws: of the prior of the attack that is judged, where it filed some.
        defense: names of the defences that are on, joined by " + "; "none" without.
        terms: of the federation; None: unknown, and silence is scored at chance level.
        announced: examples behind a message as the wire says, by round and client (None: the whole round).
        heldout: examples of nobody, to exchange victims with and to rank them among; None: none.
        comparable: the held-out examples are of the same classes as the private ones.
        networks: names the networks of the context by their content; empty: nobody says.
        run: names the federation; claims of one run about the same clients are no further clients.
        moved: judges with the private classes exchanged, by how far.
        compared: of the metric that is being scored, what claims of single images get with single victims.
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
        """The most that the share of the quoted null can be; None where that is not known."""
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
        """What the quoted null gets on one victim in a round, on average."""
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
        """All that a null's number depends on; None where that cannot be said."""
        kind: type[object] = type(metric)
        if self._known is None or not dataclasses.is_dataclass(kind):
            return None
        return [what, self._known, kind.__module__, kind.__qualname__, repr(metric), stream.key, *more]

    @cached_property
    def _known(self) -> str | None:
        """Names by its content what null adversaries know and their guesses are scored with."""
        context = self.context
        if not self.networks or self.auxiliary is None or context.gallery is not None:
            return None
        batches = [(b.inputs, b.labels) for b in (self.auxiliary, self.draws) if b is not None]
        settings = (context.classes, context.prior, context.called, context.image_range)
        distractors = context.distractors
        return digest(
            {
                "batches": batches,
                "among": self.among,
                "networks": self.networks,
                "settings": settings,
                "vocabulary": repr(context.vocabulary),
                "distractors": None if distractors is None else distractors,
            }
        )

    def against(self, truth: Truth) -> "Judge":
        """The same judge with another truth; the nulls chosen so far stay."""
        gallery = self.context.gallery
        other = None if gallery is None else gallery.holding(truth.private, truth.shards)
        return dataclasses.replace(
            self, truth=truth, context=dataclasses.replace(self.context, gallery=other), moved={}
        )

    def with_classes_moved(self, by: int) -> "Judge":
        """The same judge with every private class's images exchanged for another's, ``by`` places on."""
        if by not in self.moved:
            self.moved[by] = self.against(exchange_classes(self.truth, by=by))
        return self.moved[by]

    def of(self, outcomes: Iterable[Outcome]) -> "Judge":
        """The judge of one attack: with the samples of its prior that it filed as a further null."""
        filed = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
        if not filed:
            return self
        draws = Batch(
            inputs=torch.cat([c.inputs for c in filed]), labels=torch.cat([c.labels for c in filed])
        )
        return dataclasses.replace(self, draws=draws, quoted={}, most={})

    def target(self, number: int, client: int | None) -> Target:
        """The truth behind one round of a claim."""
        return self._target(number, client)

    @cached_property
    def _target(self) -> Callable[[int, int | None], Target]:
        """The last ones are kept: every metric asks for them again."""

        def read(number: int, client: int | None) -> Target:
            batch, owners = self.truth.batch(number, client)
            return Target(batch=batch, owners=owners)

        return lru_cache(maxsize=KEPT)(read)

    def announced_for(self, about: About) -> int:
        """The number of examples a claim may cover: what the wire announces, and at least the true number."""
        return sum(
            max(self.announced.get((number, about.client), 0), len(self.target(number, about.client).batch))
            for number in about.rounds
        )

    def others(self, about: About, number: int) -> tuple[Target, ...]:
        """Up to ``SHIFTS`` other victims for round ``number`` of a claim: not one example of it among theirs.

        The next ones in order, cyclically; without any, held-out examples; without those, nobody.
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
        return self._strangers(size, how_many)

    def _strangers(self, size: int, number: int) -> tuple[Target, ...]:
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
        """Fingerprints of the images behind one update, or a whole round."""
        keys = [k for k in self.truth.used if k[0] == number and client in (None, k[1])]
        return {self.truth.prints[row] for key in keys for row in self.truth.used[key].rows()}

"""The ground truth of one federation as the scorer sees it: victims, other victims, and what metrics need.

Nothing here is changed once it is read; a truth in which victims are exchanged is a copy.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About
from glasshouse.metrics.base import ScoreContext
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch, Terms

EXAMPLES: Final = 1000
"""Largest number of examples for a choice or an average: large batches get fewer pseudo-victims and draws."""
DRAWS: Final = 10
"""Largest number of guesses of a random null adversary that are averaged on one victim."""
SHIFTS: Final = 3
"""Largest number of other victims that a claim is scored against; fewer for large batches."""
KEPT: Final = 2**24
"""Numbers in the private examples up to which the examples of every victim are kept; 64 MiB as float32."""


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
class GroundTruth:
    """What happened in one federation, beside what metrics need to compare claims with it.

    Attributes:
        truth: the private examples, and who used which.
        context: for the metrics.
        defense: names of the active defences, joined by " + "; "none" without.
        terms: of the federation; None: unknown, and victims without a claim are scored at chance level.
        announced: number of examples announced in the messages, by round and client (None: the whole round).
        heldout: examples of no client, to exchange victims with and to rank them among; None: none.
        comparable: the held-out examples are of the same classes as the private ones.
        run: names the federation; claims of one run about the same clients do not add clients.
        weights: digest of the first model that was sent; empty: unknown.
        adversary: the client that attacks; None: it is none of them.
    """

    truth: Truth
    context: ScoreContext
    defense: str = "none"
    terms: Terms | None = None
    announced: Mapping[tuple[int, int | None], int] = field(default_factory=dict)
    heldout: Batch | None = None
    comparable: bool = True
    run: str = ""
    weights: str = ""
    adversary: int | None = None

    @property
    def rounds(self) -> tuple[int, ...]:
        """The recorded rounds, in order."""
        return tuple(sorted({number for number, _ in self.truth.used}))

    def target(self, number: int, client: int | None) -> Target:
        """The examples behind one update, or behind a whole round (client None)."""
        known = self._targets.get((number, client))
        if known is not None:
            return known
        batch, owners = self.truth.batch(number, client)
        target = Target(batch=batch, owners=owners)
        if self.truth.private.inputs.numel() <= KEPT:
            self._targets[number, client] = target
        return target

    @cached_property
    def _targets(self) -> dict[tuple[int, int | None], Target]:
        """Victims' examples: every claim is compared with its own ones and with those of several others."""
        return {}

    def allowed(self, about: About) -> int:
        """Number of examples that a claim may cover: as announced, but at least the true number."""
        total = 0
        for number in about.rounds:
            true = len(self.target(number, about.client).batch)
            total += max(self.announced.get((number, about.client), 0), true)
        return total

    def others(self, about: About, number: int) -> tuple[Target, ...]:
        """Up to ``SHIFTS`` other victims, which share no example with the claim's own.

        The next ones in order, cyclically; if there are none, held-out examples; without those, none.
        """
        key = about.rounds, about.client, number
        if key not in self._others:
            self._others[key] = self._find_others(about, number)
        return tuple(one if isinstance(one, Target) else self.target(*one) for one in self._others[key])

    def _find_others(self, about: About, number: int) -> tuple[Target | tuple[int, int | None], ...]:
        """The update or round of each other victim, or a held-out one."""
        client = about.client
        size = len(self.target(number, client).batch)
        how_many = max(1, min(SHIFTS, EXAMPLES // size))
        own = {p for r in about.rounds for p in self._behind(r, client)}
        keys: list[tuple[int, int | None]] = sorted(
            {(r, None if client is None else c) for r, c in self.truth.used},
            key=lambda key: (key[0], -1 if key[1] is None else key[1]),
        )
        # Neighbours in order, so that every victim serves about equally often as another one's.
        after = keys.index((number, client)) + 1
        different = (key for key in keys[after:] + keys[:after] if own.isdisjoint(self._behind(*key)))
        if chosen := list(islice(different, how_many)):
            return tuple(chosen)
        return self._heldout_targets(size, how_many)

    def twins(self, number: int, client: int | None) -> Batch | None:
        """Other private examples of each victim's label, of its own client where it has one.

        At most ``DRAWS`` for every victim, one after another: the first of all victims, then the second, ...

        Returns:
            None where some victim is the only private example of its label.
        """
        if (number, client) not in self._twins:
            self._twins[number, client] = self._find_twins(number, client)
        rows = self._twins[number, client]
        return None if rows is None else self.truth.private.pick(rows)

    def _find_twins(self, number: int, client: int | None) -> Tensor | None:
        """The rows of :meth:`twins`."""
        private, keys = self.truth.private, sorted(self.truth.used)
        own = [(row, k[1]) for k in keys if k[0] == number and client in (None, k[1])
               for row in self.truth.used[k].rows()]  # fmt: skip
        mine = {row for row, _ in own}
        shards = {owner: set(rows) for owner, rows in self.truth.shards.items()}
        columns = []
        for row, owner in own:
            same = (private.labels == private.labels[row]).reshape(len(private), -1).all(1)
            alike = [other for other in torch.where(same)[0].tolist() if other not in mine]
            near = [other for other in alike if other in shards.get(owner, set())] or alike
            if not near:
                return None
            columns.append(near)
        times = max(1, min(DRAWS, EXAMPLES // len(own), max(map(len, columns))))
        chosen = [column[turn % len(column)] for turn in range(times) for column in columns]
        return torch.tensor(chosen)

    def against(self, truth: Truth) -> "GroundTruth":
        """The same with another ground truth, for a negative control."""
        gallery = self.context.gallery
        other = None if gallery is None else gallery.holding(truth.private, truth.shards)
        return dataclasses.replace(
            self, truth=truth, context=dataclasses.replace(self.context, gallery=other)
        )

    def with_classes_moved(self, by: int) -> ScoreContext:
        """The context with the images of every private class replaced by those ``by`` classes away."""
        gallery = self.context.gallery
        return dataclasses.replace(self.context, gallery=None if gallery is None else gallery.moved(by))

    def _heldout_targets(self, size: int, number: int) -> tuple[Target, ...]:
        if self.heldout is None:
            return ()
        everything = torch.arange(len(self.heldout))
        rows = [part for part in torch.split(everything, size)[:number] if len(part) == size] or [everything]
        return tuple(
            Target(batch=self.heldout.pick(index), owners=torch.full((len(index),), -1)) for index in rows
        )

    def _behind(self, number: int, client: int | None) -> frozenset[str]:
        """Digests of the examples of one update, or a whole round."""
        if (number, client) not in self._prints:
            keys = [k for k in self.truth.used if k[0] == number and client in (None, k[1])]
            rows = (row for key in keys for row in self.truth.used[key].rows())
            self._prints[number, client] = frozenset(map(self.truth.print_of, rows))
        return self._prints[number, client]

    @cached_property
    def _others(self) -> dict[tuple[tuple[int, ...], int | None, int], tuple[Any, ...]]:
        """Cache of :meth:`others`, which every metric asks about each claim."""
        return {}

    @cached_property
    def _twins(self) -> dict[tuple[int, int | None], Tensor | None]:
        """Cache of :meth:`twins`, likewise."""
        return {}

    @cached_property
    def _prints(self) -> dict[tuple[int, int | None], frozenset[str]]:
        """Cache of :meth:`_behind`, which is asked about every pair of victims."""
        return {}


def exchange_classes(truth: Truth, *, by: int = 1) -> Truth:
    """The ground truth with the images of every private class replaced by those ``by`` classes away."""
    labels = truth.private.labels
    turned = Batch(inputs=truth.private.inputs, labels=(labels + by) % (int(labels.max()) + 1))
    return dataclasses.replace(truth, private=turned)


def rotate_victims(truth: Truth) -> Truth:
    """:func:`shift_victims` to the next victim, and the last one to the first; unchanged with only one."""
    keys = sorted(truth.used, key=lambda key: key[::-1])  # rounds first: a sum is exchanged whole
    return shift_victims(truth, dict(zip(keys, keys[1:] + keys[:1], strict=True)))


def shift_victims(truth: Truth, units: Mapping[tuple[int, int], tuple[int, int]]) -> Truth:
    """The ground truth with each victim's examples replaced by another's, for a negative control.

    Properties move to the same number of clients without them, or to all such clients if there are fewer.
    After the first round every message is another client's.
    """
    used = {key: truth.used[other] for key, other in units.items()}
    marked = {
        name: tuple(c for c in truth.shards if c not in clients)[: len(clients)]
        for name, clients in truth.marked.items()
    }
    first = min(truth.arrived, default=0)
    arrived = {r: who if r == first else who[1:] + who[:1] for r, who in truth.arrived.items()}
    return dataclasses.replace(truth, used=used, marked=marked, arrived=arrived)

"""Compute the evidence: shadow clients, detectors, and the features of every round's sum.

Shape letters: as in ``evidence``. Shadow clients and detectors are computed round by round, with checkpoints.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.attacks.property.detector import Detector, fit, fit_sgd
from glasshouse.attacks.property.discriminant import fit_discriminant
from glasshouse.attacks.property.evidence import Evidence, Method
from glasshouse.attacks.property.properties import Pairs, Property, Scene
from glasshouse.attacks.property.shadow import HONEST, Cast, updates
from glasshouse.cache import Checkpoint, load_or_make
from glasshouse.errors import Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build
from glasshouse.progress import track
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.tensors import copy_to
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Aggregate, Batch, Value

LOG = logging.getLogger("glasshouse")

VERSION = 3
"""Part of the cache key: increased when the same settings would give other results."""
SAVED_EVERY = 20
"""Rounds between checkpoints."""


def gather(
    view: View, looks_for: str, settings: Mapping[str, Value], *, method: Method, rng: Rng
) -> Evidence:
    """The evidence of a run, from the cache if it was computed before.

    Args:
        view: of scope ``run``.
        looks_for: name of the property plug-in.
        settings: its arguments.
        method: see :class:`Method`.
        rng: must not depend on the estimator, so that all of them share the evidence.

    Raises:
        Inapplicable: no sums, or what the property needs was not granted.
    """
    view = copy_to(view, "cpu")  # shadow clients are many and small: a GPU is no faster
    what: Property = create(load("properties", looks_for), settings)
    rounds = [r for r in view.rounds if r.aggregate is not None]
    auxiliary, challenge = view.grants.auxiliary, view.grants.challenge
    if len(rounds) < 2 or auxiliary is None:
        raise Inapplicable(
            f"property '{looks_for}' from sums",
            needs="auxiliary data, and sums of at least 2 rounds",
            got=f"{len(rounds)} sums, {0 if auxiliary is None else len(auxiliary)} auxiliary examples",
            fix="set federation.secure_sum = true and federation.keep.rounds = 'all', and data.auxiliary",
        )
    note_unequal(rounds)
    # By name: in a file, tensors may be in another order than in the model.
    names = list(LocalTraining.of(view.terms, round=0).parameters(build(view.terms.architecture)))
    aggregates = [r.aggregate for r in rounds if r.aggregate is not None]
    sums = torch.stack([total(a, names) for a in aggregates])  # (n, z)
    batches = [auxiliary] if challenge is None else [auxiliary, challenge]
    key = {
        "version": VERSION,
        "terms": repr(view.terms),
        "broadcasts": [r.broadcast.tensors for r in rounds],
        "sums": sums,
        "given": [{"inputs": b.inputs, "labels": b.labels} for b in batches],
        "property": [looks_for, dict(settings)],
        "method": {name: value for name, value in vars(method).items() if name != "seed"},
        "rng": rng.seed(),
    }
    sizes = client_sizes(rounds)
    mean = sum(examples for examples, _ in sizes) / sum(clients for _, clients in sizes)
    scene = Scene(
        auxiliary=auxiliary,
        challenge=challenge,
        terms=view.terms,
        examples=max(1, round(mean)),
        skewed=method.skewed,
    )
    maker = Maker(view=view, rounds=rounds, sums=sums, what=what, scene=scene, method=method, rng=rng)
    evidence = load_or_make("property-evidence", key, maker.make)
    present, numbers = participation(view, aggregates), tuple(r.round for r in rounds)
    return Evidence(rounds=numbers, participation=present, count=present.sum(1), **evidence)


def client_sizes(rounds: list[RoundView]) -> list[tuple[int, int]]:
    """Examples and clients behind the sum of each round; rounds without clients are left out."""
    sums = [r.aggregate for r in rounds if r.aggregate is not None]
    pairs = [(a.examples, len(a.selected) - len(a.dropped)) for a in sums]
    return [(examples, clients) for examples, clients in pairs if clients]


def note_unequal(rounds: list[RoundView]) -> None:
    """Warn if sums show that clients differ in size, as all shadow clients have the same size."""
    means = sorted({examples / clients for examples, clients in client_sizes(rounds)})
    if means[0] < means[-1]:
        LOG.warning(
            "clients hold different numbers of examples (%.1f to %.1f in the mean of a round); all shadow "
            "clients hold the mean number, so that features of larger and smaller clients are misjudged",
            means[0],
            means[-1],
        )


def participation(view: View, sums: list[Aggregate]) -> Tensor:
    """Which clients answered: (n, N) of 0 and 1."""
    present = torch.zeros(len(sums), view.terms.clients, dtype=torch.float64)
    for row, one in zip(present, sums, strict=True):
        row[[c for c in one.selected if c not in one.dropped]] = 1
    return present


def total(one: Aggregate, names: list[str]) -> Tensor:
    """The sum of the round's updates, each with weight 1 on average: (z,) float64."""
    scale = (len(one.selected) - len(one.dropped)) / one.weight
    return torch.cat([one.tensors[n].double().reshape(-1) * scale for n in names])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Maker:
    """Computes the tensors of an :class:`Evidence` round by round; resumable."""

    view: View
    rounds: list[RoundView]
    sums: Tensor
    what: Property
    scene: Scene
    method: Method
    rng: Rng

    def make(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """The tensors ``kernel``, ``offset``, ``heldout`` and ``norm`` of all rounds."""
        n, t, judged = len(self.rounds), self.method.features, self.method.held_pairs
        shapes = {"kernel": (t, n, n), "offset": (n, t), "heldout": (n, 2, judged, t), "norm": (n, t)}
        tables = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        tables, begin = checkpoint.load() or (tables, 0)
        model, (own, rest) = build(self.view.terms.architecture), self._parts()
        # The held-out shadow clients have the same data in every round, as real clients do.
        heldout = self._pairs(rest, count=judged, rng=self.rng.child("held"))
        for number in track(range(begin, n), "shadow clients and detectors", total=n - begin):
            every = self._detectors(self.rounds[number], model, own, heldout)
            for k, (part, detector, features) in enumerate(every):
                tables["kernel"][k, :, number] = self.sums[:, part] @ detector.direction.double()
                tables["offset"][number, k] = detector.offset
                tables["heldout"][number, :, :, k] = features
                tables["norm"][number, k] = detector.norm
            if (number + 1) % SAVED_EVERY == 0:
                checkpoint.save(tables, number + 1)
        return tables

    def _parts(self) -> tuple[Tensor, Tensor]:
        """Rows of the auxiliary data for the detectors, and for the held-out shadow clients."""
        size = len(self.scene.auxiliary)
        order = torch.randperm(size, generator=self.rng.child("parts").torch())
        cut = size - max(round(size * self.method.held), min(2 * self.scene.examples, size // 2))
        return order[:cut], order[cut:][: self.method.pool or None]

    def _pairs(self, rows: Tensor, *, count: int, rng: Rng) -> Pairs:
        """Shadow clients with and without the property, from these rows of the auxiliary data."""
        scene = replace(self.scene, auxiliary=self.scene.auxiliary.pick(rows))
        return self.what.pairs(scene, count=count, rng=rng)

    def _detectors(
        self, one: RoundView, model: nn.Module, rows: Tensor, heldout: Pairs
    ) -> Iterator[tuple[slice, Detector, Tensor]]:
        """Coordinates and detector of every feature of a round, and the feature of the held-out clients."""
        method, stream, names = self.method, self.rng.child(f"round/{one.round}"), model.state_dict().keys()
        model.load_state_dict({n: t for n, t in one.broadcast.tensors.items() if n in names})
        # Whoever holds few examples gathers from few: the pool bounds what the shadows are made of.
        if 0 < method.pool < len(rows):
            order = torch.randperm(len(rows), generator=stream.child("pool").torch())
            rows = rows[order[: method.pool]]
        count = method.pairs - method.held_pairs
        fresh = self._pairs(rows, count=count, rng=stream.child("pairs"))
        # The discriminant is exact for the mean of a round and needs no shadow clients.
        if method.detector == "discriminant":
            terms, how, rng = self.view.terms, method.shrinkage, stream.child("discriminant")
            found = fit_discriminant(model, terms, fresh, heldout, shrinkage=how, round=one.round, rng=rng)
            yield slice(None), *found
            return
        pairs, rng = (fresh, heldout), stream.child("shadows")
        shadow_updates = shadow_pairs(model, self.view, pairs, round=one.round, rng=rng)
        train, labels = shadow_updates[: 2 * count], torch.arange(2 * count) >= count
        test = shadow_updates[2 * count :]
        # Each part of the update has a detector of its own, as in the paper.
        for k, place in enumerate(torch.arange(shadow_updates.shape[1]).chunk(method.features)):
            part = slice(int(place[0]), int(place[-1]) + 1)
            detector = self._fitted(train[:, part], labels, test[:, part], rng=stream.child(f"detector/{k}"))
            yield part, detector, detector.features(test[:, part]).double().view(2, -1)

    def _fitted(self, train: Tensor, labels: Tensor, test: Tensor, *, rng: Rng) -> Detector:
        method = self.method
        if method.detector == "lbfgs":
            return fit(train, labels, penalty=method.penalty, iterations=method.iterations)
        half = len(test) // 2
        return fit_sgd(
            train,
            labels,
            (test, torch.arange(2 * half) >= half),
            epochs=method.epochs,
            learning_rate=method.learning_rate,
            batch_size=method.batch_size,
            rng=rng,
        )


def shadow_pairs(model: nn.Module, view: View, parts: tuple[Pairs, ...], *, round: int, rng: Rng) -> Tensor:
    """Updates of all shadow clients, part after part, in each first those without the property: (S, z).

    Clients of one conduct are made together, so that they share the gradients of the examples they share.
    """
    conduct, stream = parts[0].conduct, rng.child("negative")
    if conduct is HONEST:
        every = join_casts([cast for p in parts for cast in (p.negative, p.positive)])
        return updates(model, view.terms, every, rng=stream, round=round)
    negative = join_casts([p.negative for p in parts])
    low = updates(model, view.terms, negative, rng=stream, round=round)
    if conduct.behaviour is None and not conduct.ascend and all(p.negative is p.positive for p in parts):
        high = low * conduct.factor
    else:
        positive, other = join_casts([p.positive for p in parts]), rng.child("positive")
        high = updates(model, view.terms, positive, rng=other, conduct=conduct, round=round)
    sizes = [len(p.negative.rows) for p in parts]
    return torch.cat(
        [x for pair in zip(torch.split(low, sizes), torch.split(high, sizes), strict=True) for x in pair]
    )


def join_casts(casts: list[Cast]) -> Cast:
    """All clients of several casts; shared pools are not duplicated."""
    pools: dict[int, tuple[Batch, int]] = {}
    size, rows = 0, []
    for cast in casts:
        if id(cast.pool) not in pools:
            pools[id(cast.pool)] = (cast.pool, size)
            size += len(cast.pool)
        rows.append(cast.rows + pools[id(cast.pool)][1])
    batches = [pool for pool, _ in pools.values()]
    pool = Batch(inputs=torch.cat([b.inputs for b in batches]), labels=torch.cat([b.labels for b in batches]))
    return Cast(pool=pool, rows=torch.cat(rows))

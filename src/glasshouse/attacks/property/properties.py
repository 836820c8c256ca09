"""Properties of a client, each defined by shadow clients with and without it.

A property is a plug-in (entry-point group ``glasshouse.properties``): a frozen dataclass with a ``card`` and
``pairs``. Shape letters: S pairs of shadow clients, B examples of each, A auxiliary examples.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from glasshouse.attacks.data_property import DataProperty
from glasshouse.attacks.property.shadow import HONEST, Cast, Conduct, steps_of
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.behaviours.gradient_ascent import GradientAscent
from glasshouse.federation.behaviours.gradient_inversion import GradientInversion as Inverting
from glasshouse.federation.behaviours.label_flip import LabelFlip as Flipping
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Terms


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """The data from which shadow clients are built.

    Attributes:
        auxiliary: the adversary's data.
        challenge: the examples in question, or None.
        terms: of the federation.
        examples: B, the number of examples per client.
        skewed: each client holds examples of a random number of classes, from one to all.
    """

    auxiliary: Batch
    challenge: Batch | None
    terms: Terms
    examples: int
    skewed: bool = False


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Shadow clients without and with the property.

    Attributes:
        negative: data of those without. If it is the same object as ``positive``, only the conduct differs.
        positive: data of those with the property.
        conduct: of the positive ones; the negative ones are honest.
    """

    negative: Cast
    positive: Cast
    conduct: Conduct = HONEST


class Property(Protocol):
    """A property of some clients, which can generate shadow clients with and without it."""

    card: ClassVar[Card]
    grants: ClassVar[frozenset[str]] = frozenset()
    """Side knowledge that it requires besides auxiliary data."""

    def pairs(self, scene: Scene, *, count: int, rng: Rng) -> Pairs:
        """``count`` shadow clients of each kind.

        Raises:
            BadValue: the scene does not allow it.
            Inapplicable: the scene does not allow it.
        """


@final
@dataclass(frozen=True, kw_only=True)
class Membership(Property):
    """The client holds the challenge example; the others hold auxiliary examples only.

    Args:
        target: position in the challenge.
    """

    card: ClassVar[Card] = Card(
        summary="the client holds the challenge example",
        source="Kerkouche et al. 2023, arXiv:2303.03908",
        grants=("auxiliary", "challenge"),
    )
    grants: ClassVar[frozenset[str]] = frozenset({"challenge"})

    target: int = 0

    def pairs(self, scene: Scene, *, count: int, rng: Rng) -> Pairs:
        challenge = scene.challenge
        if challenge is None or not 0 <= self.target < len(challenge):
            raise Inapplicable(
                "property 'membership'",
                needs=f"a challenge with an example number {self.target}",
                got="none" if challenge is None else f"{len(challenge)} examples",
                fix="set grants.challenge = true and data.members",
            )
        # With dropout every shadow client has its own mask for the target.
        copies = count if scene.terms.options.get("dropout", False) else 1
        target = challenge.pick(torch.full((copies,), self.target))
        pool, size = _joined(scene.auxiliary, target), len(scene.auxiliary)
        positive = _draws_of(scene, count, rng=rng.child("positive"))
        positive[:, 0] = size + torch.arange(count) % copies
        negative = _draws_of(scene, count, rng=rng.child("negative"))
        without, having = _shares(size, copies), _shares(size, copies)
        having[:size] *= (scene.examples - 1) / scene.examples
        having[size:] = 1 / (copies * scene.examples)
        return Pairs(
            negative=Cast(pool=pool, rows=negative, shares=without),
            positive=Cast(pool=pool, rows=positive, shares=having),
        )


@final
@dataclass(frozen=True, kw_only=True)
class GradientInversion(Property):
    """The client sends its negated update. Positive shadow updates are the negative ones with flipped sign.

    Args:
        scale: as in the behaviour.
        clip_norm: as in the behaviour.
    """

    card: ClassVar[Card] = Card(
        summary="the client sends -scale times its update", source="Kerkouche et al. 2023, arXiv:2303.03908"
    )

    scale: float = 1.0
    clip_norm: float | None = None

    def pairs(self, scene: Scene, *, count: int, rng: Rng) -> Pairs:
        conduct = Conduct(factor=-self.scale)
        if self.clip_norm is not None:
            conduct = Conduct(behaviour=Inverting(scale=self.scale, clip_norm=self.clip_norm))
        return _same_data(scene, conduct, count=count, rng=rng)


@final
@dataclass(frozen=True, kw_only=True)
class Ascent(Property):
    """The client ascends the loss. With one step and no weight decay this equals gradient inversion.

    Args:
        clip_norm: as in the behaviour.
    """

    card: ClassVar[Card] = Card(
        summary="the client climbs the loss", source="Kerkouche et al. 2023, arXiv:2303.03908"
    )

    clip_norm: float | None = None

    def pairs(self, scene: Scene, *, count: int, rng: Rng) -> Pairs:
        if self.clip_norm is not None:
            conduct = Conduct(behaviour=GradientAscent(clip_norm=self.clip_norm))
        elif steps_of(scene.terms, scene.examples) == 1 and not scene.terms.optimizer.weight_decay:
            conduct = Conduct(factor=-1.0)
        else:
            conduct = Conduct(ascend=True)
        return _same_data(scene, conduct, count=count, rng=rng)


@final
@dataclass(frozen=True, kw_only=True)
class LabelFlip(Property):
    """The client trains on wrong labels.

    Args:
        shift: as in the behaviour.
        to: as in the behaviour.
    """

    card: ClassVar[Card] = Card(summary="the client trains on shifted labels, or on one label for all")

    shift: int = 1
    to: int | None = None

    def pairs(self, scene: Scene, *, count: int, rng: Rng) -> Pairs:
        auxiliary, size = scene.auxiliary, len(scene.auxiliary)
        flip = Flipping(shift=self.shift, to=self.to)
        wrong = flip.flipped(auxiliary.labels, classes=scene.terms.architecture.classes)
        pool = _joined(auxiliary, Batch(inputs=auxiliary.inputs, labels=wrong))
        positive = size + _draws_of(scene, count, rng=rng.child("positive"))
        negative = _draws_of(scene, count, rng=rng.child("negative"))
        return Pairs(
            negative=Cast(pool=pool, rows=negative, shares=_shares(size, size)),
            positive=Cast(pool=pool, rows=positive, shares=_shares(size, size).flip(0)),
        )


@final
@dataclass(frozen=True, kw_only=True)
class Attribute(Property):
    """More than half of the client's examples are of one class.

    The share in positive shadow clients is drawn uniformly above one half, in negative ones up to one half;
    the rest is drawn from the other classes.

    Args:
        label: the class.
    """

    card: ClassVar[Card] = Card(summary="more than half of the client's examples are of one class")

    label: int = 0

    @property
    def data_property(self) -> DataProperty:
        """The property that the judge checks in the clients' labels."""
        return DataProperty(name=f"attribute {self.label}", label=self.label)

    def pairs(self, scene: Scene, *, count: int, rng: Rng) -> Pairs:
        labels, b = scene.auxiliary.labels, scene.examples
        inside, outside = (labels == self.label).nonzero()[:, 0], (labels != self.label).nonzero()[:, 0]
        half = b // 2
        if min(len(inside), len(outside)) < b:
            raise BadValue(
                "property 'attribute'",
                needs=f"at least {b} auxiliary examples of class {self.label}, and of the others",
                got=f"{len(inside)} and {len(outside)}",
                fix="raise data.auxiliary, or choose another class",
            )

        def cast(low: int, high: int, name: str) -> Cast:
            stream = rng.child(name)
            many = torch.randint(low, high + 1, (count,), generator=stream.torch())
            of, others = (
                part[_draws(len(part), count, b, rng=stream.child(part_name))]
                for part, part_name in ((inside, "inside"), (outside, "outside"))
            )
            return Cast(pool=scene.auxiliary, rows=torch.where(torch.arange(b) < many[:, None], of, others))

        return Pairs(negative=cast(0, half, "negative"), positive=cast(half + 1, b, "positive"))


def _joined(one: Batch, other: Batch) -> Batch:
    return Batch(inputs=torch.cat([one.inputs, other.inputs]), labels=torch.cat([one.labels, other.labels]))


def _same_data(scene: Scene, conduct: Conduct, *, count: int, rng: Rng) -> Pairs:
    rows = _draws_of(scene, count, rng=rng)
    cast = Cast(pool=scene.auxiliary, rows=rows, shares=_shares(len(scene.auxiliary), 0))
    return Pairs(negative=cast, positive=cast, conduct=conduct)


def _shares(rows: int, never: int) -> Tensor:
    """Expected shares, uniform over the first ``rows`` entries and zero for the last ``never``."""
    return torch.cat([torch.full((rows,), 1 / rows), torch.zeros(never)])


def _draws_of(scene: Scene, count: int, *, rng: Rng) -> Tensor:
    """(count, B) rows of the auxiliary data, of every client without replacement."""
    size = len(scene.auxiliary)
    if not scene.skewed:
        return _draws(size, count, scene.examples, rng=rng)
    labels = scene.auxiliary.labels
    classes = torch.unique(labels)
    stream = rng.child("classes").torch()
    many = torch.randint(1, len(classes) + 1, (count, 1), generator=stream)
    order = torch.rand((count, len(classes)), generator=stream).argsort(1).argsort(1)
    held = order < many  # (count, classes)
    # Of other classes only where the own ones have too few examples.
    return _draws(size, count, scene.examples, rng=rng, first=held[:, torch.searchsorted(classes, labels)])


def _draws(size: int, count: int, examples: int, *, rng: Rng, first: Tensor | None = None) -> Tensor:
    """(count, examples) indices below ``size``, drawn without replacement within each row.

    Entries in ``first`` (count, size) are used up before any other.
    """
    if size < examples:
        raise BadValue(
            "shadow clients",
            needs=f"at least {examples} auxiliary examples for each",
            got=f"{size}",
            fix="raise data.auxiliary",
        )
    keys = torch.rand((count, size), generator=rng.torch())
    if first is not None:
        keys = keys + first
    return keys.topk(examples, dim=1).indices

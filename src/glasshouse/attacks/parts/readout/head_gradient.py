"""From a head's gradient to images: recover representations, then invert them.

Shape letters: R representations, D features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, Protocol, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Reconstruction, Representations
from glasshouse.attacks.budget import MATCHING, Budget
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts.matching.distance import ROUNDING
from glasshouse.attacks.parts.readout.columns import Read, Readout, read_columns
from glasshouse.attacks.parts.readout.linear_tail import FrozenFeatures, check_tail, freeze_features
from glasshouse.attacks.parts.readout.summed import sum_of_round
from glasshouse.attacks.parts.search.deep_image_prior import Search, by_generator
from glasshouse.attacks.parts.search.features import (
    Distance,
    InvertedImages,
    draw_starts,
    from_starts,
)
from glasshouse.limits import Count, Natural, Positive, check_ranges
from glasshouse.rng import Rng
from glasshouse.tensors import device_of
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Terms

Invert = Literal["pixels", "generator", "pixels+generator", "none"]
PIXEL_STEPS, GENERATOR_STEPS, REFINING_STEPS = 500, 600, 300
_PROBES = 16


@final
@dataclass(frozen=True, kw_only=True)
class Inversion:
    """How representations are inverted to images.

    Attributes:
        invert: ``pixels``; ``generator``: one per image, as published; ``pixels+generator``: a generator that
            starts from the result of ``pixels`` (ours); or ``none``.
        iterations: 0: 500 for pixels, 600 for a generator, 300 for a generator that starts from pixels.
        images: maximum number of inverted representations per update, the most confident first.
        distance: the loss.
        step: initial step size of the search over pixels.
    """

    invert: Invert = "pixels"
    iterations: Natural = 0
    images: Count = 64
    distance: Distance = field(default_factory=partial(Distance, bfloat16=True))
    step: Positive = 0.8

    def __post_init__(self) -> None:
        check_ranges(self, "inversion of representations")

    @property
    def phases(self) -> tuple[tuple[Invert, int], ...]:
        """The phases of the search, in order, and their steps per image, from which the cost follows."""
        phases: Mapping[Invert, tuple[tuple[Invert, int], ...]] = {
            "none": (),
            "pixels": (("pixels", self.iterations or PIXEL_STEPS),),
            "generator": (("generator", self.iterations or GENERATOR_STEPS),),
            "pixels+generator": (("pixels", PIXEL_STEPS), ("generator", self.iterations or REFINING_STEPS)),
        }
        return phases[self.invert]

    @property
    def budget(self) -> Budget:
        """Steps per image."""
        steps = sum(number for _, number in self.phases)
        return Budget(unit="steps", amount=steps, images=self.images if steps else 0, gradients=MATCHING)

    def each(
        self,
        model: FrozenFeatures,
        vectors: Sequence[Tensor],
        *,
        shape: tuple[int, ...],
        rngs: Sequence[Rng],
    ) -> list[InvertedImages]:
        """Images of the vectors (R, D) of several updates, a stream each; the pixel search batches them.

        No update is without vectors.
        """
        steps, inverted = dict(self.phases), list[InvertedImages]()
        if "pixels" in steps:
            sizes = [len(v) for v in vectors]
            together = from_starts(
                model,
                torch.cat(list(vectors)),
                torch.cat([draw_starts(n, shape, rng=rng) for n, rng in zip(sizes, rngs, strict=True)]),
                distance=self.distance,
                iterations=steps["pixels"],
                step=self.step,
            )
            columns = torch.split(together.images, sizes), torch.split(together.losses, sizes)
            inverted = [InvertedImages(images=x, losses=v) for x, v in zip(*columns, strict=True)]
        if "generator" not in steps:
            return inverted
        how = Search(iterations=steps["generator"])
        starts: Sequence[Tensor | None] = [one.images for one in inverted] or [None] * len(vectors)
        return [
            by_generator(model, v, shape, distance=self.distance, how=how, rng=rng, start=start)
            for v, start, rng in zip(vectors, starts, rngs, strict=True)
        ]


class HeadAttack(Protocol):
    """Base class of attacks that recover representations from a head's gradient and invert them."""

    name: ClassVar[str]
    readout: Readout
    inversion: Inversion

    @property
    def budget(self) -> Budget:
        return self.inversion.budget

    def check_model(self, architecture: Architecture) -> None:
        """Refuse a model whose head has not two linear layers."""
        check_tail(architecture, subject=f"attack '{self.name}'")

    def recover_claims(self, one: RoundView, *, terms: Terms, rng: Rng) -> tuple[Claim, ...]:
        """Claims about one round: for every client whose update is seen, or for the cohort's sum.

        Where nothing could be read, the claim is empty, which is scored.

        Raises:
            Inapplicable: the head has not two linear layers, or neither a sum nor updates are seen.
        """
        model, positive = self._features(one, terms)
        reads = {client: self._read(model, part, terms, positive) for client, part in _parts(one)}
        images: dict[int | None, InvertedImages] = {}
        shape, most = terms.architecture.input_shape, self.inversion.images
        # Vectors of all clients are inverted in one search; who had none has no image.
        if self.inversion.phases:
            empty = InvertedImages(images=torch.zeros(0, *shape), losses=torch.zeros(0))
            vectors = {c: read.vectors[:most].float() for c, read in reads.items() if len(read.vectors)}
            streams = [rng.child(f"round/{one.round}/client/{c}") for c in vectors]
            each = self.inversion.each
            every = each(model, list(vectors.values()), shape=shape, rngs=streams) if vectors else []
            images = dict.fromkeys(reads, empty) | dict(zip(vectors, every, strict=True))
        claims: list[Claim] = []
        for client, read in reads.items():
            about = About(rounds=(one.round,), client=client)
            claims.append(Representations(about=about, vectors=read.vectors.float()))
            if found := images.get(client):
                inputs, sure = (
                    found.images.clamp(*terms.architecture.inputs.range).float(),
                    -found.losses.cpu().double(),
                )
                claims.append(Reconstruction(about=about, inputs=inputs, labels=None, confidence=sure))
        return tuple(claims)

    def _features(self, one: RoundView, terms: Terms) -> tuple[FrozenFeatures, bool]:
        """The frozen features, and whether they are never negative (as behind a ReLU), on random images."""
        subject = f"attack '{self.name}'"
        model = freeze_features(terms.architecture, one.broadcast.tensors, subject=subject)
        generator = torch.Generator().manual_seed(0)
        probes = torch.rand((_PROBES, *terms.architecture.input_shape), generator=generator)
        return model, bool(model.of(probes.to(device_of(model.tensors))).min() >= 0)

    def _read(self, model: FrozenFeatures, part: RoundView, terms: Terms, positive: bool) -> Read:
        total = sum_of_round(part, terms=terms, names=model.names, subject=f"attack '{self.name}'")
        weight, bias = (total.gradient[name] for name in model.names)
        return read_columns(weight, bias, limit=total.examples, readout=self.readout, positive=positive)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """What the inversion minimises for a claim about a round: the mean over its images."""
        del rng  # nothing is drawn
        (one,) = (r for r in view.rounds if r.round in about.rounds)
        model, positive = self._features(one, view.terms)
        read = self._read(model, dict(_parts(one))[about.client], view.terms, positive)
        vectors = read.vectors[: self.inversion.images].float()
        distance = replace(self.inversion.distance, bfloat16=False)

        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            del labels
            with torch.no_grad():
                return torch.stack([distance(model, images, vectors).mean() for images in pixels])

        return SearchedLoss(loss=loss, noise=ROUNDING)


def _parts(one: RoundView) -> Iterator[tuple[int | None, RoundView]]:
    """Every client whose update is seen, or (None) the cohort, with the part of the round to read."""
    if one.aggregate is not None or not one.updates:
        yield None, one
    for client, update in one.updates.items():
        yield client, replace(one, updates={client: update})

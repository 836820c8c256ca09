"""What a modality is: the public description of an example, and everything that depends on its kind.

An instance of a modality describes the examples of one federation and is part of its terms: ``Image(size=(3,
32, 32))``. It is public; nothing in it is measured on private data. The rest of the product asks it and never
looks at the number of dimensions or the type of a tensor itself.

Shape letters: B examples, R candidates (claimed examples), N originals; the shape of one example follows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import all_finite

__all__ = ["RUNGS", "Display", "Modality", "Null", "Rung", "Wanted"]

Rung = Literal["nothing", "domain", "label", "twin"]
"""What a null adversary knows: nothing but the terms; the domain (auxiliary data, an attack's own prior);
the label of each victim besides; or everything but the example (others of its class and client)."""
RUNGS: Final[tuple[Rung, ...]] = ("nothing", "domain", "label", "twin")
"""The ladder from the bottom to the top."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """What a null adversary is asked to guess.

    Attributes:
        count: number of examples.
        labels: of the victims, (count, ...); None below the rung ``label``.
    """

    count: int
    labels: Tensor | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Null:
    """A null adversary: it guesses examples without seeing an update.

    Attributes:
        name: for the report, e.g. "mean auxiliary picture".
        knows: its rung on the ladder.
        guess: (auxiliary data, what is wanted, random stream) → as many examples as wanted.
        steady: the guess does not depend on the random stream.
    """

    name: str
    knows: Rung
    guess: Callable[[Batch, Wanted, Rng], Batch]
    steady: bool = False


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Display:
    """One example as a report shows it; exactly one of the two is set.

    Attributes:
        pixels: (H, W, C) in [0, 1], to be drawn as a picture, on the CPU.
        text: to be written.
    """

    pixels: Tensor | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Modality(ABC):
    """Base class: subclasses are frozen dataclasses whose fields describe an example and are public.

    Class attributes:
        card: one line on what it is.
        name: as registered among ``glasshouse.modalities``.
        noun: of one example, for every sentence of the report: "picture".
        nouns: its plural.
        metrics: names of the metrics that a scenario without ``audit.metrics`` gets.
        continuous: a search may move inputs by their gradient; others search in an embedding or not at all.
        boxed: a search may stand anywhere in ``range``; others are moved by :meth:`relax`.
        same: largest :meth:`distance` between two copies of one example.
        near: largest distance between near-duplicates: too alike to say whose a claim is.
        recurs: equal examples may be of several people, as rows of a table; equal pictures are one picture.
    """

    card: ClassVar[Card]
    name: ClassVar[str]
    noun: ClassVar[str]
    nouns: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    continuous: ClassVar[bool] = True
    boxed: ClassVar[bool] = True
    same: ClassVar[float] = 0.0
    near: ClassVar[float] = 0.0
    recurs: ClassVar[bool] = False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: (C, H, W), (L,), (F,), ..."""

    @property
    def size_words(self) -> str:
        """The size of one example, in words: "28×28", "32 tokens"."""
        return "×".join(map(str, self.shape))

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of inputs."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """Smallest and largest number in a valid example, as it enters the network."""

    @abstractmethod
    def violation(self, inputs: Tensor) -> tuple[str, str] | None:
        """What valid inputs (B, ...) need and what these are instead, in words; None: they are valid.

        Shape, type and finite numbers are checked by :meth:`check`; this is about their range.
        """

    def check(self, inputs: Tensor, *, subject: str, fix: str = "correct the examples") -> None:
        """Raise unless ``inputs`` (B, ...) are examples of this description.

        Raises:
            BadValue: another shape or type, a number that is not finite, or a value out of range.
        """
        wanted = f"{self.nouns} (B, {', '.join(map(str, self.shape))})"
        if inputs.ndim != len(self.shape) + 1 or tuple(inputs.shape[1:]) != self.shape:
            raise BadValue(subject, needs=wanted, got=f"shape {tuple(inputs.shape)}", fix=fix)
        if inputs.is_floating_point() != self.dtype.is_floating_point:
            raise BadValue(subject, needs=f"{wanted} as {self.dtype}", got=f"{inputs.dtype}", fix=fix)
        if not all_finite(inputs):
            bad = int((~torch.isfinite(inputs)).sum())
            raise BadValue(
                subject, needs=f"{wanted} of finite numbers", got=f"{bad} values not finite", fix=fix
            )
        if (wrong := self.violation(inputs)) is not None:
            raise BadValue(subject, needs=wrong[0], got=wrong[1], fix=fix)

    @abstractmethod
    def project(self, inputs: Tensor) -> Tensor:
        """The valid examples nearest to ``inputs`` (B, ...): clipped, rounded, or mapped to a simplex."""

    def relax(self, inputs: Tensor) -> Tensor:
        """The nearest points to ``inputs`` (B, ...) at which a search may stand, e.g. on a simplex."""
        return self.project(inputs)

    def received(self, inputs: Tensor) -> Tensor:
        """Examples as they entered a network, (B, ...), as this description has them, free of rounding."""
        return inputs.to(self.dtype)

    def roughness(self, inputs: Tensor) -> Tensor:
        """How far inputs (B, ...) are from smooth, (B,), differentiable: a prior; 0: there is none."""
        return inputs.new_zeros(len(inputs))

    @abstractmethod
    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """How far every candidate (R, ...) is from every original (N, ...): (R, N) float64, 0 for equal ones.

        Symmetric, finite and never negative; pairing, exchange, ranks and duplicates rest on it.
        """

    def likenesses(self, candidates: Tensor, originals: Tensor) -> Mapping[str, Tensor]:
        """Other forms in which a claim may hold an example, in words → how like they are, (R, N).

        Larger is more like. Nothing is scored by them: where claims are most like their own victims in such
        a form, the absence of a leak by the metric is not called "no leak found". Default: none.
        """
        del candidates, originals
        return {}

    def apart(self, examples: Tensor) -> Iterator[Tensor]:
        """How far examples (B, ...) are from one another, (B, B): as a whole, then in parts known alone.

        Whether claims change with their victims is asked of each. Default: as a whole.
        """
        yield self.distance(examples, examples)

    @abstractmethod
    def nulls(self) -> Sequence[Null]:
        """The null adversaries, from the lowest rung up: at least one each of the first three rungs."""

    def blank(self, count: int) -> Tensor:
        """``count`` examples that carry no information, (count, ...): to measure shapes with."""
        return torch.zeros(count, *self.shape, dtype=self.dtype)

    def probes(self, count: int, draws: torch.Generator) -> Tensor:
        """About ``count`` random examples without information, (count, ...), to learn a network's answers."""
        low, high = self.range
        return self.project(torch.rand(count, *self.shape, generator=draws) * (high - low) + low)

    @abstractmethod
    def display(self, example: Tensor) -> Display:
        """How one example, (...), is shown in clear; the report hides private ones unless asked."""

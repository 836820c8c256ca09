"""What a task is: the loss that clients minimise, what targets look like, and what guessing them reaches.

An instance is public and part of the terms: ``Classification(classes=10)``. Its fields hold the settings of
the loss (class weights, smoothing, ...), so that an attack that repeats the training repeats this loss.

Shape letters: B examples, K classes or labels, T targets; the rest of a shape follows the modality.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.registry import Card
from glasshouse.rng import Rng

__all__ = ["LabelSignal", "Reduction", "Task", "Unknown"]

Unknown = Literal["inferred", "searched", "told", "unused"]
"""How an attack that matches gradients treats targets that it is not given: read off the update first,
searched together with the inputs, or it must be told (without the grant ``labels`` it is refused); unused:
no loss reads them, since the input is the target, and blank ones do."""

Reduction = Literal["mean", "sum"]


@final
@dataclass(frozen=True, kw_only=True)
class LabelSignal:
    """How the gradient of the outputs shows one class per example: ``unit · (p − y)``, weighted and smoothed.

    Attributes:
        unit: factor of the difference between probability and one-hot label.
        weights: of each class, whose sum over the batch divides the gradient; empty: all 1.
        smoothing: share of a label that is spread over all classes.
    """

    unit: float = 1.0
    weights: tuple[float, ...] = ()
    smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Base class: subclasses are frozen dataclasses whose fields are public settings of the loss.

    Class attributes:
        card: one line on what it is.
        name: as registered among ``glasshouse.tasks``.
        utility: what is measured on held-out data: "accuracy", "R2", ...
        unknown: how a matching attack treats unknown targets.
        one_label: every example has exactly one of K classes, so that label read-outs apply and distractors
            of the same class exist.
        shares: scores are shares, in [0, 1].
    """

    card: ClassVar[Card]
    name: ClassVar[str]
    utility: ClassVar[str]
    unknown: ClassVar[Unknown] = "told"
    one_label: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    @property
    def separable(self) -> bool:
        """Whether the loss of an example does not depend on which others are in its batch."""
        return True

    @property
    def signal(self) -> LabelSignal | None:
        """How label read-outs find classes in a gradient; for tasks with ``one_label``.

        None: in no such form; they then differentiate the loss for each class.
        """
        return LabelSignal()

    @property
    def instead(self) -> str:
        """What a user can do instead of granting targets that nothing infers, in words; empty: nothing."""
        return ""

    @property
    def code(self) -> str:
        """``module:function`` of the user's that the loss runs; empty: none."""
        return ""

    def chances(self, outputs: Tensor) -> Tensor:
        """Probabilities (B, K) that the loss compares with one-hot labels; for tasks with ``one_label``."""
        return outputs.softmax(1)

    @property
    @abstractmethod
    def outputs(self) -> tuple[int, ...]:
        """The shape of the network's output for one example; -1 where the input decides it."""

    @property
    @abstractmethod
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one target; () for one class per example, -1 where the input decides it."""

    def blank(self, count: int, outputs: tuple[int, ...]) -> Tensor:
        """Some valid targets for a network whose output for one example has the shape ``outputs``."""
        del outputs
        return torch.zeros(count, *self.target_shape, dtype=torch.int64)

    @abstractmethod
    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """What valid targets (B, ...) need and what these are instead, in words; None: they are valid."""

    def check(self, labels: Tensor, *, subject: str, fix: str = "correct the labels") -> None:
        """Raise unless ``labels`` (B, ...) are targets of this task.

        Raises:
            BadValue: another shape or type, or values out of range.
        """
        if (wrong := self.violation(labels)) is not None:
            raise BadValue(subject, needs=wrong[0], got=wrong[1], fix=fix)

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """The loss of each example, (B,), whose mean training minimises.

        Args:
            outputs: of the network, (B, *outputs).
            labels: targets, (B, ...).
            inputs: of the network, (B, ...); tasks without labels of their own (next token) predict these.
        """

    def loss(
        self, outputs: Tensor, labels: Tensor, inputs: Tensor, *, reduction: Reduction = "mean"
    ) -> Tensor:
        """The mean (or sum) of :meth:`losses`, a number: what training minimises."""
        losses = self.losses(outputs, labels, inputs)
        return losses.mean() if reduction == "mean" else losses.sum()

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a network whose output for one example has this ``shape`` fits the task."""
        asked = self.outputs
        return len(shape) == len(asked) and all(a in (-1, s) for s, a in zip(shape, asked, strict=True))

    @abstractmethod
    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """How well each example is solved, (B,) float64, in the unit of ``utility``; higher is better."""

    @abstractmethod
    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """The utility of the best answer that is the same for all examples: what a useless model reaches."""

    @abstractmethod
    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """``count`` targets guessed from public ones, (count, ...)."""

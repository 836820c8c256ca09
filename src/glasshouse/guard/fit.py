"""How well a received model fits a client's own examples, compared with the last accepted model."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor, nn

from glasshouse.guard.pursuit.states import EVALUATION, in_mode
from glasshouse.interfaces import task_of

__all__ = ["Fit"]


@final
@dataclass(frozen=True, kw_only=True)
class Fit:
    """Accuracy and loss of a model on some examples.

    Not a finding: models get worse by chance, through other clients' data, and through defences. A model that
    is suddenly at chance, or predicts one class, is worth a question to the server.

    Attributes:
        loss: mean of its task's losses of the examples, of classes cross-entropy in nats; >= 0.
        examples: number of examples.
        accuracy: share of the examples that it classifies correctly, in [0, 1]; None: it has no classes.
    """

    loss: float
    examples: int
    accuracy: float | None = None

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, labels: Tensor) -> Self:
        """Evaluate ``model`` in evaluation mode on inputs (B, ...) with their targets, without modifying it.

        Examples:
            >>> Fit.of(nn.Flatten(), torch.tensor([[0.0, 9.0], [9.0, 0.0]]), torch.tensor([1, 1])).accuracy
            0.5
        """
        task = task_of(model)
        with torch.no_grad():
            outputs = in_mode(model, EVALUATION, inputs)(inputs)
            loss = float(task.losses(outputs, labels, inputs).mean())
        right = float((outputs.argmax(1) == labels).double().mean()) if task.one_label else None
        return cls(loss=loss, examples=len(labels), accuracy=right)

    def sentence(self, last: Self | None = None) -> str:
        """In words; ``last``: the fit of the last accepted model."""
        before = "" if last is None else f"; the last accepted one: {last._numbers()}"
        right = "" if self.accuracy is None else f"right on {self.accuracy:.0%} of your "
        return f"{right}{self.examples} examples, loss {self.loss:.2f}{before}"

    def _numbers(self) -> str:
        return f"{self.loss:.2f}" if self.accuracy is None else f"{self.accuracy:.0%}, {self.loss:.2f}"

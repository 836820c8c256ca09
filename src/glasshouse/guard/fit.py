"""How well a received model fits a client's own examples, compared with the last accepted model."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.guard.pursuit.inspect import EVALUATION, in_mode

__all__ = ["Fit"]


@final
@dataclass(frozen=True, kw_only=True)
class Fit:
    """Accuracy and loss of a model on some examples.

    Not a finding: models get worse by chance, through other clients' data, and through defences. A model that
    is suddenly at chance, or predicts one class, is worth a question to the server.

    Attributes:
        accuracy: share of the examples that it classifies correctly, in [0, 1].
        loss: mean cross-entropy of the examples, in nats, >= 0.
        examples: number of examples.
    """

    accuracy: float
    loss: float
    examples: int

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, labels: Tensor) -> Self:
        """Evaluate ``model`` in evaluation mode on inputs (B, ...) with classes (B,), without modifying it.

        Examples:
            >>> Fit.of(nn.Flatten(), torch.tensor([[0.0, 9.0], [9.0, 0.0]]), torch.tensor([1, 1])).accuracy
            0.5
        """
        with torch.no_grad():
            logits = in_mode(model, EVALUATION)(inputs)
        return cls(
            accuracy=float((logits.argmax(1) == labels).double().mean()),
            loss=float(F.cross_entropy(logits, labels)),
            examples=len(labels),
        )

    def sentence(self, last: Self | None = None) -> str:
        """In words; ``last``: the fit of the last accepted model."""
        before = f"; the last accepted one: {last.accuracy:.0%}, {last.loss:.2f}" if last is not None else ""
        return f"right on {self.accuracy:.0%} of your {self.examples} examples, loss {self.loss:.2f}{before}"

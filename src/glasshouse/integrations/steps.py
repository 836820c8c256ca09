"""The batches that a client trains on, as its training is observed."""

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from glasshouse.wire import Batch


@final
@dataclass(kw_only=True)
class Steps:
    """The batches of one round.

    Attributes:
        seen: observed by hooks.
        said: reported by :func:`~glasshouse.integrations.watching.used`; if there are any, only these count.
        pending: inputs of the network whose labels are not known yet.
        pixels: the network normalises its images itself.
    """

    seen: list[Batch] = field(default_factory=list)
    said: list[Batch] = field(default_factory=list)
    pending: Tensor | None = None
    pixels: bool = False

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches to record, in order."""
        return tuple(self.said or self.seen)

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], *, depth: int) -> None:
        """Store the inputs of the outermost trained module."""
        trained = module.training and torch.is_grad_enabled() and any(True for _ in module.parameters())
        if depth == 0 and trained and inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
            self.pending = inputs[0]
            self.pixels = "normalize" in dict(module.named_children())

    def loss(self, labels: Tensor) -> None:
        """Record the network's last inputs with the labels of the loss."""
        if self.pending is not None:
            self.seen.append(_batch(self.pending, labels))
            self.pending = None

    def told(self, inputs: Tensor, labels: Tensor) -> None:
        """Record a batch that the training loop reports."""
        self.said.append(_batch(inputs, labels))


def _batch(inputs: Tensor, labels: Tensor) -> Batch:
    return Batch(inputs=inputs.detach().cpu().float().clone(), labels=labels.detach().cpu().long().clone())

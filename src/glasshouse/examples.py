"""A batch of examples of any modality: inputs, labels, and who they belong to.

Shape letters: B examples in a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.errors import BadValue

__all__ = ["Batch", "join"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """A batch of examples. What inputs look like is known to the modality, what labels look like to the task.

    Attributes:
        inputs: one example per row, (B, ...); pictures (B, C, H, W), sentences (B, L), rows (B, F), ...
        labels: one target per row, (B, ...); classes (B,), labels (B, K), numbers (B, T), masks (B, H, W). Of
            sentences their class, also where the next token is predicted.
        groups: the person behind each example, (B,) int64; None: unknown.
    """

    inputs: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.inputs.ndim < 1 or self.labels.shape[:1] != self.inputs.shape[:1]:
            raise BadValue(
                "a batch",
                needs="inputs (B, ...) and labels (B, ...): one label per example",
                got=f"inputs {tuple(self.inputs.shape)} and labels {tuple(self.labels.shape)}",
                fix="give one label per example",
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def pick(self, index: Tensor) -> "Batch":
        """The examples at ``index``, in that order."""
        groups = None if self.groups is None else self.groups[index]
        return Batch(inputs=self.inputs[index], labels=self.labels[index], groups=groups)


def join(parts: Sequence[Batch]) -> Batch:
    """All examples of ``parts`` in one batch, in order, without their groups.

    Examples:
        >>> one = Batch(inputs=torch.zeros(2, 3), labels=torch.tensor([0, 1]))
        >>> len(join([one, one]))
        4
    """
    return Batch(
        inputs=torch.cat([part.inputs for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
    )

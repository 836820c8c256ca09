"""What tasks share whose examples have one or several targets of their own: their shapes.

Shape letters: B examples, T targets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from glasshouse.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class SeveralTargets(Task):
    """Tasks with one output per target.

    Args:
        targets: T; 1: targets are (B,) or (B, 1).
    """

    targets: int = 1

    @property
    def outputs(self) -> tuple[int, ...]:
        """(T,)."""
        return (self.targets,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """(T,), or () for one target per example."""
        return () if self.targets == 1 else (self.targets,)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Also (B,), for one target."""
        return super().accepts(shape) or (self.targets == 1 and shape == ())

    def blank(self, count: int, outputs: tuple[int, ...]) -> Tensor:
        """Zeros: no label holds."""
        del outputs
        return torch.zeros(count, *self.target_shape)

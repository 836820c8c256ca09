"""One of K classes per position of an example, by cross-entropy.

Shape letters: B examples, K classes; the positions (H, W) of a picture, or of another array, follow.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task

IGNORED: Final = -1
"""A position without a class; it has no loss."""


@final
@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Cross-entropy over K logits at every position; the loss of an example is the mean over its positions.

    Args:
        classes: K, the background (0) included.
        positions: their shape; -1 where the example decides it.

    Examples:
        >>> task = Segmentation(classes=2)
        >>> masks = torch.zeros(1, 4, 4).long()
        >>> round(float(task.losses(torch.zeros(1, 2, 4, 4), masks, torch.zeros(1, 1, 4, 4))), 3)
        0.693
    """

    card: ClassVar[Card] = Card(summary="one of K classes per position, by cross-entropy")
    name: ClassVar[str] = "segmentation"
    utility: ClassVar[str] = "Dice"

    classes: int = 2
    positions: tuple[int, ...] = (-1, -1)

    def __post_init__(self) -> None:
        if self.classes < 2 or not self.positions or any(size == 0 or size < -1 for size in self.positions):
            raise BadValue(
                "task 'segmentation'",
                needs="classes >= 2, positions like (28, 28), or -1 where the example decides",
                got=f"classes = {self.classes}, positions = {self.positions}",
                fix="correct the task: the background is a class",
            )

    @property
    def outputs(self) -> tuple[int, ...]:
        """(K, *positions)."""
        return (self.classes, *self.positions)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """A mask of class numbers."""
        return self.positions

    def blank(self, count: int, outputs: tuple[int, ...]) -> Tensor:
        """Background."""
        return torch.zeros(count, *outputs[1:], dtype=torch.int64)

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """A class number at every position; -1 where there is none."""
        needs = f"masks (B, {', '.join(map(str, self.positions))}) of whole numbers up to {self.classes - 1}"
        if labels.ndim != len(self.positions) + 1 or labels.is_floating_point():
            return needs, f"shape {tuple(labels.shape)} of {labels.dtype}"
        if labels.numel() and (int(labels.min()) < IGNORED or int(labels.max()) >= self.classes):
            return needs, f"{int(labels.min())} to {int(labels.max())}"
        return None

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Mean cross-entropy of the positions of each example that have a class, (B,)."""
        del inputs
        each = F.cross_entropy(outputs, labels, ignore_index=IGNORED, reduction="none").flatten(1)
        known = (labels != IGNORED).flatten(1).to(each.dtype)
        return each.sum(1) / known.sum(1).clamp_min(1)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Dice of each example, (B,): the mean over the classes but the background that occur in either mask.

        1 where neither holds any of them.
        """
        del inputs
        return dice(outputs.argmax(1), labels, self.classes)

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """The best Dice of one class everywhere."""
        del inputs
        everywhere = (torch.full_like(labels, k) for k in range(self.classes))
        return max(float(dice(mask, labels, self.classes).mean()) for mask in everywhere)

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """Masks drawn from the public ones."""
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]


def dice(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Dice of masks (B, ...) and labels (B, ...), mean over the classes from 1 that occur in either, (B,).

    Examples:
        >>> dice(torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0, 0]]), 2).tolist()
        [0.6666666666666666]
    """
    known = (labels != IGNORED).flatten(1)
    shares = []
    for k in range(1, classes):
        left, right = (masks.flatten(1) == k) & known, (labels.flatten(1) == k) & known
        both = 2 * (left & right).double().sum(1)
        # Neither holds the class: it counts in no mean.
        shares.append(both / (left.double().sum(1) + right.double().sum(1)))
    each = torch.stack(shares, 1)
    occurs = ~each.isnan()
    mean = each.nan_to_num().sum(1) / occurs.sum(1).clamp_min(1)
    return torch.where(occurs.any(1), mean, torch.ones_like(mean))

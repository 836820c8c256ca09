"""Several yes-or-no labels per example, by binary cross-entropy; one label alone is one logit.

Shape letters: B examples, K labels.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tasks.several import SeveralTargets


@final
@dataclass(frozen=True, kw_only=True)
class Multilabel(SeveralTargets):
    """Binary cross-entropy over K logits; the loss of an example is the mean over its labels.

    Args:
        targets: K; 1: one logit decides between two classes.
        weights: of the positive examples of each label, as ``pos_weight`` of ``torch.nn.BCEWithLogitsLoss``;
            empty: 1.

    Examples:
        >>> task = Multilabel(targets=2)
        >>> round(float(task.losses(torch.zeros(1, 2), torch.tensor([[1, 0]]), torch.zeros(1, 4))), 3)
        0.693
    """

    card: ClassVar[Card] = Card(summary="several yes-or-no labels per example, by binary cross-entropy")
    name: ClassVar[str] = "multilabel"
    utility: ClassVar[str] = "label accuracy"

    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        weighted = len(self.weights) in (0, self.targets) and all(0 < w < float("inf") for w in self.weights)
        if self.targets < 1 or not weighted:
            raise BadValue(
                "task 'multilabel'",
                needs="targets >= 1, and no weights or one finite weight > 0 per label",
                got=f"targets = {self.targets}, {len(self.weights)} weights",
                fix="correct the task",
            )

    @property
    def instead(self) -> str:
        """One logit for two classes is trained as two of which one is 0, and label read-outs know two."""
        both = "glasshouse.adapt(net, logits=lambda z: torch.cat([torch.zeros_like(z), z], 1))"
        return f"hand the network over as a classifier of 2 classes: {both}" if self.targets == 1 else ""

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """K labels per example, each 0 or 1."""
        if labels[:1].numel() in (0, self.targets) and bool(((labels == 0) | (labels == 1)).all()):
            return None
        low, high = (float(labels.min()), float(labels.max())) if labels.numel() else (0.0, 0.0)
        return f"{self.targets} labels per example, 0 or 1", f"shape {tuple(labels.shape)}, {low} to {high}"

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Mean binary cross-entropy of the labels of each example, (B,)."""
        del inputs
        logits = outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]
        weight = logits.new_tensor(self.weights) if self.weights else None
        wanted = labels.reshape(len(labels), -1).to(logits.dtype)
        each = F.binary_cross_entropy_with_logits(logits, wanted, pos_weight=weight, reduction="none")
        return each.mean(1)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Share of the labels of each example that the sign of the logit says right, (B,)."""
        del inputs
        says = outputs.reshape(len(labels), -1) > 0
        return (says == labels.reshape(len(labels), -1).bool()).double().mean(1)

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """The share right of always answering what is more common, label by label."""
        del inputs
        share = labels.reshape(len(labels), -1).double().mean(0)
        return float(torch.maximum(share, 1 - share).mean())

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """Labels drawn from the public ones, whole sets at a time."""
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]

"""One of K classes per example, by cross-entropy.

Shape letters: B examples, K classes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.outside import limits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tasks.base import LabelSignal, Reduction, Task, Unknown


@final
@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Cross-entropy over K logits.

    Args:
        classes: K.
        weights: one per class, as of ``torch.nn.CrossEntropyLoss``; empty: all 1.
        smoothing: label smoothing, in [0, 1).
        criterion: ``cross_entropy``; ``binary``: binary cross-entropy of every logit against the one-hot
            label, mean over the classes; ``focal``: cross-entropy times (1 − p)^gamma (Lin et al. 2017,
            arXiv:1708.02002). The last two take neither weights nor smoothing.
        gamma: of ``focal``, >= 0.

    Examples:
        >>> task = Classification(classes=3)
        >>> round(float(task.losses(torch.zeros(1, 3), torch.tensor([2]), torch.zeros(1, 4))), 3)
        1.099
    """

    card: ClassVar[Card] = Card(summary="one of K classes per example, by cross-entropy")
    name: ClassVar[str] = "classification"
    utility: ClassVar[str] = "accuracy"
    unknown: ClassVar[Unknown] = "inferred"
    one_label: ClassVar[bool] = True

    classes: int
    weights: tuple[float, ...] = ()
    smoothing: float = 0.0
    criterion: Literal["cross_entropy", "binary", "focal"] = "cross_entropy"
    gamma: float = 2.0

    def __post_init__(self) -> None:
        weighted = len(self.weights) in (0, self.classes) and all(0 <= w < float("inf") for w in self.weights)
        if not 2 <= self.classes <= limits.CLASSES or not weighted or not 0 <= self.smoothing < 1:
            raise BadValue(
                "task 'classification'",
                needs=f"2 to {limits.CLASSES:,} classes, a finite weight >= 0 for each, smoothing in [0, 1)",
                got=f"classes = {self.classes}, {len(self.weights)} weights, smoothing = {self.smoothing}",
                fix="correct the task: one logit per class; one logit alone is task 'multilabel'",
            )

        plain = not self.weights and not self.smoothing
        if self.gamma < 0 or (self.criterion != "cross_entropy" and not plain):
            raise BadValue(
                "task 'classification'",
                needs="gamma >= 0; weights and smoothing only with criterion cross_entropy",
                got=f"criterion = {self.criterion}, gamma = {self.gamma}, {len(self.weights)} weights, "
                f"smoothing = {self.smoothing}",
                fix="leave weights and smoothing out, or take cross_entropy",
            )

    @property
    def signal(self) -> LabelSignal:
        """Cross-entropy as it is weighted and smoothed; binary cross-entropy in units of 1/K."""
        unit = 1 / self.classes if self.criterion == "binary" else 1.0
        return LabelSignal(unit=unit, weights=self.weights, smoothing=self.smoothing)

    def chances(self, outputs: Tensor) -> Tensor:
        """Softmax of the logits, or the sigmoid of each."""
        return outputs.sigmoid() if self.criterion == "binary" else outputs.softmax(1)

    @property
    def outputs(self) -> tuple[int, ...]:
        """(K,)."""
        return (self.classes,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """One class per example."""
        return ()

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """Labels from 0 to K - 1; -1 where an example is unlabelled."""
        needs = f"labels (B,) from 0 to {self.classes - 1}, whole numbers"
        if labels.ndim != 1 or labels.is_floating_point():
            return needs, f"shape {tuple(labels.shape)} of {labels.dtype}"
        if len(labels) and (int(labels.min()) < -1 or int(labels.max()) >= self.classes):
            return needs, f"{int(labels.min())} to {int(labels.max())}"
        return None

    @property
    def separable(self) -> bool:
        """Not with class weights: torch divides by the sum of the weights of the batch."""
        return not self.weights

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Cross-entropy, (B,), scaled so that its mean is the loss of ``torch.nn.CrossEntropyLoss``.

        ``labels`` may be class probabilities (B, K), as of an attack that searches them.
        """
        del inputs
        if self.criterion != "cross_entropy":
            return self._other(outputs, labels)
        weight = outputs.new_tensor(self.weights) if self.weights else None
        losses = F.cross_entropy(
            outputs, labels, weight=weight, label_smoothing=self.smoothing, reduction="none"
        )
        if weight is None or labels.is_floating_point():
            return losses
        # torch divides the weighted sum by the sum of the weights of the batch, not by its size.
        return losses * len(labels) / weight[labels].sum()

    def loss(
        self, outputs: Tensor, labels: Tensor, inputs: Tensor, *, reduction: Reduction = "mean"
    ) -> Tensor:
        """As ``torch.nn.CrossEntropyLoss``, in one operation."""
        del inputs
        if self.criterion != "cross_entropy":
            losses = self._other(outputs, labels)
            return losses.mean() if reduction == "mean" else losses.sum()
        weight = outputs.new_tensor(self.weights) if self.weights else None
        return F.cross_entropy(
            outputs, labels, weight=weight, label_smoothing=self.smoothing, reduction=reduction
        )

    def _other(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Binary cross-entropy or focal loss, (B,)."""
        wanted = labels if labels.is_floating_point() else F.one_hot(labels, self.classes)
        wanted = wanted.to(outputs.dtype)
        if self.criterion == "binary":
            return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").mean(1)
        logs = outputs.log_softmax(1)
        return -(wanted * (1 - logs.exp()) ** self.gamma * logs).sum(1)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """1 where the class of the largest logit is right, else 0."""
        del inputs
        return (outputs.argmax(1) == labels).double()

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """Share of the most common class."""
        del inputs
        return float(labels.bincount().max() / len(labels))

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """Labels drawn from the public ones."""
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]

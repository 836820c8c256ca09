"""One of K classes per example, by cross-entropy.

Shape letters: B examples, K classes.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.outside import limits
from glasshouse.registry import Card, import_factory
from glasshouse.rng import Rng
from glasshouse.tasks.base import LabelSignal, Reduction, Task, Unknown
from glasshouse.tasks.criteria import CRITERIA, Criterion

NAMES: Final = ("cross_entropy", *CRITERIA)
"""Losses by name; whatever else stands in ``Classification.criterion`` is a function of the user's."""
CODE: Final = ":"
"""Stands in the name of a function of the user's."""


@final
@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Cross-entropy over K logits.

    Args:
        classes: K.
        weights: one per class, as of ``torch.nn.CrossEntropyLoss``; empty: all 1.
        smoothing: label smoothing, in [0, 1).
        ignored: classes whose examples add nothing, as ``ignore_index``: their weight is 0.
        criterion: ``cross_entropy``; ``binary``: binary cross-entropy of every logit against the one-hot
            label, mean over the classes; ``squared``: likewise the squared difference of logit and one-hot
            label, as ``torch.nn.MSELoss``; ``focal``: cross-entropy times (1 − p)^gamma (Lin et al. 2017,
            arXiv:1708.02002); ``huber``: as ``torch.nn.HuberLoss`` and ``SmoothL1Loss`` of logit and one-hot
            label; ``margin``: as ``torch.nn.MultiMarginLoss``; ``divergence``: as ``torch.nn.KLDivLoss`` with
            its default mean over batch and classes; or a loss of your own, ``module:function``, which is
            called with outputs (B, K) and one-hot labels (B, K) and returns the loss of each example, (B,).
            All but the first take neither weights nor smoothing nor ignored classes.
        gamma: of ``focal``, >= 0.
        positive: of ``binary``, ``pos_weight`` of every class, > 0.

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
    criterion: str = "cross_entropy"
    gamma: float = 2.0
    ignored: tuple[int, ...] = ()
    positive: float = 1.0

    def __post_init__(self) -> None:
        weighted = len(self.weights) in (0, self.classes) and all(0 <= w < float("inf") for w in self.weights)
        if not 2 <= self.classes <= limits.CLASSES or not weighted or not 0 <= self.smoothing < 1:
            raise BadValue(
                "task 'classification'",
                needs=f"2 to {limits.CLASSES:,} classes, a finite weight >= 0 for each, smoothing in [0, 1)",
                got=f"classes = {self.classes}, {len(self.weights)} weights, smoothing = {self.smoothing}",
                fix="correct the task: one logit per class; one logit alone is task 'multilabel'",
            )

        weighs = bool(self.weights or self.smoothing or self.ignored)
        known = self.criterion in NAMES or CODE in self.criterion
        fits = all(0 <= c < self.classes for c in self.ignored) and len(set(self.ignored)) < self.classes
        signed = 0 < self.positive < float("inf") and (self.positive == 1 or self.criterion == "binary")
        plain = self.criterion == "cross_entropy" or not weighs
        if self.gamma < 0 or not (known and fits and signed and plain):
            raise BadValue(
                "task 'classification'",
                needs=f"criterion {', '.join(NAMES)} or module:function; gamma >= 0; positive > 0, only with "
                "binary; weights, smoothing and ignored classes, not all of them, only with cross_entropy",
                got=f"criterion = {self.criterion}, gamma = {self.gamma}, positive = {self.positive}, "
                f"{len(self.weights)} weights, smoothing = {self.smoothing}, ignored = {self.ignored}",
                fix="leave weights, smoothing and ignored out, or take cross_entropy",
            )

    @property
    def factors(self) -> tuple[float, ...]:
        """The weight of each class, 0 where it is ignored; empty: all 1."""
        if not self.ignored:
            return self.weights
        weights = self.weights or (1.0,) * self.classes
        return tuple(0.0 if c in self.ignored else w for c, w in enumerate(weights))

    @property
    def signal(self) -> LabelSignal | None:
        """Cross-entropy as it is weighted and smoothed; means over the K classes are in units of 1/K."""
        row = self._row
        if row is None:
            return None if self.code else LabelSignal(weights=self.factors, smoothing=self.smoothing)
        if row.unit is None or self.positive != 1:
            return None
        return LabelSignal(unit=row.unit / self.classes if row.mean else row.unit)

    def chances(self, outputs: Tensor) -> Tensor:
        """Softmax of the logits, the sigmoid of each (``binary``), or the logits themselves (``squared``)."""
        return outputs.softmax(1) if self._row is None else self._row.chances(outputs)

    @property
    def _row(self) -> Criterion | None:
        """The loss, where it is one of ours that is not cross-entropy."""
        return CRITERIA.get(self.criterion)

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
        return not self.factors

    @property
    def code(self) -> str:
        """The loss of one's own, whose code runs; empty: the criterion is one of ours."""
        return self.criterion if CODE in self.criterion else ""

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Cross-entropy, (B,), scaled so that its mean is the loss of ``torch.nn.CrossEntropyLoss``.

        ``labels`` may be class probabilities (B, K), as of an attack that searches them.
        """
        del inputs
        if self.criterion != "cross_entropy":
            return self._other(outputs, labels)
        weight = outputs.new_tensor(self.factors) if self.factors else None
        losses = F.cross_entropy(
            outputs, labels, weight=weight, label_smoothing=self.smoothing, reduction="none"
        )
        if weight is None:
            return losses
        # torch divides the weighted sum by the sum of the weights of the batch, not by its size.
        return losses * len(labels) / _weighed(labels, weight)

    def loss(
        self, outputs: Tensor, labels: Tensor, inputs: Tensor, *, reduction: Reduction = "mean"
    ) -> Tensor:
        """As ``torch.nn.CrossEntropyLoss``, in one operation."""
        del inputs
        if self.criterion != "cross_entropy":
            losses = self._other(outputs, labels)
            return losses.mean() if reduction == "mean" else losses.sum()
        weight = outputs.new_tensor(self.factors) if self.factors else None
        if weight is not None and reduction == "mean" and labels.is_floating_point():
            # torch divides probabilities by the size of the batch; here as the labels that they stand for
            return self.losses(outputs, labels, outputs).mean()
        return F.cross_entropy(
            outputs, labels, weight=weight, label_smoothing=self.smoothing, reduction=reduction
        )

    def _other(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss by its row, or the user's own, (B,)."""
        wanted = labels if labels.is_floating_point() else F.one_hot(labels, self.classes)
        wanted = wanted.to(outputs.dtype)
        if self._row is None:
            return _own_losses(self.code, outputs, wanted)
        return self._row.losses(outputs, wanted, {"gamma": self.gamma, "positive": self.positive})

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


def _weighed(labels: Tensor, weight: Tensor) -> Tensor:
    """The sum of the weights of a batch of labels (B,), or of probabilities (B, K)."""
    return (labels.to(weight.dtype) @ weight if labels.is_floating_point() else weight[labels]).sum()


def _own_losses(name: str, outputs: Tensor, wanted: Tensor) -> Tensor:
    """What the function ``name`` returns, checked.

    Raises:
        BadFile: it cannot be imported.
        BadValue: it returned something else than one number per example.
    """
    losses = import_factory(name, f"loss '{name}'")(outputs, wanted)
    if isinstance(losses, Tensor) and losses.shape == outputs.shape[:1]:
        return losses
    got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    raise BadValue(
        f"loss '{name}'",
        needs=f"the loss of each example, ({len(outputs)},)",
        got=str(got),
        fix="reduce over the classes and not over the batch (reduction='none')",
    )

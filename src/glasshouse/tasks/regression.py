"""Numbers per example, by squared, absolute or Huber loss.

Shape letters: B examples, T targets.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tasks.several import SeveralTargets


@final
@dataclass(frozen=True, kw_only=True)
class Regression(SeveralTargets):
    """Predict T numbers per example; the loss of an example is the mean over its targets.

    Args:
        targets: T.
        loss_name: ``squared`` (as ``torch.nn.MSELoss``), ``absolute`` or ``huber``.
        delta: of ``huber``: where the loss turns from a square into a line.
        spread: public standard deviation of the targets, the unit in which errors are scored.

    Examples:
        >>> task = Regression(targets=1)
        >>> float(task.losses(torch.tensor([[3.0]]), torch.tensor([1.0]), torch.zeros(1, 2)))
        4.0
    """

    card: ClassVar[Card] = Card(summary="numbers per example, by squared, absolute or Huber loss")
    name: ClassVar[str] = "regression"
    utility: ClassVar[str] = "R2"
    shares: ClassVar[bool] = False

    loss_name: Literal["squared", "absolute", "huber"] = "squared"
    delta: float = 1.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        names = ("squared", "absolute", "huber")
        if self.targets < 1 or self.loss_name not in names or not (self.delta > 0 and self.spread > 0):
            raise BadValue(
                "task 'regression'",
                needs=f"targets >= 1, loss_name among {', '.join(names)}, delta > 0, spread > 0",
                got=f"targets = {self.targets}, loss_name = {self.loss_name!r}, delta = {self.delta}, "
                f"spread = {self.spread}",
                fix="correct the task",
            )

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """T finite numbers per example."""
        if labels[:1].numel() in (0, self.targets) and bool(torch.isfinite(labels).all()):
            return None
        return f"{self.targets} finite numbers per example", f"shape {tuple(labels.shape)}"

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Mean loss of the targets of each example, (B,)."""
        del inputs
        answers, wanted = outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None], self._wide(labels)
        wanted = wanted.to(answers.dtype)
        if self.loss_name == "squared":
            each = (answers - wanted).square()
        elif self.loss_name == "absolute":
            each = (answers - wanted).abs()
        else:
            each = F.huber_loss(answers, wanted, reduction="none", delta=self.delta)
        return each.mean(1)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """1 minus the squared error in units of ``spread``, (B,); the mean is R2 for their own deviation."""
        del inputs
        error = outputs.reshape(len(labels), -1).double() - self._wide(labels).double()
        return 1 - (error / self.spread).square().mean(1)

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """The score of always answering the mean target."""
        del inputs
        wide = self._wide(labels).double()
        return float(1 - ((wide - wide.mean(0)) / self.spread).square().mean())

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """Targets drawn from the public ones."""
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]

    def _wide(self, labels: Tensor) -> Tensor:
        return labels.reshape(len(labels), -1)

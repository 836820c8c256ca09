"""The adapter between a client's examples and the pursuit: the only file that knows what an example is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.interfaces import losses_of, mean_loss, task_of


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """N examples as they enter a model, (N, ...), and their targets, (N, ...)."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, some: slice | Tensor) -> "Own":
        return Own(inputs=self.inputs[some], targets=self.targets[some])

    def parts(self, size: int) -> Iterator["Own"]:
        """Nearly equal parts of at most about ``size`` examples."""
        count = max(1, round(len(self) / size))
        split = zip(self.inputs.tensor_split(count), self.targets.tensor_split(count), strict=True)
        for inputs, targets in split:
            yield Own(inputs=inputs, targets=targets)

    @property
    def kind(self) -> str:
        """What ranges of honest models depend on: form and type of one example."""
        return f"{self.inputs.dtype} {tuple(self.inputs.shape[1:])} {self.targets.dtype}"

    def classes(self, every: int) -> Tensor:
        """Indices of the examples of every ``every``-th class."""
        if self.targets.ndim != 1 or self.targets.is_floating_point():
            return torch.arange(len(self))
        return torch.isin(self.targets, torch.unique(self.targets)[::every]).nonzero()[:, 0]


def train_loss(model: nn.Module, some: Own) -> Tensor:
    """The loss that training minimises, as the task of ``model`` says, for honest models."""
    return mean_loss(model, Batch(inputs=some.inputs, labels=some.targets))


def goals(model: nn.Module, some: Own, *, balanced: bool = True) -> Tensor:
    """A number per example whose gradient is what that example adds to the update, (B,).

    Where every example has one class, the gradient at the logits has norm 1 for every example, however well
    the model fits it (towards the label if it vanished), so that unevenness is due to the model. All other
    tasks keep their losses: numbers, several labels, next tokens, masks.

    Args:
        model: its task says what is minimised; a bare module is a classifier.
        some: the examples.
        balanced: False: the losses of the task, as they are.

    Raises:
        BadValue: the targets are classes, and the output is not one row of logits per example.
    """
    task = task_of(model)
    if not task.one_label:
        return losses_of(model, Batch(inputs=some.inputs, labels=some.targets))
    logits = model(some.inputs)
    _check(logits, some)
    if not balanced:
        return task.losses(logits, some.targets, some.inputs)
    each: Tensor = (logits * unit_force(task.chances(logits.detach()), some.targets)).sum(1)
    return each


def unit_force(chances: Tensor, targets: Tensor) -> Tensor:
    """Each example's loss gradient at the logits, with norm 1; if it vanished, towards the label.

    Args:
        chances: of the classes, (B, K).
        targets: classes, (B,).
    """
    classes = torch.arange(chances.shape[1], device=chances.device)
    label = (targets[:, None] == classes).to(chances)  # one_hot looks at values, which vmap does not allow
    force = chances - label
    vanished = force.norm(dim=1, keepdim=True) < 1e-6
    return F.normalize(torch.where(vanished, 1 / chances.shape[1] - label, force), dim=1)


def _check(logits: object, some: Own) -> None:
    if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(some):
        return
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits)
    raise BadValue(
        "inspection of a model's behaviour",
        needs="for each example one row of logits, or a model with a task that is no classification",
        got=f"{shape} of {len(some)} examples",
        fix="give examples in the form that the model takes",
    )

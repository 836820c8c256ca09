"""The adapter between a client's examples and the pursuit: the only file that knows what an example is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.interfaces import task_of
from glasshouse.tasks.classification import Classification


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
    """The loss that training minimises, for honest models."""
    return goals(model, some, balanced=False).mean()


def goals(model: nn.Module, some: Own, *, balanced: bool = True) -> Tensor:
    """A number per example whose gradient is what that example adds to the update, (B,).

    Where the output is one row of logits per example, the gradient there has norm 1 for every example,
    however well the model fits it (towards the label if it vanished), so that unevenness is due to the model.
    A model of another task than classification keeps the losses of its task.
    """
    task = task_of(model)
    logits = model(some.inputs)
    if not isinstance(task, Classification):
        return task.losses(logits, some.targets, some.inputs)
    _check(logits, some)
    if not balanced:
        return F.cross_entropy(logits, some.targets, reduction="none")
    each: Tensor = (logits * unit_force(logits.detach(), some.targets)).sum(1)
    return each


def unit_force(logits: Tensor, targets: Tensor) -> Tensor:
    """Each example's loss gradient at the logits, with norm 1; if it vanished, towards the label."""
    classes = torch.arange(logits.shape[1], device=logits.device)
    label = (targets[:, None] == classes).to(logits)  # one_hot looks at values, which vmap does not allow
    force = logits.softmax(1) - label
    vanished = force.norm(dim=1, keepdim=True) < 1e-6
    return F.normalize(torch.where(vanished, 1 / logits.shape[1] - label, force), dim=1)


def _check(logits: object, some: Own) -> None:
    if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(some):
        return
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits)
    raise BadValue(
        "inspection of a model's behaviour",
        needs="for each example one row of logits, or a model of another task",
        got=f"{shape} of {len(some)} examples",
        fix="give examples in the form that the model takes",
    )

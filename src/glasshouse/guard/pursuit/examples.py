"""The adapter between a client's examples and the pursuit: the only file that knows what an example is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue, GlasshouseError
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


def check_fit(model: nn.Module, own: Own) -> None:
    """Refuse, before anything is measured, a network that cannot be trained on these examples.

    Raises:
        BadValue: nothing of it is trained, it does not run on an example, or its outputs do not fit the
            targets under its task.
    """
    subject = f"network '{type(getattr(model, 'net', model)).__name__}' under the guard"
    if not any(p.requires_grad for p in model.parameters()):
        raise BadValue(
            subject,
            needs="parameters that clients train",
            got="requires_grad = False for all of them, or none",
            fix="set requires_grad = True for what the client would send",
        )
    # Whatever somebody's own network raises here, it would raise in every measurement.
    task, mode = task_of(model), model.training
    try:
        with torch.enable_grad():
            outputs = model.eval()(own.inputs[:2])
            weights = [p for p in model.parameters() if p.requires_grad]
            if isinstance(outputs, Tensor) and outputs.requires_grad:  # checkpoints may refuse a gradient
                torch.autograd.grad(outputs.sum(), weights, allow_unused=True)
                outputs = outputs.detach()
    except GlasshouseError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadValue(
            subject,
            needs=f"a forward pass on examples of shape {tuple(own.inputs.shape[1:])}",
            got=f"{type(error).__name__}: {error!s}".splitlines()[0],
            fix="give the examples as they enter the network",
        ) from error
    finally:
        model.train(mode)
    if task.one_label:
        _check(outputs, own[:2])
        _check_classes(outputs, own, subject)


def _check_classes(logits: Tensor, own: Own, subject: str) -> None:
    """Whether there is a logit for each class; one logit for two classes is another task."""
    if own.targets.is_floating_point() or own.targets.ndim != 1 or not own.targets.numel():
        return
    classes, most = logits.shape[1], int(own.targets.max())
    if int(own.targets.min()) >= 0 and most < classes:
        return
    others = "give task=Multilabel(targets=1) for one logit, or another of glasshouse.tasks"
    raise BadValue(
        subject,
        needs=f"classes from 0 to {classes - 1}, as it has {classes} logits",
        got=f"classes from {int(own.targets.min())} to {most}",
        fix=others if classes == 1 else "give the classes that it was built for, or its task",
    )


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

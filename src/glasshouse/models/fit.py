"""Ordinary training of a module: resumable, and deterministic for a given random stream.

Batch norm: a model is in ``train()`` mode while it is fitted, so that its running statistics are learnt, and
in ``eval()`` mode while it is measured. :func:`fit` restores the original mode.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.cache import Checkpoint
from glasshouse.errors import BadValue, Undefined
from glasshouse.interfaces import task_of
from glasshouse.models.base import evaluated
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.settings import Recipe
from glasshouse.tensors import (
    descend,
    device_of,
    optimizer_tensors,
    restore_optimizer,
    take_prefix,
    wide_type,
    with_prefix,
)
from glasshouse.wire import Batch

_AT_ONCE: Final = 256
"""Largest number of examples in one forward pass."""
_OUTPUTS: Final = 2**20
"""Largest number of outputs of one forward pass: logits may cover a large vocabulary at every position."""
Perturb = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
"""(model, inputs, labels, generator) → inputs to train on instead, e.g. adversarial ones."""


def fit(
    model: nn.Module,
    batch: Batch,
    recipe: Recipe,
    *,
    rng: Rng,
    checkpoint: Checkpoint | None = None,
    perturb: Perturb | None = None,
    label: str = "training",
) -> list[float]:
    """Train ``model`` in place by the loss of its task, on the device of its parameters.

    Parameters that do not require a gradient are not changed.

    Args:
        model: inputs (B, ...) → outputs (B, ...).
        batch: all training examples.
        recipe: training hyperparameters.
        rng: order of the examples, augmentation, ``perturb``.
        checkpoint: stores the state after every epoch; if it already holds one, training resumes from it,
            with the same result as without the interruption.
        perturb: replaces the inputs of every step, after augmentation.
        label: name in the progress display.

    Returns:
        Mean loss of each epoch.

    Raises:
        Undefined: the loss became NaN or infinite; the message names the epoch.
        BadValue: no examples, or no trainable parameters.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained or not len(batch):
        raise BadValue(
            label, needs="examples, and parameters that require a gradient",
            got=f"{len(batch)} examples, {len(trained)} trainable tensors", fix="check data and model",
        )  # fmt: skip
    optimizer = _optimizer(trained, recipe)
    # Whatever was trained before an interruption is not trained again.
    losses = _resume(model, optimizer, checkpoint)
    was_training = model.training
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    model.train()
    for epoch in track(range(len(losses), recipe.epochs), label):
        stream = rng.child(f"epoch/{epoch}")
        losses.append(_epoch(model, batch, recipe, optimizer, perturb=perturb, epoch=epoch, rng=stream))
        # A diverged training is said at once: all that follows would be NaN.
        if not math.isfinite(losses[-1]):
            raise Undefined(
                label,
                needs="a finite loss",
                got=f"{losses[-1]} in epoch {epoch + 1} of {recipe.epochs}",
                fix="lower the learning rate, or choose another initialisation",
            )
        if checkpoint is not None:
            checkpoint.save(_snapshot(model, optimizer, losses), epoch + 1)
    if recipe.channels_last:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # likewise
    model.train(was_training)
    return losses


def share_right(model: nn.Module, batch: Batch) -> Tensor:
    """How well the model solves each example, (B,) float64 on the CPU, in eval mode, in its task's unit.

    For classes 1 where the largest logit is right, else 0; for tokens the share that is right.
    """
    device, task = device_of(model.state_dict()), task_of(model)
    outputs = math.prod(abs(size) for size in task.outputs)
    size = max(1, min(_AT_ONCE, _OUTPUTS // outputs))
    parts = [torch.zeros(0, dtype=torch.float64)]
    with evaluated(model):
        for index in torch.split(torch.arange(len(batch)), size):
            inputs, labels = batch.inputs[index].to(device), batch.labels[index].to(device)
            parts.append(task.scores(model(inputs), labels, inputs).double().cpu())
    return torch.cat(parts)


def predict(model: nn.Module, inputs: Tensor, *, batch_size: int = 256) -> Tensor:
    """Logits (B, K) on the CPU, in ``eval()`` mode and without gradients; the model's mode is restored."""
    device = next(model.parameters()).device
    with evaluated(model):
        return torch.cat([model(part.to(device)).cpu() for part in torch.split(inputs, batch_size)])


def accuracy(model: nn.Module, batch: Batch, *, batch_size: int = 256) -> float:
    """Mean of :func:`share_right`: for classes the share that is right, in [0, 1]; higher is better.

    Raises:
        Undefined: no examples, or a logit is not a number.
    """
    logits = predict(model, batch.inputs, batch_size=batch_size) if len(batch) else torch.zeros(0, 1)
    if not len(batch) or bool(logits.isnan().any()):
        lost = int(logits.flatten(1).isnan().any(dim=1).sum())
        raise Undefined(
            "accuracy of a model",
            needs="at least one example, and outputs that are numbers",
            got=f"{len(batch)} examples, {lost} of them with NaN outputs",
            fix="give held-out data; NaN comes from a training that diverged",
        )
    return float(task_of(model).scores(logits, batch.labels.cpu(), batch.inputs.cpu()).mean())


def _epoch(
    model: nn.Module,
    batch: Batch,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    *,
    perturb: Perturb | None,
    epoch: int,
    rng: Rng,
) -> float:
    device = next(model.parameters()).device
    order = torch.randperm(len(batch), generator=rng.child("order").torch())
    draws = rng.child("augment").torch()
    noise = rng.child("perturb").torch(device)
    parts = torch.split(order, recipe.batch_size)
    total = torch.zeros((), dtype=wide_type(device), device=device)
    for step, index in enumerate(parts):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate((epoch + step / len(parts)) / recipe.epochs)
        # Augmentation draws on the CPU, so that a device changes no picture.
        inputs = _augment(batch.inputs[index.to(batch.inputs.device)], recipe, draws).to(device)
        labels = batch.labels[index.to(batch.labels.device)].to(device)
        if recipe.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            if perturb is not None:
                inputs = perturb(model, inputs, labels, noise)
            outputs = model(inputs)
        # Half precision is for the layers; the loss is taken in full.
        loss = task_of(model).loss(outputs.float(), labels, inputs)
        descend(optimizer, loss)
        total += loss.detach().to(total.dtype) * len(index)
    return float(total) / len(batch)


def _augment(inputs: Tensor, recipe: Recipe, draws: torch.Generator) -> Tensor:
    """Augment each image: random flip, random shift, cutout."""
    if recipe.flip:
        mirrored = torch.rand(len(inputs), generator=draws).to(inputs.device) < 0.5
        inputs = torch.where(mirrored.view(-1, 1, 1, 1), inputs.flip(-1), inputs)
    if recipe.shift:
        n, channels, height, width = inputs.shape
        padded = functional.pad(inputs, [recipe.shift] * 4)
        top, left = torch.randint(0, 2 * recipe.shift + 1, (2, n, 1), generator=draws).to(inputs.device)
        rows = (top + torch.arange(height, device=inputs.device)).view(n, 1, height, 1)
        columns = (left + torch.arange(width, device=inputs.device)).view(n, 1, 1, width)
        image = torch.arange(n, device=inputs.device).view(n, 1, 1, 1)
        channel = torch.arange(channels, device=inputs.device).view(1, channels, 1, 1)
        inputs = padded[image, channel, rows, columns]
    return _cover_square(inputs, recipe.cutout, draws) if recipe.cutout else inputs


def _cover_square(inputs: Tensor, side: int, draws: torch.Generator) -> Tensor:
    """Cutout: a grey square at a random position in each image; it may extend beyond the border."""
    n, _, height, width = inputs.shape
    top = torch.randint(0, height, (n, 1), generator=draws).to(inputs.device) - side // 2
    left = torch.randint(0, width, (n, 1), generator=draws).to(inputs.device) - side // 2
    y, x = (torch.arange(size, device=inputs.device) for size in (height, width))
    rows, columns = (y >= top) & (y < top + side), (x >= left) & (x < left + side)
    return inputs.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.5)


def _optimizer(trained: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        nesterov = recipe.momentum > 0
        return torch.optim.SGD(
            trained, lr=rate, momentum=recipe.momentum, nesterov=nesterov, weight_decay=decay
        )
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(trained, lr=rate, weight_decay=decay)


def _snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> dict[str, Tensor]:
    """The full training state as a flat table of tensors."""
    return {
        **with_prefix("model.", model.state_dict()),
        **with_prefix("optimizer.", optimizer_tensors(optimizer)),
        "losses": torch.tensor(losses, dtype=torch.float64),
    }


def _resume(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint | None) -> list[float]:
    saved = checkpoint.load() if checkpoint is not None else None
    if saved is None:
        return []
    tensors, _ = saved
    model.load_state_dict(take_prefix(tensors, "model."))
    restore_optimizer(optimizer, take_prefix(tensors, "optimizer."))
    return [float(x) for x in tensors["losses"]]

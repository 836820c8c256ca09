"""One client's part of a round: train on its own data and apply its defences.

By default models stay in ``eval()`` mode: batch norm uses the received statistics, as in the literature on
gradient inversion. Terms with ``training.mode = "training"`` do as most clients do: statistics of each batch,
dropout, and running statistics that are updated and sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.interfaces import Defense, Trainer, mean_loss
from glasshouse.interfaces.modes import seeded, set_mode
from glasshouse.rng import Rng
from glasshouse.settings import ORDINARY, PLAIN, Optimizer, Training, covers
from glasshouse.tensors import check_finite, copy_to, difference, map_tensors, norm, scale_tensors
from glasshouse.wire import Batch, Kind, Terms, Trained, Update

LOSS_SCALE: Final = 1024.0
"""Factor of the loss in float16, so that small gradients do not vanish; undone before the step."""
TINY: Final = 1e-30
"""Smallest norm of a gradient to be clipped."""


@final
@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The honest trainer: one gradient (``kind="gradient"``), or epochs of mini-batch steps.

    Args:
        kind: what to send; see :class:`glasshouse.wire.Update`.
        learning_rate: maximum of the schedule; unused for a gradient.
        optimizer: starts from a fresh state in each round, as in FedAvg and in Flower's examples; unused for
            a gradient.
        round: position in the learning-rate schedule.
        epochs: passes over the data; unused for a gradient.
        batch_size: examples per step; a gradient is taken on one batch drawn without replacement.
        trained: prefix of the parameters that are trained; empty for all.
        dropout: run the model in ``train()`` mode, without sending running statistics.
        training: what else happens in a step; see :class:`glasshouse.settings.Training`.
        control: SCAFFOLD's correction, the server's control variate minus the client's, by parameter name,
            which is added to the gradient of every step.
        order: recorded rows of every step, to be repeated; None: they are drawn.
        device: where it trains; model, data and update are on the CPU before and after.
    """

    kind: Kind
    batch_size: int
    learning_rate: float = 0.1
    optimizer: Optimizer = PLAIN
    round: int = 0
    epochs: int = 1
    trained: str = ""
    dropout: bool = False
    training: Training = ORDINARY
    control: Mapping[str, Tensor] = field(default_factory=dict)
    order: tuple[Tensor, ...] | None = None
    device: str = "cpu"

    @classmethod
    def of(cls, terms: Terms, *, round: int, device: str = "cpu") -> "LocalTraining":
        """The trainer for a round under these terms."""
        return cls(
            kind=terms.sends,
            batch_size=terms.batch_size,
            learning_rate=terms.learning_rate,
            optimizer=terms.optimizer,
            round=round,
            epochs=terms.local_epochs,
            trained=terms.trained,
            dropout=bool(terms.options.get("dropout", False)),
            training=terms.training,
            device=device,
        )

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name: those that require a gradient and are not fixed.

        Raises:
            BadValue: none of them starts with the prefix.
        """
        every = model.named_parameters()
        fixed = self.training.fixed
        parameters = {
            name: p
            for name, p in every
            if p.requires_grad and name.startswith(self.trained) and not covers(fixed, name)
        }
        if not parameters:
            raise BadValue(
                "local training",
                needs=f"parameters whose name starts with '{self.trained}'",
                got=", ".join(name for name, _ in model.named_parameters()) or "a model without parameters",
                fix="correct the protocol's trained part, or the model's split into features and head",
            )
        return parameters

    def rate(self, step: int = 0) -> float:
        """The learning rate in a local step."""
        return self.learning_rate * self.optimizer.share(round=self.round, step=step)

    def stepper(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer, in a fresh state."""
        how = self.optimizer
        if how.name == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=self.rate(),
                momentum=how.momentum,
                weight_decay=how.weight_decay,
                nesterov=how.nesterov,
            )
        kind = torch.optim.Adam if how.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.rate(), betas=how.betas, eps=how.eps, weight_decay=how.weight_decay)

    def schedule(self, examples: int, *, rng: Rng) -> Iterator[Tensor]:
        """The rows of the client's data used in each step: ``batch_size`` times ``training.accumulate``."""
        if self.order is not None:
            yield from self.order
            return
        if self.training.local_steps is not None and self.kind != "gradient":
            yield from islice(self._passes(examples, count(), rng=rng), self.training.local_steps)
        else:
            yield from self._passes(examples, range(self.epochs if self.kind != "gradient" else 1), rng=rng)

    def _passes(self, examples: int, epochs: Iterable[int], *, rng: Rng) -> Iterator[Tensor]:
        """The rows of every step of some passes, each in a new order."""
        for epoch in epochs:
            order = torch.randperm(examples, generator=rng.child(f"epoch/{epoch}").torch())
            if self.kind == "gradient":
                yield order[: self.batch_size]
            else:
                used = self.training.used(examples, self.batch_size)
                yield from torch.split(order[:used], self.batch_size * self.training.accumulate)

    def check_enough(self, data: Batch, *, subject: str) -> None:
        """Refuse no data, or too few for a step: a batch for a gradient or where the last is left out."""
        whole = self.kind == "gradient" or self.training.drop_last
        least = self.batch_size if whole else 1
        if self.kind != "gradient" and self.training.leftover == "dropped":
            least += self.batch_size * (self.training.accumulate - 1)
        if len(data) < least:
            raise BadValue(
                subject,
                needs=f"at least {least} examples per client",
                got=f"{len(data)}",
                fix="lower federation.batch_size, or give each client more data",
            )

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train; ``ascend`` maximises the loss instead. Changes the model unless a gradient is sent.

        Raises:
            BadValue: no data, or fewer than one batch for a gradient.
        """
        self.check_enough(data, subject="local training")
        model.to(self.device)
        self.prepare(model)
        data = replace(data, inputs=data.inputs.to(self.device), labels=data.labels.to(self.device))
        parameters = self.parameters(model)
        before = {name: p.detach().clone() for name, p in parameters.items()}
        statistics = {name: t.clone() for name, t in running_statistics(model).items()}
        sign = -1.0 if ascend else 1.0
        optimizer = self.stepper(parameters.values())
        order: list[Tensor] = []
        slope: dict[str, Tensor] = {}
        # Networks draw from global generators, in training mode or always.
        with seeded(rng.child("dropout").seed()):
            for rows in self.schedule(len(data), rng=rng.child("order")):
                slope = self.slope(model, data.pick(rows), parameters, before, sign=sign)
                order.append(rows)
                # A gradient is sent as it is: no step is taken.
                if self.kind == "gradient":
                    continue
                for name, p in parameters.items():
                    p.grad = slope[name]
                optimizer.param_groups[0]["lr"] = self.rate(len(order) - 1)
                optimizer.step()
                optimizer.zero_grad()
        sent = slope if self.kind == "gradient" else self.changed(parameters, before)
        # Only statistics that training moved are news to the server.
        buffers = {n: t for n, t in running_statistics(model).items() if not torch.equal(t, statistics[n])}
        trained = Trained(
            tensors=map_tensors(sent, Tensor.cpu),
            kind=self.kind,
            steps=len(order),
            order=tuple(order),
            buffers={} if self.dropout or self.kind == "gradient" else map_tensors(buffers, Tensor.cpu),
        )
        model.to("cpu")
        return trained

    def prepare(self, model: nn.Module) -> None:
        """Put ``model`` into the mode in which it is trained."""
        if self.dropout:
            model.train()
        else:
            set_mode(model, self.training, dropout=True)

    def slope(
        self,
        model: nn.Module,
        batch: Batch,
        parameters: Mapping[str, nn.Parameter],
        before: Mapping[str, Tensor],
        *,
        sign: float = 1.0,
    ) -> dict[str, Tensor]:
        """What the optimizer of a step gets: the gradient, as the terms say that it is computed.

        Args:
            model: with ``parameters`` as they are now.
            batch: examples of the step; parts of ``batch_size`` are passed one after the other.
            parameters: that are trained.
            before: their received values, from which the proximal term pulls back.
            sign: -1 to ascend.
        """
        how, parts = self.training, torch.split(torch.arange(len(batch)), self.batch_size)
        divisor = len(parts) if self.kind == "gradient" else how.divisor(len(parts))
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        scale = LOSS_SCALE if how.precision == "float16" else 1.0
        for rows in parts:
            with _autocast(how, self.device):
                loss = mean_loss(model, batch.pick(rows), reduction=how.reduction)
                loss = sign * loss * (scale / divisor)
            gradients = torch.autograd.grad(
                loss, list(parameters.values()), allow_unused=True, materialize_grads=True
            )
            for name, gradient in zip(parameters, gradients, strict=True):
                total[name] += gradient / scale if scale != 1.0 else gradient
        for name, pull in self.pulls(parameters, before).items():
            total[name] += pull
        if how.clip_norm is not None:
            total = scale_tensors(total, min(1.0, how.clip_norm / max(norm(total), TINY)))
        return total

    def pulls(self, parameters: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a step adds to the gradient and needs no example for: the proximal term, the control."""
        pulls: dict[str, Tensor] = {}
        for name, p in parameters.items():
            if self.training.proximal:
                pulls[name] = self.training.proximal * (p.detach() - before[name])
            if name in self.control:
                pulls[name] = pulls.get(name, 0.0) + self.control[name].to(p)
        return pulls

    def changed(self, parameters: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is sent after steps: the new parameters, or their change."""
        after = {name: p.detach().clone() for name, p in parameters.items()}
        return after if self.kind == "parameters" else difference(after, before)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Persistent buffers of floats by name: what batch norms update while they train."""
    buffers, state = dict(model.named_buffers()), model.state_dict()
    return {name: t.detach() for name, t in buffers.items() if name in state and t.is_floating_point()}


def _autocast(how: Training, device: str) -> AbstractContextManager[object]:
    """The context of a forward pass in the stated precision."""
    if how.precision == "float32":
        return nullcontext()
    return torch.autocast(device.partition(":")[0], getattr(torch, how.precision))


def private(train: Trainer, defenses: Sequence[Defense]) -> Trainer:
    """``train`` wrapped in the defences that act inside local training."""
    for defense in defenses:
        if defense.place == "local":
            train = defense.local(train)
    return train


def apply_defenses(
    update: Update,
    batch: Batch,
    model: nn.Module,
    defenses: Sequence[Defense],
    *,
    rng: Rng,
    device: str = "cpu",
) -> Update:
    """``update`` after the defences that act on gradients and on updates, in their order.

    Those that act on gradients use the model and the examples, and run on ``device``.

    Raises:
        BadValue: the update, before or after a defence, is not finite.
    """
    who = f"update of client {update.client} in round {update.round}"
    check_finite(update.tensors, subject=who)
    for position, defense in enumerate(defenses):
        stream = rng.child(f"defense/{position}")
        if defense.place == "gradient":
            inputs = copy_to(update, device), copy_to(batch, device), model.to(device)
            update = copy_to(defense.gradient(*inputs, rng=stream), "cpu")
            model.to("cpu")
        elif defense.place == "update":
            update = defense.update(update, rng=stream)
        check_finite(update.tensors, subject=f"{who}, after defence {position}")
    return update

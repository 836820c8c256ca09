"""One client's part of a round: train on its own data and apply its defences.

Models stay in ``eval()`` mode: batch norm uses the received statistics, as in cross-silo practice and in the
gradient-inversion literature; a protocol that needs dropout enables it itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.interfaces import Defense, Trainer, mean_loss
from glasshouse.rng import Rng
from glasshouse.settings import PLAIN, Optimizer
from glasshouse.tensors import check_finite, copy_to, difference, map_tensors
from glasshouse.wire import Batch, Kind, Terms, Trained, Update


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
        dropout: run the model in ``train()`` mode.
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
            device=device,
        )

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that are trained and sent, by name: those that require a gradient.

        Raises:
            BadValue: none of them starts with the prefix.
        """
        every = model.named_parameters()
        parameters = {name: p for name, p in every if p.requires_grad and name.startswith(self.trained)}
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
                parameters, lr=self.rate(), momentum=how.momentum, weight_decay=how.weight_decay
            )
        kind = torch.optim.Adam if how.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.rate(), betas=how.betas, eps=how.eps, weight_decay=how.weight_decay)

    def schedule(self, examples: int, *, rng: Rng) -> Iterator[Tensor]:
        """The rows of the client's data used in each step."""
        if self.order is not None:
            yield from self.order
            return
        for epoch in range(self.epochs if self.kind != "gradient" else 1):
            order = torch.randperm(examples, generator=rng.child(f"epoch/{epoch}").torch())
            if self.kind == "gradient":
                yield order[: self.batch_size]
            else:
                yield from torch.split(order, self.batch_size)

    def check_enough(self, data: Batch, *, subject: str) -> None:
        """Refuse no data, or fewer than one batch for a gradient."""
        if len(data) < (self.batch_size if self.kind == "gradient" else 1):
            raise BadValue(
                subject,
                needs=f"at least {self.batch_size} examples per client",
                got=f"{len(data)}",
                fix="lower federation.batch_size, or give each client more data",
            )

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train; ``ascend`` maximises the loss instead. Changes the model unless a gradient is sent.

        Raises:
            BadValue: no data, or fewer than one batch for a gradient.
        """
        self.check_enough(data, subject="local training")
        model.to(self.device).train(self.dropout)
        data = replace(data, inputs=data.inputs.to(self.device), labels=data.labels.to(self.device))
        parameters = self.parameters(model)
        before = {name: p.detach().clone() for name, p in parameters.items()}
        sign = -1.0 if ascend else 1.0
        optimizer = self.stepper(parameters.values())
        order = []
        gradients: tuple[Tensor, ...] = ()
        with torch.random.fork_rng(devices=[], enabled=self.dropout):
            if self.dropout:
                torch.manual_seed(rng.child("dropout").seed())
            for rows in self.schedule(len(data), rng=rng.child("order")):
                batch = data.pick(rows)
                loss = sign * mean_loss(model, batch)
                gradients = torch.autograd.grad(loss, list(parameters.values()))
                order.append(rows)
                if self.kind != "gradient":
                    for p, g in zip(parameters.values(), gradients, strict=True):
                        p.grad = g
                    optimizer.param_groups[0]["lr"] = self.rate(len(order) - 1)
                    optimizer.step()
                    optimizer.zero_grad()
        gradient = self.kind == "gradient"
        sent = dict(zip(parameters, gradients, strict=True)) if gradient else self.changed(parameters, before)
        tensors = map_tensors(sent, Tensor.cpu)
        model.to("cpu")
        return Trained(tensors=tensors, kind=self.kind, steps=len(order), order=tuple(order))

    def changed(self, parameters: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is sent after steps: the new parameters, or their change."""
        after = {name: p.detach().clone() for name, p in parameters.items()}
        return after if self.kind == "parameters" else difference(after, before)


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

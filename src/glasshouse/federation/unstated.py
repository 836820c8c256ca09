"""Ways to train that no terms can state: repeated on a test client's examples, to be named and nothing more.

Attacks repeat what terms state. Where a client trains otherwise, its loop is run here as people write it, so
that a mismatch has a name.

Shape letters: B examples, K outputs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.federation.client import LocalTraining
from glasshouse.interfaces import mean_loss
from glasshouse.tensors import difference
from glasshouse.wire import Batch

__all__ = ["UNSTATED", "Unstated", "repeat"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, K), labels (B,)) → the loss of a batch."""
Make = Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]
"""(parameters, learning rate) → the optimizer of a round."""

_ALIKE: Final = 1e-9
"""Below it two outputs are one, whose distance has no slope."""


@final
@dataclass(frozen=True, kw_only=True)
class Unstated:
    """One way to train.

    Attributes:
        words: its name.
        loss: of a batch; None: as the terms state it.
        optimizer: None: as the terms state it.
        rates: learning rates in use, tried besides the stated one.
    """

    words: str
    loss: Loss | None = None
    optimizer: Make | None = None
    rates: tuple[float, ...] = ()


def repeat(
    way: Unstated, model: nn.Module, data: Batch, order: Iterable[Tensor], *, how: LocalTraining, rate: float
) -> dict[str, Tensor]:
    """What a client would send that trains in this way: a gradient or a change, by parameter name.

    Args:
        way: to train.
        model: as received; it is changed.
        data: the client's examples.
        order: rows of every step.
        how: what the terms state; its mode, its loss and its optimizer where ``way`` has none.
        rate: learning rate.
    """
    how.prepare(model)
    parameters = how.parameters(model)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    values = list(parameters.values())
    make = way.optimizer
    optimizer = how.stepper(values) if make is None else make(values, rate)
    slope: dict[str, Tensor] = {}
    for rows in order:
        batch = data.pick(rows)

        def evaluate(batch: Batch = batch) -> Tensor:
            """As a loop's closure: L-BFGS asks for it many times in one step."""
            optimizer.zero_grad()
            if way.loss is None:
                loss = mean_loss(model, batch, reduction=how.training.reduction)
            else:
                loss = way.loss(model(batch.inputs), batch.labels)
            torch.autograd.backward(loss)
            return loss

        if how.kind == "gradient":
            evaluate()
            slope = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
        else:
            optimizer.step(evaluate)  # type: ignore[arg-type]  # torch says float, and takes a tensor
    after = {name: p.detach() for name, p in parameters.items()}
    return slope if how.kind == "gradient" else difference(after, before)


def ways(kind: str) -> Iterator[Unstated]:
    """Those that an update of this kind can show: a gradient knows no optimizer."""
    return (way for way in UNSTATED if kind != "gradient" or way.optimizer is None)


def _distances(outputs: Tensor) -> Tensor:
    """Euclidean distances between all outputs, (B, B); of an output to itself 0, without a slope."""
    squares = (outputs[:, None] - outputs[None]).square().sum(2)
    return squares.clamp_min(_ALIKE).sqrt() * (squares > _ALIKE)


def _triplet(outputs: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Mean over all triples of an anchor, another of its class and one of another class."""
    apart, same = _distances(outputs), labels[:, None] == labels[None]
    other = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    triples = other[:, :, None] & ~same[:, None, :]
    terms = (apart[:, :, None] - apart[:, None, :] + margin).clamp_min(0)
    return (terms * triples).sum() / triples.sum().clamp_min(1)


def _hardest(outputs: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Mean over anchors of the triple of the farthest of its class and the nearest of another."""
    apart, same = _distances(outputs), labels[:, None] == labels[None]
    far = (apart * same).amax(1)
    near = torch.where(same, float("inf"), apart).amin(1)
    terms = (far - near + margin).clamp_min(0)
    return torch.where(near.isfinite(), terms, 0.0).mean()


def _contrastive(outputs: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Mean over all pairs: squared distance within a class, squared lack of the margin between two."""
    rows, columns = torch.triu_indices(len(labels), len(labels), 1, device=labels.device)
    apart, same = _distances(outputs)[rows, columns], (labels[rows] == labels[columns])
    terms = torch.where(same, apart.square(), (margin - apart).clamp_min(0).square())
    return terms.sum() / max(1, len(rows))


def _supervised_contrastive(outputs: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """Mean over anchors of the log-share of those of their class among all others (Khosla et al. 2020)."""
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    points = F.normalize(outputs, dim=1)
    logs = (points @ points.T / temperature).masked_fill(own, -torch.inf).log_softmax(1).masked_fill(own, 0.0)
    same = (labels[:, None] == labels[None]) & ~own
    return -((logs * same).sum(1) / same.sum(1).clamp_min(1)).mean()


def _lbfgs(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=rate)


def _rms(parameters: Iterable[nn.Parameter], rate: float, *, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=rate, momentum=momentum)


RATES: Final = (1.0, 0.1, 0.05, 0.01, 0.005, 0.001, 1e-4)
"""Rates that loops in practice have."""
UNSTATED: Final = (
    Unstated(words="optimizer Adagrad", optimizer=lambda p, r: torch.optim.Adagrad(p, lr=r), rates=RATES),
    Unstated(words="optimizer RMSprop", optimizer=_rms, rates=RATES),
    Unstated(words="optimizer RMSprop with momentum 0.9", optimizer=partial(_rms, momentum=0.9), rates=RATES),
    Unstated(words="optimizer L-BFGS", optimizer=_lbfgs, rates=RATES),
    Unstated(words="optimizer Adadelta", optimizer=lambda p, r: torch.optim.Adadelta(p, lr=r), rates=RATES),
    Unstated(words="optimizer NAdam", optimizer=lambda p, r: torch.optim.NAdam(p, lr=r), rates=RATES),
    Unstated(words="triplet loss over all triples, margin 1", loss=partial(_triplet, margin=1.0)),
    Unstated(words="triplet loss of the hardest triples, margin 1", loss=partial(_hardest, margin=1.0)),
    Unstated(words="contrastive loss over all pairs, margin 1", loss=partial(_contrastive, margin=1.0)),
    Unstated(
        words="supervised contrastive loss, temperature 0.1",
        loss=partial(_supervised_contrastive, temperature=0.1),
    ),
    Unstated(
        words="supervised contrastive loss, temperature 0.07",
        loss=partial(_supervised_contrastive, temperature=0.07),
    ),
)
"""One row each, in the order in which they are tried."""

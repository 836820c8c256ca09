"""Updates of simulated clients with and without the property.

Shape letters: S shadow clients, B examples of each, E examples in the pool, z numbers in an update.

If clients take a single step from the broadcast, an update is a mean of per-example gradients, and shadow
clients that share examples share their gradients (:mod:`per_example`). If clients take more steps, the first
one is shared and the rest is trained client by client.

Where we differ from the authors' code: with dropout a pool entry gets one mask per round, so clients that
share the entry share the mask (the target has an entry per client); each client's own update has the correct
distribution.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.attacks.property.per_example import PerExample, shares_gradients
from glasshouse.federation.client import LocalTraining
from glasshouse.interfaces import Behaviour, Trainer, mean_loss
from glasshouse.interfaces.modes import seeded
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Terms


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Cast:
    """Shadow clients, as the examples of a pool that each one holds.

    Attributes:
        pool: (E) examples; an example with two labels, or with two dropout masks, is two entries.
        rows: (S, B) entries of each client.
        shares: (E,) expected share of each entry in a client's data; None: unknown.
    """

    pool: Batch
    rows: Tensor
    shares: Tensor | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Conduct:
    """How shadow clients train.

    Attributes:
        factor: on the update that they send.
        ascend: they ascend the loss.
        behaviour: the federation's own code for a deviation that ``factor`` and ``ascend`` do not describe.
    """

    factor: float = 1.0
    ascend: bool = False
    behaviour: Behaviour | None = None


HONEST = Conduct()


def updates(
    model: nn.Module, terms: Terms, cast: Cast, *, rng: Rng, conduct: Conduct = HONEST, round: int = 0
) -> Tensor:
    """Updates of the shadow clients, flattened in the order of the parameters: (S, z) float32.

    Args:
        model: loaded with the broadcast; unchanged on return.
        terms: of the federation.
        cast: the shadow clients and their examples.
        conduct: of all of these clients.
        rng: for the order of the examples, dropout, and behaviour.
        round: for the learning rate, and for behaviours that depend on it.
    """
    plain = follows_gradients(terms) and terms.sends in ("gradient", "delta")
    if conduct.behaviour is not None or not plain or not shares_gradients(model, terms):
        return conduct.factor * _train_clients(model, terms, cast, conduct, round=round, rng=rng)
    steps = steps_of(terms, cast.rows.shape[1])
    if steps > 1 or terms.sends != "delta":
        noise = torch.rand(cast.rows.shape, generator=rng.child("order").torch())
        cast = Cast(pool=cast.pool, rows=cast.rows.gather(1, noise.argsort(1)))
    first = Cast(pool=cast.pool, rows=cast.rows[:, : terms.batch_size])
    gradients = mean_gradients(model, terms, first, rng=rng)
    rate = (-1.0 if conduct.ascend else 1.0) * (1.0 if terms.sends == "gradient" else -terms.rate(round))
    gradients.mul_(rate)
    if steps > 1:
        _go_on(model, terms, cast, gradients, rate=rate, rng=rng)
    return gradients if conduct.factor == 1 else gradients.mul_(conduct.factor)


def follows_gradients(terms: Terms) -> bool:
    """Whether every local step of a round is the same multiple of a gradient."""
    how = terms.optimizer
    return how.traits <= {"sgd", "schedule"} and (how.period is None or how.over == "rounds")


def steps_of(terms: Terms, examples: int) -> int:
    """Local steps of a client with this many examples."""
    return 1 if terms.sends == "gradient" else terms.local_epochs * -(-examples // terms.batch_size)


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """One vector (z,) float32, in the order of the names."""
    return torch.cat([t.reshape(-1).float() for t in tensors.values()])


def mean_gradients(model: nn.Module, terms: Terms, cast: Cast, *, rng: Rng) -> Tensor:
    """Each client's mean gradient over its entries: (S, z) float32; gradients are shared between clients.

    Raises:
        BadValue: a parameter belongs to a layer that is neither linear nor an ordinary convolution.
    """
    distinct, rows = torch.unique(cast.rows, return_inverse=True)
    return PerExample.of(model, terms, cast.pool.pick(distinct), rng=rng).means(rows)


def _go_on(model: nn.Module, terms: Terms, cast: Cast, sums: Tensor, *, rate: float, rng: Rng) -> None:
    """Run the steps after the first, client by client; adds them to ``sums``, which holds the first step."""
    train = LocalTraining.of(terms, round=0)
    parameters = train.parameters(model)
    start = flatten(parameters).detach()
    train.prepare(model)
    with seeded(rng.child("later").seed()):
        for number, row in enumerate(sums):
            place = start + row
            for rows in _later_steps(cast.rows[number], terms, rng=rng.child(f"later/{number}")):
                batch = cast.pool.pick(rows)
                nn.utils.vector_to_parameters(place, parameters.values())
                loss = mean_loss(model, batch)
                gradients = torch.autograd.grad(loss, list(parameters.values()))
                place.add_(torch.cat([g.reshape(-1) for g in gradients]), alpha=rate)
            row.copy_(place - start)
    nn.utils.vector_to_parameters(start, parameters.values())


def _later_steps(rows: Tensor, terms: Terms, *, rng: Rng) -> Iterator[Tensor]:
    """Entries of every step but the first; epoch 0 follows the order given."""
    yield from torch.split(rows, terms.batch_size)[1:]
    for epoch in range(1, terms.local_epochs):
        order = torch.randperm(len(rows), generator=rng.child(f"epoch/{epoch}").torch())
        yield from torch.split(rows[order], terms.batch_size)


def _train_clients(
    model: nn.Module, terms: Terms, cast: Cast, conduct: Conduct, *, round: int, rng: Rng
) -> Tensor:
    """Updates from the federation's own client code, client by client; for any terms and behaviour."""
    start = {name: t.detach().clone() for name, t in model.state_dict().items()}
    parts = []
    for number, rows in enumerate(cast.rows):
        stream = rng.child(f"shadow/{number}")
        train: Trainer = LocalTraining.of(terms, round=round)
        if conduct.behaviour is not None:
            train = conduct.behaviour.deviate(train, round=round, rng=stream)
        updates = train(model, cast.pool.pick(rows), rng=stream.child("train"), ascend=conduct.ascend)
        parts.append(flatten(updates.tensors))
        model.load_state_dict(start)
    return torch.stack(parts)

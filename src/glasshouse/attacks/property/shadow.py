"""Updates of made-up clients: what an update would look like with and without the property.

Shape letters: S shadow clients, B examples of each, E examples in the pool, z numbers in an update.

Where clients take a single step from the broadcast, an update is a mean of per-example gradients, and shadow
clients that share examples share their gradients. They are never formed for linear layers: one pass over the
pool keeps each layer's input a and the loss gradient d at its output, and a client's update is the product
of its B rows of d with its B rows of a. Convolutions are small: their per-example gradients are formed once
and averaged. Where clients take more steps, the first one is shared and the rest is trained client by client.

Where we differ from the authors' code: with dropout a pool entry draws its mask once per round, so clients
that share the entry share the mask (the target has an entry per client); each client's own update has the
right distribution.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Behaviour, Terms, Trained, Trainer

CHUNK = 256
"""Pool entries or shadow clients handled at a time: bounds the memory."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Cast:
    """Shadow clients: which examples of a pool each one holds.

    Attributes:
        pool: (E) examples; an example with two labels, or with two dropout masks, is two entries.
        rows: (S, B) entries of each client.
    """

    pool: Batch
    rows: Tensor

    def client(self, number: int) -> Batch:
        """The data of one shadow client."""
        return self.pool.pick(self.rows[number])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Conduct:
    """How shadow clients train.

    Attributes:
        factor: what they send is so many times what they found. ascend: they climb the loss.
        behaviour: the federation's own code of a deviation that ``factor`` and ``ascend`` do not describe.
    """

    factor: float = 1.0
    ascend: bool = False
    behaviour: Behaviour | None = None


HONEST = Conduct()


def shares_gradients(model: nn.Module, terms: Terms) -> bool:
    """Whether :func:`mean_gradients` applies: all trained layers are linear or ordinary convolutions."""
    names = {name for name, _ in model.named_parameters() if name.startswith(terms.trained)}
    return names <= {f"{n}.{own}" for n, m in _plain(model) for own in ("weight", "bias")}


def updates(
    model: nn.Module, terms: Terms, cast: Cast, *, rng: Rng, conduct: Conduct = HONEST, round: int = 0
) -> Tensor:
    """What the shadow clients would send, flattened in the order of the parameters: (S, z) float32.

    Args:
        model: loaded with the broadcast; unchanged on return.
        terms: of the federation. cast: who holds what. conduct: how all of these clients train.
        rng: order of the examples, dropout, behaviour. round: for behaviours that look at it.
    """
    plain = terms.momentum == 0 and terms.sends in ("gradient", "delta") and shares_gradients(model, terms)
    if conduct.behaviour is not None or not plain:
        return conduct.factor * _trained(model, terms, cast, conduct, round=round, rng=rng)
    steps = steps_of(terms, cast.rows.shape[1])
    ordered = cast if steps == 1 and terms.sends == "delta" else _shuffled(cast, rng=rng)
    first = Cast(pool=cast.pool, rows=ordered.rows[:, : terms.batch_size])
    found = mean_gradients(model, terms, first, rng=rng)
    rate = (-1.0 if conduct.ascend else 1.0) * (1.0 if terms.sends == "gradient" else -terms.learning_rate)
    found.mul_(rate)
    if steps > 1:
        _go_on(model, terms, ordered, found, rate=rate, rng=rng)
    return found if conduct.factor == 1 else found.mul_(conduct.factor)


def steps_of(terms: Terms, examples: int) -> int:
    """Local steps of a client with so many examples."""
    return 1 if terms.sends == "gradient" else terms.local_epochs * -(-examples // terms.batch_size)


def _shuffled(cast: Cast, *, rng: Rng) -> Cast:
    noise = torch.rand(cast.rows.shape, generator=rng.child("order").torch())
    return Cast(pool=cast.pool, rows=cast.rows.gather(1, noise.argsort(1)))


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """One vector (z,) float32, in the order of the names."""
    return torch.cat([t.reshape(-1).float() for t in tensors.values()])


def mean_gradients(model: nn.Module, terms: Terms, cast: Cast, *, rng: Rng) -> Tensor:
    """Each client's mean gradient over its entries: (S, z) float32; gradients are shared between clients.

    Raises:
        BadValue: a parameter belongs to a layer that is neither linear nor an ordinary convolution.
    """
    parameters = LocalTraining.of(terms).parameters(model)
    offsets, z = {}, 0
    for name, p in parameters.items():
        offsets[name], z = z, z + p.numel()
    used, rows = torch.unique(cast.rows, return_inverse=True)
    taps = _taps(model, terms, cast.pool.pick(used), rng=rng)
    out = torch.zeros(len(rows), z)
    for name, (module, inputs, deltas) in taps.items():
        for own, part in (("weight", _weight_part), ("bias", _bias_part)):
            full = f"{name}.{own}"
            if full in offsets:
                place = out[:, offsets[full] : offsets[full] + parameters[full].numel()]
                part(module, inputs, deltas, rows, place)
    missing = [n for n in offsets if n.rsplit(".", 1)[0] not in taps]
    if missing:
        raise BadValue(
            "shared gradients of shadow clients",
            needs="parameters in linear layers and ordinary convolutions only",
            got=", ".join(missing),
            fix="train the shadow clients one by one",
        )
    return out


def _plain(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if type(module) is nn.Linear or (type(module) is nn.Conv2d and _ordinary(module)):
            yield name, module


def _ordinary(module: nn.Conv2d) -> bool:
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _taps(
    model: nn.Module, terms: Terms, pool: Batch, *, rng: Rng
) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """Per plain layer its inputs and the gradients of the summed loss at its outputs, over the pool."""
    layers = dict(_plain(model))
    kept: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in layers}
    outputs: dict[str, Tensor] = {}

    def tap(name: str) -> object:
        def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            kept[name][0].append(inputs[0].detach())
            outputs[name] = output

        return layers[name].register_forward_hook(note)

    handles = [tap(name) for name in layers]
    dropout = LocalTraining.of(terms).dropout
    model.train(dropout)
    try:
        with torch.random.fork_rng(devices=[], enabled=dropout):
            if dropout:
                torch.manual_seed(rng.child("dropout").seed())
            for rows in torch.split(torch.arange(len(pool)), CHUNK):
                batch = pool.pick(rows)
                loss = F.cross_entropy(model(batch.inputs), batch.labels, reduction="sum")
                for name, d in zip(outputs, torch.autograd.grad(loss, list(outputs.values())), strict=True):
                    kept[name][1].append(d)
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]  # torch's handle has no exported type
    return {n: (layers[n], torch.cat(a), torch.cat(d)) for n, (a, d) in kept.items()}


def _weight_part(module: nn.Module, inputs: Tensor, deltas: Tensor, rows: Tensor, out: Tensor) -> None:
    if isinstance(module, nn.Conv2d):
        _averaged(_convolution_gradients(module, inputs, deltas), rows, out)
        return
    for chunk in torch.split(torch.arange(len(rows)), CHUNK):
        d, a = deltas[rows[chunk]], inputs[rows[chunk]]  # (S, B, O), (S, B, I)
        out[chunk[0] : chunk[-1] + 1] = torch.bmm(d.transpose(1, 2), a).flatten(1) / rows.shape[1]


def _bias_part(_: nn.Module, __: Tensor, deltas: Tensor, rows: Tensor, out: Tensor) -> None:
    _averaged(deltas.flatten(2).sum(2) if deltas.ndim == 4 else deltas, rows, out)


def _averaged(each: Tensor, rows: Tensor, out: Tensor) -> None:
    out.copy_(F.embedding_bag(rows, each, mode="mean"))


def _convolution_gradients(module: nn.Conv2d, inputs: Tensor, deltas: Tensor) -> Tensor:
    """Per-example gradients (E, numbers of the kernel), by products of deltas with unfolded patches."""
    plain = module.stride == (1, 1) and module.dilation == (1, 1)
    form = _unit_stride if plain else _any_stride
    parts = zip(torch.split(inputs, CHUNK), torch.split(deltas, CHUNK), strict=True)
    return torch.cat([form(module, a, d) for a, d in parts])


def _any_stride(module: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
    padding = tuple(int(p) for p in module.padding)
    patches = F.unfold(a, module.kernel_size, dilation=module.dilation, padding=padding, stride=module.stride)
    return torch.bmm(d.flatten(2), patches.transpose(1, 2)).flatten(1)


def _unit_stride(module: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
    """Unfolded along the width alone: rows of a patch are then whole slices, and 3 times less is copied."""
    vertical, horizontal = (int(p) for p in module.padding)
    tall, wide = module.kernel_size
    a = F.pad(a, (horizontal, horizontal, vertical, vertical))
    examples, channels, width = len(a), a.shape[1], d.shape[3]
    strips = a.unfold(3, wide, 1).permute(0, 1, 4, 2, 3).reshape(examples, channels * wide, -1)
    size, flat = d.shape[2] * width, d.flatten(2)
    rows = [
        torch.bmm(flat, strips[:, :, i * width : i * width + size].transpose(1, 2)) for i in range(tall)
    ]  # each (E, O, C * wide)
    shape = (examples, flat.shape[1], channels, wide)
    return torch.stack([r.view(shape) for r in rows], dim=3).flatten(1)


def _go_on(model: nn.Module, terms: Terms, cast: Cast, found: Tensor, *, rate: float, rng: Rng) -> None:
    """All steps after the first, client by client; ``found`` holds the first step and gets the sum of all."""
    train = LocalTraining.of(terms)
    parameters = train.parameters(model)
    start = flatten(parameters).detach()
    model.train(train.dropout)
    with torch.random.fork_rng(devices=[], enabled=train.dropout):
        if train.dropout:
            torch.manual_seed(rng.child("later").seed())
        for number, row in enumerate(found):
            place = start + row
            _point(parameters, place)
            for rows in _later_steps(cast.rows[number], terms, rng=rng.child(f"later/{number}")):
                batch = cast.pool.pick(rows)
                loss = F.cross_entropy(model(batch.inputs), batch.labels)
                gradients = torch.autograd.grad(loss, list(parameters.values()))
                place.add_(torch.cat([g.reshape(-1) for g in gradients]), alpha=rate)
            row.copy_(place - start)
    _point(parameters, start)


def _later_steps(rows: Tensor, terms: Terms, *, rng: Rng) -> Iterator[Tensor]:
    """Entries of every step but the first; epoch 0 follows the order given."""
    yield from torch.split(rows, terms.batch_size)[1:]
    for epoch in range(1, terms.local_epochs):
        order = torch.randperm(len(rows), generator=rng.child(f"epoch/{epoch}").torch())
        yield from torch.split(rows[order], terms.batch_size)


def _point(parameters: Mapping[str, nn.Parameter], vector: Tensor) -> None:
    """Let the parameters be views of ``vector``, so that changing it changes them."""
    offset = 0
    for p in parameters.values():
        p.data = vector[offset : offset + p.numel()].view(p.shape)
        offset += p.numel()


def _trained(model: nn.Module, terms: Terms, cast: Cast, conduct: Conduct, *, round: int, rng: Rng) -> Tensor:
    """The federation's own client code, client by client: any terms, any behaviour."""
    start = {name: t.detach().clone() for name, t in model.state_dict().items()}
    parts = []
    for number in range(len(cast.rows)):
        stream = rng.child(f"shadow/{number}")
        train = LocalTraining.of(terms)
        trainer: Trainer = train
        if conduct.behaviour is not None:
            trainer = conduct.behaviour.deviate(train, round=round, rng=stream)
        sent = trainer(model, cast.client(number), rng=stream.child("train"), ascend=conduct.ascend)
        parts.append(flatten(_change(sent, start)))
        model.load_state_dict(start)
    return torch.stack(parts)


def _change(sent: Trained, start: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if sent.kind != "parameters":
        return sent.tensors
    return {name: t - start[name] for name, t in sent.tensors.items()}

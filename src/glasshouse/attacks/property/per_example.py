"""Per-example gradients of a pool, without forming them for linear layers.

One pass over the pool stores each layer's input a and the loss gradient d at its output. The gradient of a
linear layer for one example is d aᵀ; means over clients' examples, inner products between examples, weighted
sums and products with a direction all follow from a and d. Convolutions are small: their gradients are formed
once.

Shape letters: E examples of the pool, S clients, B examples of each, z numbers in an update, I inputs and O
outputs of a layer, k numbers of a kernel.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.parts.matching.fixed import is_ordinary
from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.interfaces import task_of
from glasshouse.interfaces.modes import find_draws, joins_examples, put_off, seeded
from glasshouse.rng import Rng
from glasshouse.settings import ORDINARY
from glasshouse.wire import Batch, Terms

_SHARED: Final = {"mode", "frozen", "fixed"}
"""Terms of local training that leave an update a mean of gradients of single examples."""
CHUNK = 256
"""Pool entries or clients handled at a time: bounds the memory."""


def shares_gradients(model: nn.Module, terms: Terms) -> bool:
    """Whether :class:`PerExample` applies: a plain step of a network whose examples do not meet.

    All trained layers are linear or plain convolutions.
    """
    names = {name for name, _ in model.named_parameters() if name.startswith(terms.trained)}
    plain = names <= {f"{n}.{own}" for n, m in _plain(model) for own in ("weight", "bias")}
    how, ordinary = terms.training.model_dump(exclude=_SHARED), ORDINARY.model_dump(exclude=_SHARED)
    if not plain or how != ordinary:
        return False
    work = copy.deepcopy(model)
    LocalTraining.of(terms, round=0).prepare(work)
    probes = terms.architecture.inputs.probes(4, torch.Generator().manual_seed(0))
    put_off(work, find_draws(work, probes))
    return not joins_examples(work, probes.to(next(model.parameters()).device))


@final
@dataclass(frozen=True, eq=False)
class FormedGradients:
    """The gradients of one parameter, z numbers each, stored explicitly: (E, z)."""

    each: Tensor

    @property
    def size(self) -> int:
        """Z."""
        return self.each.shape[1]

    def means(self, rows: Tensor, out: Tensor) -> None:
        """Write the means over the rows (S, B) of every client into ``out`` (S, z)."""
        out.copy_(F.embedding_bag(rows, self.each, mode="mean"))

    def gram(self) -> Tensor:
        """Inner products between examples' gradients: (E, E)."""
        return self.each @ self.each.T

    def weighted(self, weights: Tensor) -> Tensor:
        """Sum of the gradients times ``weights`` (E,): (z,)."""
        return weights @ self.each

    def along(self, direction: Tensor) -> Tensor:
        """Inner product of every example's gradient with ``direction`` (z,): (E,)."""
        return self.each @ direction

    def squared(self) -> "FormedGradients":
        """The elementwise squares of the gradients."""
        return FormedGradients(self.each.square())


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """Gradients of a linear layer's weight: outer products of ``deltas`` (E, O) and ``inputs`` (E, I).

    The methods are those of :class:`FormedGradients`.
    """

    deltas: Tensor
    inputs: Tensor

    @property
    def size(self) -> int:
        return self.deltas.shape[1] * self.inputs.shape[1]

    def means(self, rows: Tensor, out: Tensor) -> None:
        for chunk in torch.split(torch.arange(len(rows)), CHUNK):
            d, a = self.deltas[rows[chunk]], self.inputs[rows[chunk]]  # (S, B, O), (S, B, I)
            out[chunk[0] : chunk[-1] + 1] = torch.bmm(d.transpose(1, 2), a).flatten(1) / rows.shape[1]

    def gram(self) -> Tensor:
        return (self.deltas @ self.deltas.T) * (self.inputs @ self.inputs.T)

    def weighted(self, weights: Tensor) -> Tensor:
        return ((self.deltas * weights[:, None]).T @ self.inputs).flatten()

    def along(self, direction: Tensor) -> Tensor:
        folded = direction.view(self.deltas.shape[1], self.inputs.shape[1])
        return ((self.deltas @ folded) * self.inputs).sum(1)

    def squared(self) -> "Outer":
        return Outer(self.deltas.square(), self.inputs.square())


Part = FormedGradients | Outer


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PerExample:
    """Gradients of a pool's examples, parameter by parameter in the order of an update."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, model: nn.Module, terms: Terms, pool: Batch, *, rng: Rng) -> "PerExample":
        """Gradients of the cross-entropy at every example of ``pool``, at the model's state.

        Args:
            model: unchanged on return.
            terms: the trained parameters, and the mode.
            rng: for the dropout masks, one for each example.
            pool: the examples.

        Raises:
            BadValue: a parameter belongs to a layer that is neither linear nor an ordinary convolution.
        """
        taps = _taps(model, terms, pool, rng=rng)
        parts = []
        for name in LocalTraining.of(terms, round=0).parameters(model):
            layer, _, own = name.rpartition(".")
            if layer not in taps or own not in ("weight", "bias"):
                raise BadValue(
                    "shared gradients of shadow clients",
                    needs="parameters in linear layers and ordinary convolutions only",
                    got=name,
                    fix="train the shadow clients one by one",
                )
            parts.append(_part(*taps[layer], of_bias=own == "bias"))
        return cls(parts=tuple(parts))

    def means(self, rows: Tensor) -> Tensor:
        """Every client's mean over its examples ``rows`` (S, B): (S, z) float32."""
        out = torch.zeros(len(rows), sum(part.size for part in self.parts))
        for part, place in zip(self.parts, self._split(out), strict=True):
            part.means(rows, place)
        return out

    def gram(self) -> Tensor:
        """Inner products between examples' gradients: (E, E) float64."""
        return torch.stack([part.gram() for part in self.parts]).double().sum(0)

    def weighted(self, weights: Tensor) -> Tensor:
        """Sum of the gradients times ``weights`` (E,): (z,) float32."""
        return torch.cat([part.weighted(weights.float()) for part in self.parts])

    def along(self, direction: Tensor) -> Tensor:
        """Inner product of every gradient with ``direction`` (z,): (E,) float64."""
        pieces = zip(self.parts, self._split(direction), strict=True)
        return torch.stack([part.along(piece).double() for part, piece in pieces]).sum(0)

    def squared(self) -> "PerExample":
        """The elementwise squares of the gradients."""
        return PerExample(parts=tuple(part.squared() for part in self.parts))

    def _split(self, vector: Tensor) -> tuple[Tensor, ...]:
        return torch.split(vector, [part.size for part in self.parts], dim=-1)


def _part(module: nn.Module, inputs: Tensor, deltas: Tensor, *, of_bias: bool) -> Part:
    if of_bias:
        return FormedGradients(deltas.flatten(2).sum(2) if deltas.ndim == 4 else deltas)
    if isinstance(module, nn.Conv2d):
        return FormedGradients(_convolution_gradients(module, inputs, deltas))
    return Outer(deltas, inputs)


def _plain(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if type(module) is nn.Linear or (type(module) is nn.Conv2d and is_ordinary(module)):
            yield name, module


def _taps(
    model: nn.Module, terms: Terms, pool: Batch, *, rng: Rng
) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """For every plain layer its inputs and the gradients of the summed loss at its outputs, over the pool."""
    layers = dict(_plain(model))
    tape: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in layers}
    outputs: dict[str, Tensor] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        tape[name][0].append(inputs[0].detach())
        outputs[name] = output

    train = LocalTraining.of(terms, round=0)
    train.prepare(model)
    # One pass over the pool, with the layers' inputs and slopes kept: gradients of single examples follow
    # from them.
    with ExitStack() as hooks, seeded(rng.child("dropout").seed()):
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(note, name)))
        for rows in torch.split(torch.arange(len(pool)), CHUNK):
            batch = pool.pick(rows)
            loss = task_of(model).loss(model(batch.inputs), batch.labels, batch.inputs, reduction="sum")
            for name, d in zip(outputs, torch.autograd.grad(loss, list(outputs.values())), strict=True):
                tape[name][1].append(d)
    return {n: (layers[n], torch.cat(a), torch.cat(d)) for n, (a, d) in tape.items()}


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
    """Unfold along the width only: rows of a patch are then contiguous slices, which copies 3 times less."""
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

"""Evasions: changes that disguise a crafted model from the guard while it still leaks.

Each evasion is a function from :class:`Material` to :class:`Evaded`, or None where it does not apply, and is
listed in ``EVASIONS``. They act on the first crafted linear layer and the next one, for any attack, and most
preserve the model's function. They exist to test the guard (:mod:`benchmarks.guard.disguised.play`) and are
not attacks: none makes a model leak that did not leak before.

Shape letters: R rows of the crafted layer, D its inputs, K rows of the next layer, N images.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
SMALL: Final = 1e-3
"""Factor by which a layer is scaled down, undone by the next layer."""
KEPT: Final = 8
"""One crafted row in ``KEPT`` remains where they hide among honest ones: 128 of 1,024."""
COPIES: Final = 10
"""Rows per threshold in ``crowded``; a difference of two of these exposes no example."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """A crafted model, and the server's knowledge.

    Attributes:
        tensors: state of the crafted model.
        honest: state of an honest model of the same architecture.
        first: name of the crafted linear layer, without ``.weight``.
        behind: name of the next linear layer, which reads it; empty: ``first`` is the last.
        inputs: inputs of ``first`` for the server's own images, (N, D).
        nested: rows are ordered by threshold, and each contains all examples above its own.
        generator: of the random draws.
    """

    tensors: Tensors
    honest: Tensors
    first: str
    behind: str
    inputs: Tensor
    nested: bool
    generator: torch.Generator

    @property
    def weight(self) -> Tensor:
        """Of ``first``, (R, D)."""
        return self.tensors[f"{self.first}.weight"]

    @property
    def bias(self) -> Tensor:
        """Of ``first``, (R,)."""
        return self.tensors[f"{self.first}.bias"]

    @property
    def columns(self) -> Tensor:
        """Weight of ``behind``, (K, R)."""
        return self.tensors[f"{self.behind}.weight"]

    @property
    def sizes(self) -> Tensor:
        """Root mean square of every row, (R, 1); for zero rows that of the honest layer."""
        size = self.weight.square().mean(1, keepdim=True).sqrt()
        return torch.where(size > 0, size, self.honest[f"{self.first}.weight"].square().mean().sqrt())

    def draw(self, *shape: int) -> Tensor:
        """Standard normal draws."""
        return torch.randn(*shape, generator=self.generator)

    def with_rows(self, weight: Tensor, bias: Tensor, columns: Tensor | None = None) -> dict[str, Tensor]:
        """The model's state with other values in ``first``, and in the columns of ``behind``."""
        changed = {f"{self.first}.weight": weight, f"{self.first}.bias": bias}
        if columns is not None:
            changed[f"{self.behind}.weight"] = columns
        return {**self.tensors, **changed}


def _as_it_came(update: Tensors) -> Tensors:
    return update


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Evaded:
    """A crafted model in disguise.

    Attributes:
        tensors: the state that is sent.
        back: maps the gradient of the disguised model to one that the attack's own readout understands.
    """

    tensors: Tensors
    back: Callable[[Tensors], Tensors] = field(default=_as_it_came)


Evasion = Callable[[Material], Evaded | None]


def as_crafted(material: Material) -> Evaded:
    """No disguise: the crafted model unchanged."""
    return Evaded(tensors=material.tensors)


def noise(material: Material) -> Evaded:
    """Add noise of 1 % of the row's size to every weight of the crafted layer."""
    moved = material.weight + 0.01 * material.sizes * material.draw(*material.weight.shape)
    return Evaded(tensors=material.with_rows(moved, _adjusted(material, moved)))


def common_direction(material: Material) -> Evaded:
    """Rotate all rows from their mean direction towards a random one; add .01 % noise to each row.

    Values are then no longer equal within a row (entropy), nor rows equal up to a factor (rows).
    """
    mean = material.weight.double().mean(0)
    mean = mean / mean.norm().clamp_min(1e-12)
    beside = material.draw(len(mean)).double()
    beside -= mean * (beside @ mean)
    other = mean + 0.5 * beside / beside.norm()
    other /= other.norm()
    along = material.weight.double() @ mean
    turned = material.weight.double() + along[:, None] * (other - mean)
    turned = (turned + 1e-4 * material.sizes * material.draw(*turned.shape)).float()
    return Evaded(tensors=material.with_rows(turned, _adjusted(material, turned)))


def scaled(material: Material) -> Evaded | None:
    """Scale rows down, each by a different factor, and undo it in the next layer.

    Exact if there is a ReLU between the two.
    """
    if not material.behind:
        return None
    factor = SMALL * 3 ** (2 * torch.rand(len(material.bias), generator=material.generator) - 1)
    small = material.with_rows(
        material.weight * factor[:, None], material.bias * factor, material.columns / factor
    )

    def back(update: Tensors) -> Tensors:
        return _with_gradient(material, update, lambda t: t * factor.reshape(-1, *[1] * (t.ndim - 1)))

    return Evaded(tensors=small, back=back)


def null_space(material: Material) -> Evaded:
    """Add to every row a random part of equal size, in directions in which images hardly vary."""
    _, _, directions = torch.linalg.svd(material.inputs, full_matrices=False)  # largest variation first
    lively = directions[: max(1, material.inputs.shape[1] * 3 // 4)]
    parts = material.draw(*material.weight.shape)
    parts -= parts @ lively.T @ lively
    parts *= material.sizes / parts.square().mean(1, keepdim=True).sqrt()
    moved = material.weight + parts
    return Evaded(tensors=material.with_rows(moved, _adjusted(material, moved)))


def hidden(material: Material) -> Evaded | None:
    """Keep one crafted row in eight, at random positions among honest ones."""
    rows = len(material.bias)
    if not material.behind or rows < 2 * KEPT:
        return None
    kept, every = torch.arange(KEPT // 2, rows, KEPT), torch.arange(rows)
    places = torch.randperm(rows, generator=material.generator)[: len(kept)]
    weight, bias = (material.honest[f"{material.first}.{part}"].clone() for part in ("weight", "bias"))
    columns = material.honest[f"{material.behind}.weight"].clone()
    columns[:, _without(every, places)] = columns[:, _without(every, kept)]  # no column occurs twice
    weight[places], bias[places] = material.weight[kept], material.bias[kept]
    columns[:, places] = material.columns[:, kept]

    def back(update: Tensors) -> Tensors:
        def read(t: Tensor) -> Tensor:
            own = torch.zeros_like(t)
            if not material.nested:
                own[kept] = t[places]
                return own
            upper = torch.searchsorted(kept, every)  # the next kept row, of a higher threshold
            inside = upper < len(kept)
            own[inside] = t[places[upper[inside]]]
            return own

        return _with_gradient(material, update, read)

    return Evaded(tensors=material.with_rows(weight, bias, columns), back=back)


def renamed(material: Material) -> Evaded:
    """Rename the crafted layer."""
    old, new = f"{material.first}.", f"{material.first}_."
    return Evaded(
        tensors={
            name.replace(old, new) if name.startswith(old) else name: t
            for name, t in material.tensors.items()
        }
    )


def bf16(material: Material) -> Evaded:
    """Round all values to bfloat16."""
    return Evaded(
        tensors={
            name: t.bfloat16().to(t.dtype) if t.is_floating_point() else t
            for name, t in material.tensors.items()
        }
    )


def permuted(material: Material) -> Evaded | None:
    """Permute the rows, and the columns of the next layer accordingly."""
    if not material.behind:
        return None
    order = torch.randperm(len(material.bias), generator=material.generator)

    def back(update: Tensors) -> Tensors:
        return _with_gradient(material, update, lambda t: t[order.argsort()])

    tensors = material.with_rows(
        material.weight[order], material.bias[order], material.columns[:, order].contiguous()
    )
    return Evaded(tensors=tensors, back=back)


def crowded(material: Material) -> Evaded | None:
    """Keep one threshold in ten, each in ten slightly different rows, after ``common_direction``.

    The most similar rows then share a threshold, so that only their mean is informative about an example.
    """
    rows = len(material.bias)
    if not material.nested or not material.behind or rows < 2 * COPIES:
        return None
    turned = common_direction(material)
    own = replace(material, tensors=turned.tensors)
    groups = torch.arange(rows) // COPIES
    kept = groups * COPIES
    weight = own.weight[kept] + 1e-3 * own.sizes[kept] * own.draw(*own.weight.shape)
    columns = own.columns[:, kept] * (1 + 1e-3 * own.draw(*own.columns.shape))

    def back(update: Tensors) -> Tensors:
        def read(t: Tensor) -> Tensor:
            sums = torch.zeros(int(groups[-1]) + 1, *t.shape[1:], dtype=t.dtype).index_add_(0, groups, t)
            counts = groups.bincount().reshape(-1, *[1] * (t.ndim - 1))
            mean: Tensor = (sums / counts)[groups]
            return mean

        return _with_gradient(material, update, read)

    return Evaded(tensors=own.with_rows(weight, own.bias[kept], columns), back=back)


def all_at_once(material: Material) -> Evaded | None:
    """Apply ``common_direction``, ``scaled`` and ``hidden`` in sequence."""
    evaded = Evaded(tensors=material.tensors)
    for step in (common_direction, scaled, hidden):
        further = step(replace(material, tensors=evaded.tensors))
        if further is None:
            return None
        evaded = Evaded(tensors=further.tensors, back=_chain(further.back, evaded.back))
    return evaded


EVASIONS: Final[Mapping[str, Evasion]] = {
    "as crafted": as_crafted,
    "1 % noise": noise,
    "common direction, .01 % noise": common_direction,
    "scaled rows, small layer": scaled,
    "null-space directions": null_space,
    "1 row in 8, honest rows between": hidden,
    "other tensor names": renamed,
    "bfloat16": bf16,
    "rows in another order": permuted,
    "10 rows per threshold, direction": crowded,
    "direction, scales, honest rows": all_at_once,
}
"""By their names in the table."""


def _without(every: Tensor, some: Tensor) -> Tensor:
    return every[~torch.isin(every, some)]


def _adjusted(material: Material, weight: Tensor) -> Tensor:
    """Biases for which the rows of ``weight`` activate on about the same images as the crafted ones.

    Thresholds keep their distance from the mean pre-activation, in its standard deviations.
    """
    inputs = material.inputs.double()
    before, after = (inputs @ w.double().T for w in (material.weight, weight))
    spread = after.std(0) / before.std(0).clamp_min(1e-12)
    bias: Tensor = (material.bias.double() + before.mean(0)) * spread - after.mean(0)
    return torch.where(before.std(0) > 0, bias, material.bias.double()).float()


def _with_gradient(material: Material, update: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    names = [f"{material.first}.{part}" for part in ("weight", "bias")]
    return {**update, **{name: change(update[name]) for name in names if name in update}}


def _chain(first: Callable[[Tensors], Tensors], then: Callable[[Tensors], Tensors]) -> Callable[..., Tensors]:
    return lambda update: then(first(update))

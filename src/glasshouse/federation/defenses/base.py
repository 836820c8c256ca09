"""Base classes of the defences, the kinds of update they accept, and a mask of the smallest entries."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import check_ranges
from glasshouse.rng import Rng
from glasshouse.tensors import check_finite
from glasshouse.wire import Batch, Kind, Mechanism, Terms, Update, Value

CHANGES: frozenset[Kind] = frozenset({"gradient", "delta"})
"""Kinds centred on zero: scaling or dropping entries of new *parameters* would damage the model itself."""

ALL: frozenset[Kind] = frozenset({"gradient", "delta", "parameters", "logits"})


@runtime_checkable
class NetworkBound(Protocol):
    """A defence that does not work on every network; ``check`` asks it before anything runs."""

    def check_network(self, model: nn.Module, sample: Batch, train: LocalTraining) -> None:
        """Raise ``Inapplicable`` if it cannot work on ``model``; ``sample`` is a little more than a batch."""


class NamedDefense(Protocol):
    """Base class of the built-in defences: settings with declared ranges, and a description from them."""

    name: ClassVar[str]
    shown_by: ClassVar[str] = ""
    """The kind of mark by which an undeclared defence is called by this one's name; empty: by none."""

    @property
    def place(self) -> Literal["local", "gradient", "update"]: ...

    def __post_init__(self) -> None:
        check_ranges(self, f"defense '{self.name}'")

    def describe(self) -> Mechanism:
        return describe_mechanism(self)

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        """The marks that it must leave in ``update`` with these parameters; empty: none can be checked."""
        del parameters, update, terms
        return ()


class RewritingDefense(NamedDefense, Protocol):
    """Base class of defences that rewrite the update before it is sent."""

    place: ClassVar[Literal["update"]] = "update"
    kinds: ClassVar[frozenset[Kind]] = CHANGES

    @abstractmethod
    def rewrite(self, update: Update, rng: Rng, /) -> Mapping[str, Tensor]:
        """The tensors to send instead of the update's."""

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A rewritten copy.

        Raises:
            Inapplicable: the update is of a kind that this defence does not rewrite.
            BadValue: it has no tensors, or an entry is not finite.
        """
        accept(update, name=self.name, kinds=self.kinds)
        return dataclasses.replace(update, tensors=self.rewrite(update, rng))


class TensorDefense(RewritingDefense, Protocol):
    """Base class of defences that rewrite each tensor on its own."""

    @abstractmethod
    def change(self, tensor: Tensor, rng: Rng, /) -> Tensor:
        """The tensor to send instead; each tensor has its own stream, independent of their order."""

    def rewrite(self, update: Update, rng: Rng, /) -> Mapping[str, Tensor]:
        return {name: self.change(t, rng.child(name)) for name, t in update.tensors.items()}


class LogitDefense(TensorDefense, Protocol):
    """Base class of defences that rewrite an upload of logits, (P, K)."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"logits"})

    def rewrite(self, update: Update, rng: Rng, /) -> Mapping[str, Tensor]:
        """``change`` applied to every table.

        Raises:
            BadValue: a tensor is not a table of at least two classes.
        """
        for key, t in update.tensors.items():
            if t.ndim != 2 or t.shape[1] < 2:
                raise BadValue(
                    f"defense '{self.name}'",
                    needs="logits of shape (P, K), K >= 2",
                    got=f"'{key}' of shape {tuple(t.shape)}",
                    fix="send one row per public example and one column per class",
                )
        return {key: self.change(t, rng) for key, t in update.tensors.items()}


def accept(update: Update, *, name: str, kinds: frozenset[Kind]) -> None:
    """Check that defence ``name`` can act on ``update``.

    Raises:
        Inapplicable: the update is of another kind.
        BadValue: it has no tensors, or an entry is not finite.
    """
    where = f"round {update.round}, client {update.client}"
    if update.kind not in kinds:
        raise Inapplicable(
            f"defense '{name}'",
            needs=f"an update of kind {' or '.join(sorted(kinds))}",
            got=f"{where}: kind {update.kind}",
            fix="choose another defense, or a protocol that sends what this one protects",
        )
    if not update.tensors:
        raise BadValue(
            f"defense '{name}'",
            needs="at least one tensor",
            got=f"{where}: none",
            fix="send what was trained",
        )
    check_finite(update.tensors, subject=f"defense '{name}' in {where}")


def describe_mechanism(defense: NamedDefense, *, note: str = "", **further: Value) -> Mechanism:
    """The mechanism of a defence whose dataclass fields are its settings; unset (None) ones are left out."""
    values = {setting: value for setting, value in vars(defense).items() if value is not None}
    return Mechanism(name=defense.name, place=defense.place, parameters={**values, **further}, note=note)


def smallest(values: Tensor, share: float) -> Tensor:
    """Mask of the ``floor(share * n)`` smallest entries; among equal ones the first in memory order.

    Args:
        values: any shape, finite.
        share: in [0, 1].

    Examples:
        >>> smallest(torch.tensor([3.0, 1.0, 1.0, 2.0]), 0.25)
        tensor([False,  True, False, False])
    """
    flat = values.flatten()
    count = math.floor(share * len(flat) + 1e-9)  # 0.29 * 100 is 28.999999999999996
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = flat.kthvalue(count).values
    below, tied = flat < threshold, flat == threshold
    first = tied & (tied.cumsum(0) <= count - below.sum())
    return (below | first).reshape(values.shape)

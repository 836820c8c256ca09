"""What the defences share: the kinds of update they accept, their description, and one mask."""

import math

import torch
from torch import Tensor

from glasshouse.errors import BadValue, Inapplicable
from glasshouse.interfaces import Defense
from glasshouse.tensors import check_finite
from glasshouse.wire import Kind, Mechanism, Update, Value

CHANGES: frozenset[Kind] = frozenset({"gradient", "delta"})
"""Kinds around zero: scaling or dropping entries of new *parameters* would damage the model itself."""

ALL: frozenset[Kind] = frozenset({"gradient", "delta", "parameters", "logits"})
LOGITS: frozenset[Kind] = frozenset({"logits"})


def require(name: str, holds: bool, *, needs: str, fix: str, **got: object) -> None:
    """Refuse a setting of defence ``name`` unless the condition holds.

    Raises:
        BadValue: it does not; ``got`` is printed as ``setting = value``.
    """
    if not holds:
        settings = ", ".join(f"{setting} = {value}" for setting, value in got.items())
        raise BadValue(f"defense '{name}'", needs=needs, got=settings, fix=fix)


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


def describe_mechanism(defense: Defense, name: str, *, note: str = "", **further: Value) -> Mechanism:
    """The mechanism of a defence whose dataclass fields are its settings; unset (None) ones are left out."""
    values = {setting: value for setting, value in vars(defense).items() if value is not None}
    return Mechanism(name=name, place=defense.place, parameters={**values, **further}, note=note)


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

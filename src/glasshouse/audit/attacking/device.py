"""Hand an attack copies of its own of everything, on the device that it computes on."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def copy_to(value: T, device: torch.device | str) -> T:
    """Copy every tensor in ``value`` to ``device``; dataclasses, mappings and tuples are rebuilt.

    A tensor that occurs several times is copied once, so that the copy takes no more memory than ``value``.

    Args:
        value: a tensor, a dataclass, a mapping, a tuple, or several of these in each other.
        device: where the copies lie.

    Examples:
        >>> original = torch.zeros(1)
        >>> copy = copy_to({"a": original, "b": original}, "cpu")
        >>> copy["a"] is copy["b"], copy["a"] is original
        (True, False)
    """
    return _copy(value, device, {})  # type: ignore[no-any-return]  # same type as value


def _copy(value: Any, device: torch.device | str, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().to(device, copy=True)
        return copies[id(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _copy(getattr(value, f.name), device, copies) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return {name: _copy(item, device, copies) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_copy(item, device, copies) for item in value)
    return value

"""Move what an attack is given to a device, and what it claims back."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def moved(value: T, device: torch.device | str) -> T:
    """``value`` with every tensor in it on ``device``; dataclasses, mappings and tuples are rebuilt.

    Example:
        >>> moved((torch.zeros(1), {"a": torch.ones(1)}), "cpu")
        (tensor([0.]), {'a': tensor([1.])})
    """
    result: Any = value
    if isinstance(value, Tensor):
        result = value.to(device)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: moved(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        result = dataclasses.replace(value, **fields)
    elif isinstance(value, Mapping):
        result = {name: moved(item, device) for name, item in value.items()}
    elif isinstance(value, tuple):
        result = tuple(moved(item, device) for item in value)
    return result  # type: ignore[no-any-return]  # same type as value, which mypy cannot follow

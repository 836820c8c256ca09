"""Small algebra on named tensors: what parameters, gradients and updates are here."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from glasshouse.errors import BadValue


def norm(tensors: Mapping[str, Tensor]) -> float:
    """L2 norm over all tensors together, accumulated in float64.

    Examples:
        >>> norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        5.0
    """
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


def device_of(tensors: Mapping[str, Tensor]) -> torch.device:
    """Where they lie: all on one device; the CPU where there are none.

    Examples:
        >>> device_of({})
        device(type='cpu')
    """
    first = next(iter(tensors.values()), None)
    return torch.device("cpu") if first is None else first.device


def map_tensors(tensors: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """``change`` applied to every tensor; names and order kept."""
    return {name: change(t) for name, t in tensors.items()}


def scale_tensors(tensors: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Every tensor times ``factor``."""
    return {name: t * factor for name, t in tensors.items()}


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``left - right`` by name.

    Raises:
        BadValue: the names differ.
    """
    if left.keys() != right.keys():
        raise BadValue(
            "difference of two sets of tensors",
            needs="the same names on both sides",
            got=f"only on one side: {', '.join(sorted(left.keys() ^ right.keys()))}",
            fix="compare updates of one architecture",
        )
    return {name: left[name] - right[name] for name in left}


def weighted_sum(parts: list[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Sum of ``weight * tensors`` in float64, so that the order of clients does not show in the result.

    Raises:
        BadValue: ``parts`` is empty.
    """
    if not parts:
        raise BadValue("weighted sum", needs="at least one update", got="none", fix="select a client")
    total = {name: t.double() * parts[0][0] for name, t in parts[0][1].items()}
    for weight, tensors in parts[1:]:
        for name, t in tensors.items():
            total[name] += t.double() * weight
    return total


def check_finite(tensors: Mapping[str, Tensor], *, subject: str) -> None:
    """Raise if any tensor is empty, NaN or infinite.

    Raises:
        BadValue: names the first offending tensor and how many entries offend.
    """
    for name, t in tensors.items():
        bad = int((~torch.isfinite(t)).sum()) if t.is_floating_point() else 0
        if t.numel() == 0 or bad:
            raise BadValue(
                subject,
                needs="non-empty tensors of finite numbers",
                got=f"'{name}': " + (f"{bad} of {t.numel()} entries not finite" if bad else "no entries"),
                fix="lower the learning rate or look for a division by zero before this step",
            )

"""Algebra on mappings of named tensors, which represent parameters, gradients and updates."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import BadValue

T = TypeVar("T")

NARROW = frozenset({"mps"})
"""Devices without float64."""
FUSED = frozenset({"cpu", "cuda"})
"""Devices that support fused optimizers (``fused=True``), which need less than a third of the calls of others
for a small network."""
HELD = 2**27
"""Bytes of stored tensors (128 MiB) up to which a copy of them is made at once; more stay where they are, and
are read one at a time. Some 500 updates of a LeNet, or one of a ResNet-34."""


@final
class Lazy(Mapping[str, Tensor]):
    """Tensors by name, each of which is made whenever it is asked for, and kept by nobody.

    Args:
        names: of all of them, in order.
        make: the tensor of a name.
        size: the bytes of all of them.

    Examples:
        >>> counted = Lazy(lambda: ["a", "b"], lambda name: torch.full((2,), float(ord(name))), lambda: 16)
        >>> list(counted), counted["a"]
        (['a', 'b'], tensor([97., 97.]))
    """

    def __init__(
        self, names: Callable[[], Collection[str]], make: Callable[[str], Tensor], size: Callable[[], int]
    ) -> None:
        self._names, self._make, self.size = names, make, size

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names():
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def only(self, keep: Callable[[str], bool]) -> "Lazy":
        """Those whose name ``keep`` accepts."""
        return Lazy(lambda: [name for name in self if keep(name)], self._make, self.size)

    def ordered(self, names: tuple[str, ...]) -> "Lazy":
        """These, in the order of ``names``, which are all of them."""
        return Lazy(lambda: names, self._make, self.size)

    def over(self, below: "Lazy") -> "Lazy":
        """These, and those of ``below`` that have no tensor of their name here."""
        return Lazy(
            lambda: dict.fromkeys([*below, *self]),
            lambda name: self[name] if name in self else below[name],
            lambda: self.size() + below.size(),
        )


def tensor_of(value: Any) -> Tensor:
    """As ``torch.as_tensor``, also of an array of another byte order or one that is read backwards.

    Examples:
        >>> tensor_of(np.array([1.0, 2.0], dtype=">f4")[::-1])
        tensor([2., 1.])
    """
    if isinstance(value, np.ndarray):
        value = np.asarray(value, dtype=value.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(value)


def norm(tensors: Mapping[str, Tensor]) -> float:
    """L2 norm over all tensors together, accumulated in float64.

    Examples:
        >>> norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        5.0
    """
    return math.sqrt(sum(float(widen(t).square().sum()) for t in tensors.values()))


def device_of(tensors: Mapping[str, Tensor]) -> torch.device:
    """The device of ``tensors``, which all share one; the CPU if there are none.

    Examples:
        >>> device_of({})
        device(type='cpu')
    """
    first = next(iter(tensors.values()), None)
    return torch.device("cpu") if first is None else first.device


def wide_type(device: torch.device) -> torch.dtype:
    """The widest floating-point type of ``device``: float32 on MPS, else float64.

    Examples:
        >>> wide_type(torch.device("cpu")), wide_type(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type in NARROW else torch.float64


def widen(tensor: Tensor) -> Tensor:
    """``tensor`` in the widest floating-point type of its device."""
    return tensor.to(wide_type(tensor.device))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on the gradient of ``loss``."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def optimizer_tensors(optimizer: torch.optim.Optimizer, *, sep: str = ".") -> dict[str, Tensor]:
    """The state of ``optimizer`` as a flat table; ``sep`` joins parameter number and slot in the names.

    Examples:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.Adam([weight])
        >>> descend(optimizer, weight.sum())
        >>> sorted(optimizer_tensors(optimizer, sep="/"))
        ['0/exp_avg', '0/exp_avg_sq', '0/step']
    """
    states = optimizer.state_dict()["state"].items()
    return {f"{n}{sep}{slot}": torch.as_tensor(t) for n, slots in states for slot, t in slots.items()}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], *, sep: str = "."
) -> None:
    """Load copies of what :func:`optimizer_tensors` returned for the same parameters and ``sep``."""
    slots: dict[int, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        number, _, slot = name.partition(sep)
        slots.setdefault(int(number), {})[slot] = t.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with ``prefix`` before every name.

    Examples:
        >>> with_prefix("model.", {"weight": torch.ones(1)})
        {'model.weight': tensor([1.])}
    """
    return {prefix + name: t for name, t in tensors.items()}


def take_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, under the rest of their names.

    Examples:
        >>> take_prefix({"model.weight": torch.ones(1), "loss": torch.ones(1)}, "model.")
        {'weight': tensor([1.])}
    """
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def map_tensors(tensors: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """``change`` applied to every tensor; names and order kept."""
    return {name: change(t) for name, t in tensors.items()}


def derive(
    tensors: Mapping[str, Tensor],
    change: Callable[[str, Tensor], Tensor],
    *,
    keep: Callable[[str], bool] | None = None,
) -> Mapping[str, Tensor]:
    """``change`` applied to every tensor whose name ``keep`` accepts (None: all); lazily to lazy ones."""
    if isinstance(tensors, Lazy):
        kept = tensors if keep is None else tensors.only(keep)
        return Lazy(lambda: list(kept), lambda name: change(name, tensors[name]), tensors.size)
    return {name: change(name, t) for name, t in tensors.items() if keep is None or keep(name)}


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> Mapping[str, Tensor]:
    """``tensors`` under other names: by each new one, the one that it had; lazy ones stay so."""
    if isinstance(tensors, Lazy):
        return Lazy(lambda: names, lambda name: tensors[names[name]], tensors.size)
    return {name: tensors[own] for name, own in names.items()}


def outlined(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Something with the shapes and types of ``tensors``; lazy ones are read once, and not kept."""
    if not isinstance(tensors, Lazy):
        return tensors
    return {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in tensors.items()}


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
    """Sum of ``weight * tensors`` in float64, so that the order of clients does not affect the result.

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


def class_means(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean input (C, H, W) of each class, (K, C, H, W); zeros where a class has none."""
    total = torch.zeros(classes, *inputs.shape[1:], device=inputs.device).index_add(0, labels, inputs)
    return total / torch.bincount(labels, minlength=classes).clamp_min(1).view(-1, 1, 1, 1)


def all_finite(x: Tensor) -> bool:
    """Whether all entries are finite: a finite sum proves it, three times faster than checking each entry.

    Examples:
        >>> all_finite(torch.tensor([3e38, 3e38])), all_finite(torch.tensor([1.0, torch.nan]))
        (True, False)
    """
    return math.isfinite(x.detach().sum().item()) or bool(torch.isfinite(x).all())


def finite_fault(tensors: Mapping[str, Tensor]) -> str:
    """The first tensor that is empty, NaN or infinite, and its number of bad entries, in words; empty: none.

    Examples:
        >>> finite_fault({"w": torch.zeros(2), "b": torch.tensor([1.0, torch.nan])})
        "'b': 1 of 2 entries not finite"
    """
    for name, t in tensors.items():
        if t.numel() == 0 or not all_finite(t):
            bad = int((~torch.isfinite(t)).sum())
            return f"'{name}': " + (f"{bad} of {t.numel()} entries not finite" if bad else "no entries")
    return ""


def check_finite(tensors: Mapping[str, Tensor], *, subject: str) -> None:
    """Raise if any tensor is empty, NaN or infinite.

    Raises:
        BadValue: names the first such tensor and its number of bad entries.
    """
    if fault := finite_fault(tensors):
        raise BadValue(
            subject,
            needs="non-empty tensors of finite numbers",
            got=fault,
            fix="lower the learning rate or look for a division by zero before this step",
        )


def copy_to(value: T, device: torch.device | str) -> T:
    """Copy every tensor in ``value`` to ``device``; dataclasses, mappings and tuples are rebuilt.

    A tensor that occurs several times is copied once, so that the copy takes no more memory than ``value``.
    Lazy mappings are read if they hold at most ``HELD`` bytes together; of others, each tensor is copied when
    it is asked for.

    Args:
        value: a tensor, a dataclass, a mapping or a tuple; may be nested.
        device: the device of the copies.

    Examples:
        >>> original = torch.zeros(1)
        >>> copy = copy_to({"a": original, "b": original}, "cpu")
        >>> copy["a"] is copy["b"], copy["a"] is original
        (True, False)
    """
    left, at_once = HELD, True
    for lazy in _lazy_ones(value):
        left -= lazy.size()
        if left < 0:
            at_once = False
            break
    return _copy(value, device, {}, at_once=at_once)  # type: ignore[no-any-return]  # same type as value


def _lazy_ones(value: Any) -> Iterator[Lazy]:
    """The lazy mappings in ``value``, each once for every place where it stands."""
    if isinstance(value, Lazy):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from _lazy_ones(getattr(value, f.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _lazy_ones(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _lazy_ones(item)


def _copy(value: Any, device: torch.device | str, copies: dict[int, Any], *, at_once: bool) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().to(device, copy=True)
        return copies[id(value)]
    if isinstance(value, Lazy):
        if id(value) not in copies:
            copies[id(value)] = (
                {name: t.detach().to(device, copy=True) for name, t in value.items()}
                if at_once
                else derive(value, lambda _, t: t.detach().to(device, copy=True))
            )
        return copies[id(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: _copy(getattr(value, f.name), device, copies, at_once=at_once)
            for f in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return {name: _copy(item, device, copies, at_once=at_once) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_copy(item, device, copies, at_once=at_once) for item in value)
    return value

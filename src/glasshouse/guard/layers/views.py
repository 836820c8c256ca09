"""What the forward pass takes a tensor with one axis for: a flat vector may hold whole matrices.

Biases, scales and positional vectors are used as they are. Where the forward pass views such a tensor as a
matrix, or takes it apart, every piece is a tensor of its own, with rows of its own. Which pieces there are is
seen in one pass on two examples, by the memory that the operations read. Where numbers change places before
they are used as several rows (an index, a Fourier transform, ...), nobody knows the rows: then the tensor
counts as not looked at.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glasshouse.guard.layers.trace import left_as_it_was

_PIECES: Final = 1024  # of one tensor that are looked at
_SCALED: Final = "aten::_weight_norm_interface"  # rows times lengths
_MOVED: Final = "its numbers change places before they are used"

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Uses:
    """How a tensor with one axis is used.

    Attributes:
        pieces: first number and shape of each piece, where the tensor is not used as it is.
        unclear: why nobody knows what it is used for; empty: that is known.
    """

    pieces: tuple[tuple[int, Shape], ...] = ()
    unclear: str = ""


def uses_of(
    goals: Callable[[], Tensor], model: nn.Module, names: Iterable[str], data: Sequence[Tensor]
) -> dict[str, Uses]:
    """How the tensors ``names`` that have one axis of more than one number are used, by name.

    Args:
        goals: runs the model on ``data``.
        model: whose parameters the names are.
        names: all others are left out.
        data: what the pass gets; an operation on it, or on what comes of it, uses a tensor.
    """
    roots = {name: model.get_parameter(name).detach() for name in names}
    roots = {name: p for name, p in roots.items() if max(p.shape, default=1) == p.numel() > 1}
    if not roots:
        return {}
    watch = _Watch(roots, data)
    try:
        with left_as_it_was(model), torch.no_grad(), watch:
            goals()
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return dict.fromkeys(roots, Uses(unclear=reason))
    return {name: watch.uses(name) for name in roots}


@final
@dataclass(frozen=True, kw_only=True)
class _Origin:
    """Of the numbers in one piece of memory.

    Attributes:
        name: of the tensor they are, or are made of.
        shift: where the tensor's first number would be; None: numbers have changed places.
        known: sizes of the axes of a piece that was only rearranged, sorted.
        period: after how many numbers the tensor is repeated, as where it is added to a constant of a row per
            example (the first state of a recurrent layer).
    """

    name: str
    shift: int | None = 0
    known: Shape = ()
    period: int = 0


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's modes have no types
    """Sees each operation with the memory that it reads."""

    def __init__(self, roots: Mapping[str, Tensor], data: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes have no types
        self._sizes = {name: p.numel() for name, p in roots.items()}
        self._kept: list[Tensor] = [*roots.values(), *data]  # memory in use is not given out again
        self._origins: dict[int, dict[str, _Origin]] = {}
        for name, p in roots.items():
            self._origins.setdefault(_memory(p), {})[name] = _Origin(name=name, shift=_first(p))
        self._data = {_memory(t) for t in data}
        self._pieces: dict[str, set[tuple[int, Shape]]] = {name: set() for name in roots}
        self._unclear: set[str] = set()

    def uses(self, name: str) -> Uses:
        pieces = self._pieces[name]
        if name in self._unclear or len(pieces) > _PIECES:
            return Uses(unclear=_MOVED if name in self._unclear else f"{len(pieces)} pieces of it are used")
        return Uses(pieces=tuple(sorted(pieces)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs)), _tensors(out)
        memory = {_memory(t) for t in given}
        if not func._schema.is_mutable and made and all(_memory(t) in memory for t in made):
            return out  # another view
        self._kept += made
        for t in given:
            for origin in self._origins.get(_memory(t), {}).values():
                self._used(t, origin)
        if memory & self._data:
            self._data |= {_memory(t) for t in made}
        else:
            for t, new in product(given, made):
                for origin in list(self._origins.get(_memory(t), {}).values()):
                    if _memory(new) != _memory(t):
                        self._derive(origin, t, new, func, is_added=t is args[0])
        return out

    def _used(self, t: Tensor, origin: _Origin) -> None:
        wide = [(stride, size) for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]
        period = origin.period or t.untyped_storage().nbytes() + 1
        wide = sorted((axis for axis in wide if axis[0] % period), reverse=True)
        shape = tuple(size for _, size in wide)
        if len(shape) <= 1 and math.prod(shape) == self._sizes[origin.name]:
            return  # as it is
        if origin.shift is None:
            if len(shape) > 1 and tuple(sorted(shape)) != origin.known:
                self._unclear.add(origin.name)
        elif all(stride == math.prod(shape[at + 1 :]) for at, (stride, _) in enumerate(wide)):
            self._pieces[origin.name].add(((_first(t) - origin.shift) % period, shape))
        else:
            self._unclear.add(origin.name)

    def _derive(self, origin: _Origin, t: Tensor, new: Tensor, func: Any, *, is_added: bool) -> None:
        """Numbers made of a tensor's alone are the tensor's."""
        if new.numel() == 1:
            return
        name, pointwise = origin.name, torch.Tag.pointwise in func.tags or func.name() == _SCALED
        start = None if origin.shift is None else _first(t) - origin.shift
        same = pointwise and _wide(t) == _wide(new)
        laid_out = new.is_contiguous() and t.is_contiguous() and not origin.period
        if same and laid_out and start is not None:
            made = _Origin(name=name, shift=_first(new) - start)
        elif start == 0 and is_added and func.name() == "aten::addmm" and t.ndim == 1:
            made = _Origin(name=name, shift=_first(new), period=t.numel())
        else:
            made = _Origin(name=name, shift=None, known=tuple(sorted(_wide(new))) if pointwise else ())
        known = self._origins.setdefault(_memory(new), {})
        if known.setdefault(name, made) != made:  # several parts in one piece of memory
            known[name] = _Origin(name=name, shift=None)


def _wide(t: Tensor) -> Shape:
    return tuple(size for size in t.shape if size > 1)


def _first(t: Tensor) -> int:
    """Where its first number is in its memory."""
    return int(t.storage_offset())


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]

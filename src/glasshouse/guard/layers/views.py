"""What the forward pass takes a tensor for: its rows may be those of another matrix made of its numbers.

A server may view a parameter in a shape of its own, turn its axes first, take it apart, or let its numbers
change places. One pass on two examples shows by the memory that the operations read which number of a tensor
each of them gets. Where that is the tensor in the order of its own axes, its axes say where rows are; every
other arrangement that meets data is a tensor of its own, a piece. Operations that meet no data make other
numbers of the tensor: if they only move them they are run again on the numbers' places, and if they mix them
along its axes, the axes of what they make count. Where neither is known, the tensor is not looked at.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from glasshouse.guard.layers.trace import left_as_it_was

_PIECES: Final = 1024  # of one tensor that are looked at
_WAYS: Final = 8  # in which the numbers of one piece of memory are made of a tensor
_SCALED: Final = "aten::_weight_norm_interface"  # rows times lengths
_MOVED: Final = "its numbers change places before they are used"

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Uses:
    """How a tensor is used.

    Attributes:
        pieces: the places in the tensor, counted from 0, of the numbers of each piece, in the piece's shape.
        is_own: it is also used in the order of its own axes, or not at all.
        unclear: why nobody knows what it is used for; empty: that is known.
    """

    pieces: tuple[Tensor, ...] = ()
    is_own: bool = True
    unclear: str = ""


def uses_of(
    goals: Callable[[], Tensor], model: nn.Module, names: Iterable[str], data: Sequence[Tensor]
) -> dict[str, Uses]:
    """How the tensors ``names`` of more than one number are used, by name.

    Args:
        goals: runs the model on ``data``.
        model: whose parameters the names are.
        names: all others are left out.
        data: what the pass gets; an operation on it, or on what comes of it, uses a tensor.
    """
    roots = {name: model.get_parameter(name).detach() for name in names}
    roots = {name: p for name, p in roots.items() if p.numel() > 1}
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
@dataclass(frozen=True, kw_only=True, eq=False)
class _Origin:
    """Of the numbers in one piece of memory.

    Attributes:
        name: of the tensor that they are made of.
        shape: of that tensor, or of what was mixed of it.
        places: for each number in memory its place in that, counted from 1; 0: it is none of its numbers.
            None: nobody knows.
        is_mixed: the numbers are not the tensor's own.
    """

    name: str
    shape: Shape = ()
    places: Tensor | None = None
    is_mixed: bool = False

    def seen_by(self, t: Tensor) -> Tensor:
        """The places of the numbers that ``t`` shows of the memory."""
        assert self.places is not None
        return self.places.as_strided(t.shape, t.stride(), t.storage_offset())

    def is_like(self, other: "_Origin") -> bool:
        """Whether both say the same."""
        if (self.name, self.shape, self.is_mixed) != (other.name, other.shape, other.is_mixed):
            return False
        if self.places is None or other.places is None:
            return self.places is other.places
        return torch.equal(self.places, other.places)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's modes have no types
    """Sees each operation with the memory that it reads."""

    def __init__(self, roots: Mapping[str, Tensor], data: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes have no types
        self._roots = roots
        self._kept: list[Tensor] = [*roots.values(), *data]  # memory in use is not given out again
        self._origins: dict[int, list[_Origin]] = {}
        self._data = {_memory(t) for t in data}
        self._pieces: dict[str, list[Tensor]] = {name: [] for name in roots}
        self._own: set[str] = set()
        self._unclear: set[str] = set()
        for name, p in roots.items():
            self._put(p, _Origin(name=name, shape=tuple(p.shape)), _numbered(p.shape))

    def uses(self, name: str) -> Uses:
        pieces = self._pieces[name]
        if name in self._unclear or len(pieces) > _PIECES:
            return Uses(unclear=_MOVED if name in self._unclear else f"{len(pieces)} pieces of it are used")
        ordered = sorted((p - 1 for p in pieces), key=lambda p: int(p.min()))
        return Uses(pieces=tuple(ordered), is_own=name in self._own or not pieces)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs)), _tensors(out)
        memory = {_memory(t) for t in given}
        if not func._schema.is_mutable and made and all(_memory(t) in memory for t in made):
            return out  # another view
        self._kept += made
        sources = [(t, origin) for t in given for origin in self._origins.get(_memory(t), ())]
        if memory & self._data:
            self._data |= {_memory(t) for t in made}
            for t, origin in sources:
                self._used(t, origin)
        else:
            for t, origin in sources:
                for at, new in enumerate(made):
                    self._derive(origin, t, new, func, partial(_rerun, func, args, kwargs, t, at=at))
        return out

    def _used(self, t: Tensor, origin: _Origin) -> None:
        """Data meet what ``t`` shows of a tensor."""
        if origin.places is None:
            if len(_wide(t)) > 1:
                self._unclear.add(origin.name)
            return
        places = _arranged(origin.seen_by(t))
        own = places[places > 0]
        is_whole = places.numel() >= math.prod(origin.shape) or len(own) < places.numel()  # a triangle, too
        if _keeps_axes(places, origin.shape) and (origin.is_mixed or is_whole):
            self._own |= set() if origin.is_mixed else {origin.name}
            return
        if origin.is_mixed:
            if not _keeps_axes(_inverse(places, origin.shape), tuple(places.shape)):
                self._unclear.add(origin.name)
        elif len(own) < places.numel() or int(own.bincount().max()) > 1:
            self._unclear.add(origin.name)
        elif places.ndim > 1 or len(own) < math.prod(origin.shape):
            known = self._pieces[origin.name]
            if not any(torch.equal(places, other) for other in known):
                known.append(places)

    def _derive(
        self, origin: _Origin, t: Tensor, new: Tensor, func: Any, rerun: Callable[[Tensor], Tensor | None]
    ) -> None:
        """What is made without data of a tensor's numbers."""
        if new.numel() == 1 or _memory(new) == _memory(t):
            return
        if origin.places is not None:
            seen = origin.seen_by(t)
            if not seen.any():
                return
            if torch.Tag.pointwise in func.tags or func.name() == _SCALED:
                found = seen.broadcast_to(new.shape) if _fits(seen, new) else None
            else:
                found = _moved(seen, new, rerun)
            if found is not None:
                self._put(new, origin, found)
                return
            # A mixture keeps apart what the axes of the tensor count, and has axes of its own.
            arranged = _arranged(seen)
            is_vector = arranged.numel() <= max(
                origin.shape
            )  # lengths of rows, a diagonal: no matrix is in it
            if len(_wide(self._roots[origin.name])) > 1 and (arranged.ndim > 1 or is_vector):
                self._used(t, origin)
                mixed = _Origin(name=origin.name, shape=tuple(new.shape), is_mixed=True)
                self._put(new, mixed, _numbered(new.shape))
                return
        self._add(new, _Origin(name=origin.name))

    def _put(self, t: Tensor, origin: _Origin, places: Tensor) -> None:
        """Note the places of the numbers of ``t``, beside those of the rest of its memory."""
        count = t.untyped_storage().nbytes() // t.element_size()
        whole = torch.zeros(count, dtype=torch.long)
        whole.as_strided(t.shape, t.stride(), t.storage_offset()).copy_(places)
        known = self._origins.setdefault(_memory(t), [])
        for number, other in enumerate(known):
            same = (other.name, other.shape, other.is_mixed) == (origin.name, origin.shape, origin.is_mixed)
            if same and other.places is not None and not (other.places * whole).any():
                known[number] = replace(other, places=other.places + whole)
                return
        self._add(t, replace(origin, places=whole))

    def _add(self, t: Tensor, origin: _Origin) -> None:
        known = self._origins.setdefault(_memory(t), [])
        if len(known) >= _WAYS:
            self._unclear.add(origin.name)
        elif not any(origin.is_like(other) for other in known):
            known.append(origin)


def _moved(seen: Tensor, new: Tensor, rerun: Callable[[Tensor], Tensor | None]) -> Tensor | None:
    """The places of the numbers of ``new`` if it has those of ``seen`` in another order; else None."""
    count = int(seen.max())
    order = 1 + torch.randperm(count, generator=torch.Generator().manual_seed(0))
    order = torch.cat([torch.zeros(1, dtype=torch.long), order])
    first, other = rerun(seen), rerun(order[seen])
    if first is None or other is None or first.is_complex() or first.shape != new.shape:
        return None
    if torch.equal(first, other) and torch.equal(first, new.to(first)):
        return torch.zeros_like(first, dtype=torch.long)  # it has the tensor's form, and none of its numbers
    places = first.nan_to_num(-1, -1, -1).round().long()
    known = bool((places == first).all()) and bool(((places >= 0) & (places <= count)).all())
    return places if known and places.any() and torch.equal(order[places], other.long()) else None


def _rerun(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, t: Tensor, codes: Tensor, *, at: int
) -> Tensor | None:
    """An operation's result number ``at`` with ``codes`` in place of ``t``, and zeros in place of others."""

    def put(leaf: Any) -> Any:
        if leaf is t:
            return codes.double()
        is_number = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return torch.zeros_like(leaf, dtype=torch.double) if is_number else leaf

    named = {key: put(value) for key, value in (kwargs or {}).items() if key != "dtype"}
    try:
        return _tensors(func(*tree_map(put, args), **named))[at]
    except (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError):
        return None


def _arranged(places: Tensor) -> Tensor:
    """Without axes along which nothing changes, and parts without any number; axes of large steps first."""
    for axis in reversed(range(places.ndim)):
        there = places.movedim(axis, 0).reshape(places.shape[axis], -1).any(1)
        if not there.all():
            places = places.index_select(axis, there.nonzero()[:, 0])
        if bool((places == places.narrow(axis, 0, min(1, places.shape[axis]))).all()):
            places = places.select(axis, 0) if places.shape[axis] else places.sum(axis)
    steps = [int((places.narrow(a, 1, 1) - places.narrow(a, 0, 1)).abs().max()) for a in range(places.ndim)]
    return places.permute(sorted(range(places.ndim), key=lambda axis: -steps[axis]))


def _keeps_axes(places: Tensor, shape: Shape) -> bool:
    """Whether each axis of a tensor of ``shape`` runs along one axis of ``places``, or along none."""
    rest, missing = places - 1, places == 0
    for size in reversed(shape):
        here, rest = rest % size, rest // size
        if size > 1 and not any(_along(here, missing, axis) for axis in range(places.ndim)):
            return False
    return True


def _along(here: Tensor, missing: Tensor, axis: int) -> bool:
    """Whether numbers change along one axis only, where they are not missing."""
    high = here.masked_fill(missing, -1).movedim(axis, 0).reshape(here.shape[axis], -1).amax(1)
    low = here.masked_fill(missing, 2**62).movedim(axis, 0).reshape(here.shape[axis], -1).amin(1)
    return bool(((high == low) | (high < 0)).all())


def _inverse(places: Tensor, shape: Shape) -> Tensor:
    """The place in ``places``, counted from 1, of each number of a tensor of ``shape``; 0: it has none."""
    found = torch.zeros(math.prod(shape) + 1, dtype=torch.long)
    found[places.flatten()] = 1 + torch.arange(places.numel())
    return found[1:].view(shape)


def _numbered(shape: Shape) -> Tensor:
    return 1 + torch.arange(math.prod(shape)).view(shape)


def _fits(seen: Tensor, new: Tensor) -> bool:
    pairs = zip(reversed(seen.shape), reversed(new.shape), strict=False)
    return seen.ndim <= new.ndim and all(one in (1, other) for one, other in pairs)


def _wide(t: Tensor) -> Shape:
    return tuple(size for size in t.shape if size > 1)


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]

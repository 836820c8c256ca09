"""Networks passed as objects, stored in this process under a name that an architecture can use.

An :class:`~glasshouse.wire.Architecture` names a factory, so that any process can build the network. A
network passed as an object has no factory: it is stored here, and its name resolves to a factory of copies.
In another process the name raises an error.
"""

import copy
import inspect
import re
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from types import CellType, CodeType
from typing import Final

import torch
from torch import nn

from glasshouse import cache
from glasshouse.errors import BadValue
from glasshouse.models.adapt import AdaptedNetwork, adapt
from glasshouse.models.base import SplitModel
from glasshouse.models.handed_over import check_handed_over, copied

PREFIX: Final = f"{__name__}:"
"""Prefix of the names of these networks."""

_PLAIN: Final = bool | int | float | str | None
_KNOWN: Final = ("torch", "glasshouse")
"""Packages whose versions a run records, so that their code need not tell networks apart."""
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NAME: Final = re.compile(r"\w+_[0-9a-f]{12}")
_NETWORKS: dict[str, nn.Module] = {}


def keep(net: nn.Module) -> str:
    """Store a copy of ``net`` and return its name for use in an architecture.

    The name contains a hash of the layers, their settings, the weights and the code of the classes: the same
    network has the same name in every session, and a changed one has another, also one that was changed in a
    notebook.

    Raises:
        BadValue: ``net`` cannot be copied or trained (:mod:`glasshouse.models.handed_over`), or has no linear
            layer at its end; see :func:`glasshouse.models.adapt.adapt`.

    Examples:
        >>> keep(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))).startswith(PREFIX + "Sequential_")
        True
    """
    check_handed_over(net)
    model = copied(net).cpu()
    own = model.wrapped_network if isinstance(model, AdaptedNetwork) else model
    kind = type(own)
    content = [dict(model.state_dict()), repr(model), _source(kind), _behaviour(model, own)]
    model = model if isinstance(model, SplitModel) else adapt(model)
    name = f"{kind.__name__}_{cache.digest(content)[:12]}"
    _NETWORKS[name] = model
    return PREFIX + name


def __getattr__(name: str) -> Callable[[tuple[int, int, int], int], nn.Module]:
    """The factory of the network stored as ``name``; it returns copies with the stored weights."""
    if not _NAME.fullmatch(name):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if name not in _NETWORKS:
        raise BadValue(
            f"network '{name}'",
            needs="the process in which it was handed over as an object",
            got="another process",
            fix="hand it over again, or write a function that builds it into a file: name = 'file:function'",
        )

    def factory(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
        del input_shape, classes  # fixed by the stored network; the caller checks that it fits
        return copy.deepcopy(_NETWORKS[name])

    return factory


def _behaviour(*roots: nn.Module) -> list[str]:
    """What else tells networks of the same layers apart: plain settings, and code that is not torch's.

    So do tensors that no state holds, hooks, what functions enclose, and which parameters are frozen.
    """
    told = dict[str, None]()
    every = dict.fromkeys(chain.from_iterable(root.modules() for root in roots))
    for place, module in enumerate(every):
        for name, value in vars(module).items():
            if name in _HOOKS:
                told |= {f"{name} {_value(one)}": None for one in value.values()}
            elif isinstance(value, _PLAIN) and name != "training":
                told[f"{name} = {value!r}"] = None
            elif inspect.isfunction(value) or isinstance(value, torch.Tensor | partial):
                told[f"{name} = {_value(value)}"] = None
        own = {name: t for name, t in module._buffers.items() if t is not None}  # also those of no state
        told |= {f"buffer {name} {_value(t)}": None for name, t in own.items()}
        fixed = [name for name, p in module._parameters.items() if p is not None and not p.requires_grad]
        told |= {f"fixed {name} of number {place}": None for name in fixed}
        for kind in type(module).__mro__:
            if not kind.__module__.startswith(_KNOWN):
                told |= {_told(one.__code__): None for one in vars(kind).values() if inspect.isfunction(one)}
    return list(told)


def _value(value: object) -> str:
    """What stands in a network beside its layers, as far as it can be told."""
    if isinstance(value, torch.Tensor):
        return cache.digest(value)
    if isinstance(value, partial):
        return f"{_value(value.func)} {[_value(one) for one in (*value.args, *value.keywords.items())]}"
    if isinstance(value, tuple | list):
        return str([_value(one) for one in value])
    if not inspect.isfunction(value):
        return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__
    enclosed = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    return f"{_told(value.__code__)} {[_value(one) for one in (*(value.__defaults__ or ()), *enclosed)]}"


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where the name was not bound yet
    except ValueError:
        return False
    return True


def _told(code: CodeType) -> str:
    """A function's code in words, without the places where it was written."""
    inner = [_told(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return " ".join([code.co_name, code.co_code.hex(), *code.co_names, *inner])


def _constant(value: object) -> str:
    """A constant of code; sets have another order in every process."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _source(kind: type) -> str:
    """The text of the file that defines ``kind``; empty if there is none, as in a notebook."""
    try:
        return Path(inspect.getfile(kind)).read_text(encoding="utf-8")
    except (OSError, TypeError):
        return ""

"""Networks that exist in this process alone, under a name that an architecture can have.

An :class:`~glasshouse.wire.Architecture` names what builds a network, so that any process can build it. A
network that a user hands over as an object has no such name: it is kept here, and its name leads to copies of
it. Another process does not have it and says so.
"""

import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from torch import nn

from glasshouse import cache
from glasshouse.errors import BadValue
from glasshouse.models.adapt import AdaptedNetwork, adapt
from glasshouse.models.base import SplitModel

__all__ = ["PREFIX", "keep"]

PREFIX: Final = f"{__name__}:"
"""How the names of these networks begin."""

_NAME: Final = re.compile(r"\w+_[0-9a-f]{12}")
_NETWORKS: dict[str, nn.Module] = {}


def keep(net: nn.Module) -> str:
    """Keep a copy of ``net`` and return the name that an architecture gives it.

    The name holds a hash of the layers, the weights and the source file of the class: the same network has
    the same name in every session, and one that was changed has another.

    Raises:
        BadValue: ``net`` has no linear layer at its end; see :func:`glasshouse.models.adapt.adapt`.

    Examples:
        >>> keep(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))).startswith(PREFIX + "Sequential_")
        True
    """
    model = copy.deepcopy(net).cpu()
    kind = type(model.net if isinstance(model, AdaptedNetwork) else model)
    content = [dict(model.state_dict()), repr(model), _source(kind)]
    model = model if isinstance(model, SplitModel) else adapt(model)
    name = f"{kind.__name__}_{cache.digest(content)[:12]}"
    _NETWORKS[name] = model
    return PREFIX + name


def __getattr__(name: str) -> Callable[[tuple[int, int, int], int], nn.Module]:
    """The factory of the network kept as ``name``; its copies have the weights that were handed over."""
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
        del input_shape, classes  # the network is what it is; whether it fits is checked by whoever builds it
        return copy.deepcopy(_NETWORKS[name])

    return factory


def _source(kind: type) -> str:
    """The text of the file that defines ``kind``; empty where there is none, as in a notebook."""
    try:
        return Path(inspect.getfile(kind)).read_text(encoding="utf-8")
    except (OSError, TypeError):
        return ""

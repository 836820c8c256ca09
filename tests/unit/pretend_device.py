"""A second device where there is none: values lie on the CPU, but mixing them with the CPU's is an error.

Tensors on it say that their device is ``meta``. As on a GPU an operation takes tensors of one device (single
numbers, and indices from the CPU, excepted), a CPU generator draws nothing there, and ``numpy()`` needs
``cpu()`` first. A ``narrow`` device knows no float64, as MPS.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
WIDE = torch.float64
_rules = {"narrow": False}
_ACROSS = ("aten::_to_copy", "aten::copy_", "aten::set_data")
_INDEXED = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")


class Elsewhere(torch.Tensor):
    """A tensor that claims to be on ``DEVICE``; ``here``: its values."""

    @staticmethod
    def __new__(cls, here):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
            requires_grad=here.requires_grad,
        )

    def __init__(self, here):
        self.here = here

    def tolist(self):
        return self.detach().cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Pretending(TorchDispatchMode):
    def __init__(self, *, narrow):
        super().__init__()
        _rules["narrow"] = narrow

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    name = func._schema.name
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    judged = [args[0]] if name in _INDEXED else tensors
    away = any(isinstance(x, Elsewhere) for x in judged)
    if name not in _ACROSS and away and not all(isinstance(x, Elsewhere) for x in judged if x.ndim):
        raise RuntimeError(f"{name}: tensors on the CPU and on the other device")
    if name in _INDEXED and not away and any(isinstance(x, Elsewhere) for x in tensors):
        raise RuntimeError(f"{name}: an index on another device than the CPU's tensor")
    expected = kwargs.get("device")
    if expected is not None:
        away = torch.device(expected).type == DEVICE.type
        kwargs = {**kwargs, "device": "cpu"}
    if away and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name}: a generator of the CPU on another device")
    out = func(*tree_map(_values, args), **tree_map(_values, kwargs))
    if not away:
        return out
    if _rules["narrow"] and any(isinstance(x, torch.Tensor) and x.dtype == WIDE for x in tree_leaves(out)):
        raise TypeError("the framework of this device doesn't support float64")
    wrapped = tree_map(lambda x: Elsewhere(x) if isinstance(x, torch.Tensor) else x, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _values(x):
    return x.here if isinstance(x, Elsewhere) else x


@contextmanager
def pretended(monkeypatch, *, narrow=False) -> Iterator[torch.device]:
    """The device, as long as this lasts; autocast does nothing there."""
    real = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *a, **how: real("cpu" if kind == "meta" else kind, *a, **how)
    )
    with _Pretending(narrow=narrow):
        yield DEVICE

"""Conversion of stored tensors (sparse, quantised, complex, of any precision) to dense real ones."""

from collections.abc import Mapping

from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.tensors import derive


def dense(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """``tensors`` (a state_dict) as strided real ones that ``double()`` can convert to float64.

    Sparse tensors become dense, quantised ones are dequantised, and of complex ones the real part is taken,
    which is what a real parameter would keep. All others are unchanged, integers included.

    Raises:
        BadValue: a tensor has no values (device ``meta``), is nested, or is of a type without arithmetic.

    Examples:
        >>> dense({"a": Tensor([[1, 0]]).to_sparse()})["a"].layout
        torch.strided
    """
    return derive(tensors, lambda name, t: _dense(name, t.detach()))


def _dense(name: str, stored: Tensor) -> Tensor:
    if stored.is_meta or stored.is_nested:
        raise _unreadable(name, "one without values" if stored.is_meta else "a nested tensor")
    try:
        t = stored.dequantize() if stored.is_quantized else stored.to_dense()
        t = t.real if t.is_complex() else t
        t.flatten()[:1].double()
    except (RuntimeError, TypeError) as error:
        kind = f"{stored.dtype}, {stored.layout}".replace("torch.", "")
        raise _unreadable(name, f"{kind} ({str(error).splitlines()[0]})") from error
    return t


def _unreadable(name: str, got: str) -> BadValue:
    return BadValue(
        f"tensor '{name}' of a received model",
        needs="numbers that can be turned into float64",
        got=got,
        fix="refuse the model, or ask for one in float32, float16 or bfloat16",
    )

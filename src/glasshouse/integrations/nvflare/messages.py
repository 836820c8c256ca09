"""Conversion of FLARE's messages to plain values.

A message is a ``Shareable``: a dictionary with headers, usually around a ``DXO`` of one kind with data and
meta. A ``COLLECTION`` holds further DXOs by name.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.integrations.nvflare.names import (
    CONTENT,
    DXO,
    HEADERS,
    PEER,
    STEPS,
    AppConstants,
    DataKind,
    FLContext,
    ReturnCode,
    Shareable,
    fobs,
    fobs_registration,
    from_shareable,
)
from glasshouse.integrations.nvflare.statistics import Stated, stated_in
from glasshouse.outside import limits
from glasshouse.wire import Kind, Value

WEIGHTS: Final[Mapping[str, Kind]] = {
    DataKind.WEIGHTS.value: "parameters",
    DataKind.WEIGHT_DIFF.value: "delta",
}
"""Kinds whose data are a model's tensors, and what they are."""
_DEEPEST: Final = 8
_LAID: Final = (HEADERS, CONTENT)
"""Keys of a message that its other parts are read from."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """One message taken apart.

    Attributes:
        kind: of the data; empty: no DXO.
        code: return code; ``OK`` of an answer that is none of a failure.
        arrays: tensors by name.
        values: numbers and texts of data and meta, by dotted names.
        payloads: bytes in data and meta, by dotted names.
        headers: numbers and texts of the headers, by dotted names.
        round: from 0, as stated; None: not stated.
        steps: stated number of local steps; None: not stated.
        statistics: numbers about columns, by the data set that they are about.
    """

    kind: str
    code: str
    arrays: Mapping[str, NDArray[Any]]
    values: Mapping[str, Value]
    payloads: Mapping[str, bytes]
    headers: Mapping[str, Value]
    round: int | None
    steps: int | None
    statistics: Stated = dataclasses.field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """The arrays as tensors of their own memory."""
        return {name: torch.from_numpy(np.array(array, order="C")) for name, array in self.arrays.items()}

    def digest(self) -> str:
        """SHA-256 of names, types, shapes and values of the arrays."""
        digest = hashlib.sha256()
        for name, array in self.arrays.items():
            digest.update(f"{len(name)}:{name}{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


def take_apart(message: Shareable) -> Parts:
    """Read everything that a message says; what is no number, text, tensor or bytes is named by its type."""
    headers = dict(message.get(HEADERS, {}))
    current = headers.get(AppConstants.CURRENT_ROUND)
    dxo = dxo_of(message)
    content = _content(message, dxo)
    leaves = dict(_leaves(content))
    arrays = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, np.ndarray)}
    kind = "" if dxo is None else kind_of(dxo)
    model = kind in WEIGHTS
    steps = None if dxo is None else dxo.meta.get(STEPS)
    values = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, np.ndarray | bytes)}
    return Parts(
        kind=kind,
        code=str(message.get_return_code(ReturnCode.OK)),
        # The names of a model's tensors are those of its ``state_dict``.
        arrays={name.removeprefix("data."): a for name, a in arrays.items()} if model else arrays,
        values=_plain_values(values),
        payloads={name: leaf for name, leaf in leaves.items() if isinstance(leaf, bytes)},
        headers=_plain_values(dict(_leaves({k: v for k, v in headers.items() if k != PEER}))),
        round=current if isinstance(current, int) and not isinstance(current, bool) else None,
        steps=int(steps) if isinstance(steps, int | float) and steps > 0 else None,
        statistics=stated_in(dxo, content.get("data", {})),
    )


def dxo_of(message: Shareable) -> DXO | None:
    """The DXO of a message; None: there is none."""
    try:
        return from_shareable(message)
    except ValueError:
        return None


def kind_of(dxo: DXO) -> str:
    """The kind of a DXO as a word, whether it is one of FLARE's constants or the text of one."""
    return str(getattr(dxo.data_kind, "value", dxo.data_kind))


def client_of(context: FLContext) -> str:
    """Name of the client on the other side; empty: unknown."""
    peer = context.get_peer_context()
    return "" if peer is None else str(peer.get_identity_name(default=""))


def _content(message: Shareable, dxo: DXO | None) -> dict[str, Any]:
    """Data and meta; of a message without a DXO, all but its headers."""
    if dxo is None:
        return {str(key): value for key, value in message.items() if key not in _LAID}
    data = dict(dxo.data)
    if dxo.data_kind == DataKind.STATISTICS:
        data = {key: _statistics(value) for key, value in data.items()}
    return {"data": data, **({"meta": dict(dxo.meta)} if dxo.meta else {})}


def _statistics(value: object) -> object:
    """The statistics in FLARE's own encoding; what cannot be decoded stays as bytes."""
    if not isinstance(value, bytes):
        return value
    fobs_registration()
    try:
        return fobs.loads(value)
    except (ValueError, TypeError, RuntimeError, LookupError, AttributeError):
        return value


def _leaves(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Every leaf below ``value`` with its dotted name; nothing is left out silently."""
    if isinstance(value, DXO):
        value = {"kind": kind_of(value), "data": value.data, "meta": value.meta}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    # A stranger's nesting may be deep: beyond a depth it is named and not followed.
    nested: list[tuple[object, object]]
    if isinstance(value, Mapping):
        nested = list(value.items())
    elif isinstance(value, list | tuple):
        nested = list(enumerate(value))
    else:
        yield name, _leaf(value)
        return
    if depth == _DEEPEST:
        yield name, f"{type(value).__name__} of {len(nested)}, too deep"
        return
    for key, inner in nested:
        yield from _leaves(inner, f"{name}.{key}" if name else str(key), depth + 1)


def _leaf(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if value is None or isinstance(value, np.ndarray | bytes | bool | int | float | str):
        return value
    return f"<{type(value).__name__}>"


def _plain_values(values: Mapping[str, object]) -> dict[str, Value]:
    """The first values, as the transcript stores them."""
    return {name[: limits.TEXT]: _plain(value) for name, value in list(values.items())[: limits.ARGUMENTS]}


def _plain(value: object) -> Value:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return f"{value.size} numbers" if isinstance(value, np.ndarray) else str(value)[: limits.TEXT]

"""Arrays of other frameworks as torch lays out weights: by name, kernels with their outputs first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from torch import Tensor

from glasshouse.errors import BadValue

_ORDERS: Final[Mapping[int, tuple[int, ...]]] = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}
"""Axes of kernels (..., in, out) as torch has them, (out, in, ...)."""


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the arrays that an app of another framework sends belong in a network of torch.

    Args:
        names: of the network's tensors, in the order in which the app sends its arrays.
        kernels_last: kernels have their outputs last, as in JAX (Flax) and TensorFlow (Keras).

    Examples:
        >>> import torch
        >>> dense = Layout(names=("out.bias", "out.weight"))
        >>> found = dense({"0": torch.zeros(10), "1": torch.zeros(84, 10)})
        >>> {name: tuple(t.shape) for name, t in found.items()}
        {'out.bias': (10,), 'out.weight': (10, 84)}
    """

    names: tuple[str, ...]
    kernels_last: bool = True

    def __call__(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a message by the network's names.

        Raises:
            BadValue: another number of arrays.
        """
        if len(sent) != len(self.names):
            raise BadValue(
                "arrays of an app",
                needs=f"{len(self.names)} of them, as its layout says",
                got=f"{len(sent)}",
                fix="name every array that travels: Layout(names=(...))",
            )
        pairs = zip(self.names, sent.values(), strict=True)
        return {name: self._turned(tensor) for name, tensor in pairs}

    def _turned(self, tensor: Tensor) -> Tensor:
        order = _ORDERS.get(tensor.ndim) if self.kernels_last else None
        return tensor if order is None else tensor.permute(order).contiguous()

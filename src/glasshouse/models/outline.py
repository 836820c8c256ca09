"""The shapes of an architecture's tensors, built on torch's meta device without allocating memory.

For architectures from untrusted files: a width of a million is refused before any memory is allocated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glasshouse.errors import BadFile, GlasshouseError, in_a_line
from glasshouse.models.build import build
from glasshouse.outside import limits
from glasshouse.wire import Architecture


def outline(architecture: Architecture) -> dict[str, Tensor]:
    """Shapes and types of the model's ``state_dict``, as tensors on the meta device.

    Raises:
        BadFile: the model, an activation for a single image, or the number of operations to build it exceeds
            the limits; or its factory does not accept the arguments.
        UnknownName: as :func:`~glasshouse.models.build.build`.
        BadValue: as :func:`~glasshouse.models.build.build`.
    """
    subject = f"model '{architecture.name}' of {architecture.classes:,} classes, {architecture.input_shape}"
    try:
        with torch.device("meta"), _Measured(subject):
            state = dict(build(architecture).state_dict())
    except GlasshouseError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError) as error:
        raise BadFile(
            subject,
            needs="arguments that the model can be built with",
            got=in_a_line(error),
            fix="correct name, input_shape, classes or arguments; --trust-factory if the model is yours and "
            "cannot be built on torch's meta device",
        ) from error
    total = sum(t.numel() for t in state.values())
    if total > limits.NUMBERS():
        raise _too_large(subject, f"{total:,} numbers in all its tensors")
    return state


@final
class _Measured(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Aborts a construction whose tensor sizes or number of operations exceed the limits."""

    def __init__(self, subject: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._subject = subject
        self._operations = 0
        self._most = limits.NUMBERS()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation and check the size of its outputs."""
        self._operations += 1
        if self._operations > limits.OPERATIONS:
            raise _too_large(self._subject, f"more than {limits.OPERATIONS:,} steps to build it")
        out = func(*args, **dict(kwargs or {}))
        largest = max((t.numel() for t in tree_leaves(out) if isinstance(t, Tensor)), default=0)
        if largest > self._most:
            raise _too_large(self._subject, f"a tensor of {largest:,}")
        return out


def _too_large(subject: str, got: str) -> BadFile:
    return BadFile(
        subject,
        needs=f"a model of at most {limits.NUMBERS():,} numbers",
        got=got,
        fix=f"check width, classes and input_shape, or {limits.NUMBERS.advice}",
    )

"""Values that are not finite, which no working model has."""

from collections.abc import Mapping

from torch import Tensor

from glasshouse.guard.parts import flat_parts


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Tensors (weights, biases, statistics) with infinite or NaN values."""
    sentences = []
    for name, t in tensors.items():
        if not t.is_floating_point():
            continue
        parts = (part if t.dtype.itemsize > 1 else part.double() for part in flat_parts(t))
        if number := sum(int((~part.isfinite()).sum()) for part in parts):
            sentences.append(f"{name}: {number} of {t.numel()} values are not finite")
    return sentences

"""Values that are not finite, which no working model has."""

from collections.abc import Mapping

from torch import Tensor


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Tensors (weights, biases, statistics) with infinite or NaN values."""
    sentences = []
    for name, t in tensors.items():
        if not t.is_floating_point():
            continue
        finite = (t if t.dtype.itemsize > 1 else t.double()).isfinite()
        if not bool(finite.all()):
            number = int((~finite).sum())
            sentences.append(f"{name}: {number} of {t.numel()} values are not finite")
    return sentences

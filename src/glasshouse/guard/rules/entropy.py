"""Weight vectors that are too orderly to have been trained, or drawn."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from glasshouse.guard.vectors import Vectors, vectors_of

LEAST = 0.5
"""Normalised entropy below which the paper calls a vector crafted."""


def low_entropy(vectors: Sequence[Vectors], reference: Mapping[str, Tensor] | None) -> list[str]:
    """Layers with vectors below ``LEAST``, or below half of what the same vector has in ``reference``."""
    honest = {(v.layer, v.kind): v.entropies for v in vectors_of(reference)} if reference else {}
    sentences = []
    for v in vectors:
        low = v.entropies < LEAST
        own = honest.get((v.layer, v.kind))
        if own is not None and own.shape == v.entropies.shape:
            low = (v.entropies < LEAST) & (own >= LEAST) | (v.entropies < own / 2)
        if bool(low.any()):
            kernels = f"{int(low.sum())} of {len(low)} kernels"
            what = {"convolution": kernels, "linear": "the weight", "bias": "the bias"}[v.kind]
            sentences.append(
                f"{v.layer}: entropy of {what} is as low as {float(v.entropies.min()):.2g} "
                f"(honest ones in the Maui paper: 0.88 or more)"
            )
    return sentences

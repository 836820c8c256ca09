"""Weight vectors that are too orderly to have been trained, or drawn."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from glasshouse.guard.vectors import Vectors, vectors_of

LEAST = 0.5
"""Normalised entropy below which the paper calls a vector crafted; honest ones are above 0.88."""


def low_entropy(vectors: Sequence[Vectors], reference: Mapping[str, Tensor] | None) -> list[str]:
    """Layers with vectors below ``LEAST``, or below half of what the same vector has in ``reference``."""
    honest = {v.layer: v.entropies for v in vectors_of(reference)} if reference else {}
    found = []
    for v in vectors:
        low = v.entropies < LEAST
        if v.layer in honest and honest[v.layer].shape == v.entropies.shape:
            own = honest[v.layer]
            low = (v.entropies < LEAST) & (own >= LEAST) | (v.entropies < own / 2)
        if bool(low.any()):
            what = f"{int(low.sum())} of {len(low)} kernels" if v.kind == "convolution" else "the weight"
            found.append(
                f"{v.layer}: entropy of {what} is as low as {float(v.entropies.min()):.2g} "
                f"(trained and random ones have at least 0.88)"
            )
    return found

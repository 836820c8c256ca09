"""Weight vectors with too little entropy to be trained or randomly initialised."""

from collections.abc import Sequence

from glasshouse.guard.rules.sparse import most_by_sparsity
from glasshouse.guard.vectors import Vectors

LEAST = 0.5
"""Normalised entropy below which the paper calls a vector crafted."""


def low_entropy(vectors: Sequence[Vectors], reference: Sequence[Vectors] = ()) -> list[str]:
    """Layers with vectors below ``LEAST``, or below half the entropy of the same vector in ``reference``.

    Which kernels of a pruned model lose their entries is random, so the number of kernels below ``LEAST`` is
    compared with that in ``reference``.
    """
    honest = {(v.layer, v.kind): v for v in reference}
    sentences = []
    for v in vectors:
        low = v.entropies < LEAST
        known = honest.get((v.layer, v.kind))
        # Beside an honest model the question is whether entropy is lower than there.
        if known is not None and known.entropies.shape == v.entropies.shape:
            usual = int((known.entropies < LEAST).sum())
            if v.kind == "convolution" and int(low.sum()) <= most_by_sparsity(usual, known.weight):
                continue
            low = v.entropies < known.entropies / 2
        if bool(low.any()):
            kernels = f"{int(low.sum())} of {len(low)} kernels"
            what = {"convolution": kernels, "linear": "the weight", "bias": "the bias"}[v.kind]
            sentences.append(
                f"{v.layer}: entropy of {what} is as low as {float(v.entropies.min()):.2g} "
                f"(honest ones in the Maui paper: 0.88 or more)"
            )
    return sentences

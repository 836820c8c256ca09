"""Convolution kernels that pass an image through untouched, or stop it."""

from collections.abc import Sequence

from glasshouse.guard.vectors import BIN, Vectors


def odd_kernels(vectors: Sequence[Vectors]) -> list[str]:
    """Layers with kernels that are zero everywhere, or everywhere but in one place.

    Of any number of spatial dimensions and entries; a kernel of one entry says nothing.
    """
    sentences = []
    for v in vectors:
        if v.kind != "convolution" or v.weight[:1].numel() < 2:
            continue
        filled = (~(v.weight.double().flatten(1).abs() <= BIN)).sum(1)  # what is not a number is not zero
        for count, words in ((1, "identity kernels (one entry, zeros around it)"), (0, "all-zero kernels")):
            if number := int((filled == count).sum()):
                sentences.append(f"{v.layer}: {number} of {len(filled)} are {words}")
    return sentences

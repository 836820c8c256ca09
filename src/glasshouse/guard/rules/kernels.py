"""Convolution kernels that pass an image through unchanged, or block it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from glasshouse.guard.parts import row_parts
from glasshouse.guard.rules.sparse import most_by_sparsity
from glasshouse.guard.vectors import BIN, Vectors


def odd_kernels(vectors: Sequence[Vectors], reference: Sequence[Vectors] = ()) -> list[str]:
    """Layers with kernels that are zero everywhere, or everywhere except for one entry.

    For any number of spatial dimensions; kernels with a single entry are skipped. Where ``reference`` is
    pruned, as many as its share of zeros makes likely are not reported.
    """
    pruned = {v.layer: v for v in reference if v.kind == "convolution"}
    sentences = []
    for v in vectors:
        if v.kind != "convolution":
            continue
        weight = v.weight
        if weight[:1].numel() < 2:
            continue
        filled = _filled(weight)
        usual = _filled(pruned[v.layer].weight) if v.layer in pruned else None
        for count, words in ((1, "identity kernels (one entry, zeros around it)"), (0, "all-zero kernels")):
            number = int((filled == count).sum())
            if number > (
                0 if usual is None else most_by_sparsity(int((usual == count).sum()), pruned[v.layer].weight)
            ):
                sentences.append(f"{v.layer}: {number} of {len(filled)} are {words}")
    return sentences


def _filled(weight: Tensor) -> Tensor:
    """Number of nonzero entries of each kernel; NaN counts as nonzero."""
    filled, end = torch.empty(len(weight), dtype=torch.int64), 0
    for part in row_parts(weight.flatten(1)):
        begin, end = end, end + len(part)
        filled[begin:end] = (~(part.double().abs() <= BIN)).sum(1)
    return filled

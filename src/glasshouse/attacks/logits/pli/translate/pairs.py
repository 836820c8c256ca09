"""What a translator may learn from: the public images of classes that are not private, in both domains.

Shape letters: n images, C channels, H and W pixels. Pixels in [-1, 1].
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.attacks.logits.material import Material

NEAR: Final = 0.3
"""Share of the pixels on which a shifted image is compared with a clear one."""
AT_ONCE: Final = 2**24
"""Pixel differences held in memory at most, unless a single image has more."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """``shifted`` (n, C, H, W), each with the nearest ``clear`` image of its class; ``every`` clear image."""

    shifted: Tensor
    clear: Tensor
    every: Tensor


def pairs_of(evidence: Material) -> Pairs:
    """Each shifted image with the clear one of the same class whose nearest pixels differ least.

    Half of the pixels may be hidden, so that images are compared on the 30 % of pixels in which they are most
    alike. Where both were made of one photo that is this photo; else the most alike of the class's others.
    """
    inputs, labels = evidence.scaled(evidence.public.inputs), evidence.public.labels
    clear, whose = inputs[: evidence.sensitive], labels[: evidence.sensitive]
    shifted, of = inputs[evidence.sensitive :], labels[evidence.sensitive :]
    usable = (of >= evidence.targets) & torch.isin(of, whose)
    shifted, of = shifted[usable], of[usable]
    partners = torch.empty_like(of)
    for label in set(of.tolist()):
        own, others = (of == label).nonzero().squeeze(1), (whose == label).nonzero().squeeze(1)
        for rows in torch.split(own, max(1, AT_ONCE // clear[others].numel())):
            partners[rows] = others[_nearest(shifted[rows], clear[others])]
    return Pairs(shifted=shifted, clear=clear[partners], every=clear)


def _nearest(shifted: Tensor, clear: Tensor) -> Tensor:
    """For each of ``shifted`` (n, C, H, W) the row of ``clear`` (m, C, H, W) that differs least, (n,)."""
    gaps = (shifted[:, None] - clear[None]).abs().flatten(2)
    return gaps.kthvalue(max(1, int(NEAR * gaps.shape[2])), dim=2).values.argmin(1)

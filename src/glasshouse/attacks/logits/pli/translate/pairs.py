"""Training data of a translator: the public images of classes that are not private, in both domains.

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
"""Maximum number of pixel differences in memory, unless a single image has more."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """``shifted`` (n, C, H, W), each with the nearest ``clear`` image of its class; ``every`` clear image."""

    shifted: Tensor
    clear: Tensor
    every: Tensor


def pairs_of(evidence: Material) -> Pairs:
    """Pair each shifted image with the clear image of the same class whose nearest pixels differ least.

    Half of the pixels may be hidden, so images are compared on the 30 % of pixels with the smallest
    differences. If both domains contain the same photo, it is found; else the most similar one of the class.
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
    """For each of ``shifted`` (n, C, H, W) the index of the nearest of ``clear`` (m, C, H, W), (n,)."""
    gaps = (shifted[:, None] - clear[None]).abs().flatten(2)
    return gaps.kthvalue(max(1, int(NEAR * gaps.shape[2])), dim=2).values.argmin(1)

"""Adaptive matching: estimate the defence's transformation from the update, and apply it to candidates.

Shape letters: R restarts, P parameter tensors.

Source: Li et al. 2022 (GGL), CVPR, section 3.2: match T(g(x)) instead of g(x), with T estimated from the
received update. Where we differ: the kind of defence is not given but detected (by three marks in the
update, below), and added noise is ignored, as its expectation does not change the minimum.

- zeros scattered over a tensor: magnitude pruning; only nonzero entries count;
- columns of the last layer's weight gradient that are zero for every class: Soteria; these columns do not
  count. Dead features look the same, and leaving them out loses nothing;
- several tensors of the same norm, and none of a larger one: clipping per layer at that norm;
- otherwise the norm of the whole update is taken as the bound of a global clip: candidates with a larger
  gradient are scaled down to it. This changes the squared distance, but not the cosine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from glasshouse.privacy.marks import scattered_zeros
from glasshouse.tensors import norm, widen

SCATTERED = 0.05
"""An update counts as pruned above this share of zeros outside all-zero rows and columns."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Adaptation:
    """A transformation of candidates; the default changes nothing.

    Attributes:
        masks: True where a candidate's entry counts, by parameter name: full, or (1, ...) for columns.
        clip: bound of a global clip, or None.
        layer_clip: bound of a clip per tensor, or None.
        shortened: clipped to an unknown bound: candidates are scaled by the best-fitting factor, at most 1.
        restored: tensors that the defence had changed, as they were before; they replace the received ones.
    """

    masks: Mapping[str, Tensor] = field(default_factory=dict)
    clip: float | None = None
    layer_clip: float | None = None
    shortened: bool = False
    restored: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def scales(self) -> bool:
        """Whether :meth:`scale` changes anything."""
        return self.shortened or self.clip is not None or self.layer_clip is not None

    def scale(self, square: Tensor, dot: Tensor) -> Tensor:
        """Factors on candidate gradients: (P, R) or (1, R).

        Args:
            square: squared norms of candidates, (P, R).
            dot: their products with the received tensors, (P, R).
        """
        if self.shortened:
            return (dot.sum(0, keepdim=True) / square.sum(0, keepdim=True).clamp_min(1e-24)).clamp(0.0, 1.0)
        if self.layer_clip is not None:
            return _shrink(square, self.layer_clip)
        if self.clip is not None:
            return _shrink(square.sum(0, keepdim=True), self.clip)
        return square.new_ones(1, 1)


def _shrink(square: Tensor, bound: float) -> Tensor:
    return (bound / square.clamp_min(1e-24).sqrt()).clamp_max(1.0)


def estimate(received: Mapping[str, Tensor], *, last: str) -> Adaptation:
    """Estimate the transformation that was applied to ``received``.

    Args:
        received: the update, by parameter name.
        last: name of the last layer, without ``.weight``.
    """
    masks = _pruning_masks(received)
    columns = received.get(f"{last}.weight")
    if not masks and columns is not None:
        mask = (columns != 0).any(0, keepdim=True)
        if not bool(mask.all()) and bool(mask.any()):
            masks = {f"{last}.weight": mask}
    bound = _common_norm(received)
    return Adaptation(masks=masks, clip=norm(received) if bound is None else None, layer_clip=bound)


def _pruning_masks(received: Mapping[str, Tensor]) -> dict[str, Tensor]:
    matrices = {name: t for name, t in received.items() if t.ndim > 1}
    entries = sum(t.numel() for t in matrices.values())
    zeros = sum(scattered_zeros(t) * t.numel() for t in matrices.values())
    if not entries or zeros / entries < SCATTERED:
        return {}
    return {name: t != 0 for name, t in received.items()}


def _common_norm(received: Mapping[str, Tensor]) -> float | None:
    norms = torch.tensor([float(widen(t).norm()) for t in received.values()])
    top = float(norms.max())
    shared = int((norms > top * (1 - 1e-4)).sum())
    return top if shared >= 2 and shared >= len(norms) / 2 else None

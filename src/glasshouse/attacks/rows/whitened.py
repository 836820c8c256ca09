"""Gradients compared in all their directions, large and small.

A layer's gradient is a sum over rows, G = Σ δ_i x_iᵀ, whose singular values spread over four powers of ten: a
cosine sees the few largest, and rows that are wrong in a category or in a number change the small ones. So
both gradients are multiplied by the inverse roots of G's own spread, (GGᵀ + ε²)^-¼ and (GᵀG + ε²)^-¼, before
their cosine is taken, and every layer counts the same.

Source: the two roots are the preconditioner of Gupta et al. 2018, "Shampoo", arXiv:1802.09568, there of a
step; comparing gradients by them is our own.

Shape letters: O units of a layer, F its entries; any shape (...) before them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

EMPTY: Final = 1e-12
"""Norm of a layer's gradient up to which it says nothing."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Whitened:
    """The gradient that others are compared with.

    Attributes:
        roots: of each layer that is a matrix, what is multiplied from the left (O, O) and the right (F, F).
        target: its whitened gradient by layer, flat.
    """

    roots: Mapping[str, tuple[Tensor, Tensor]]
    target: Mapping[str, Tensor]

    @classmethod
    def of(cls, gradient: Mapping[str, Tensor], *, floor: float) -> "Whitened":
        """Of a gradient by layer.

        Args:
            gradient: by name.
            floor: ε, on a layer's largest singular value: smaller ones are not raised further.
        """
        roots = {
            name: _roots(part.flatten(1), floor)
            for name, part in gradient.items()
            if part.ndim > 1 and part.norm() > EMPTY
        }
        told = {name: part for name, part in gradient.items() if part.norm() > EMPTY}
        return cls(
            roots=roots, target={name: _apply(roots, name, part[None])[0] for name, part in told.items()}
        )

    def distance(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """One minus the cosine, (M,), on average over layers, of gradients (M, ...) by layer.

        Examples:
            >>> own = torch.diag(torch.tensor([1.0, 0.01]))
            >>> other = torch.diag(torch.tensor([1.0, 0.0]))
            >>> torch.cosine_similarity(own.flatten(), other.flatten(), dim=0).item() > 0.9999
            True
            >>> whitened = Whitened.of({"layer": own}, floor=0.01)
            >>> round(whitened.distance({"layer": other[None]}).item(), 2)
            0.18
        """
        apart = [
            1 - torch.nn.functional.cosine_similarity(
                _apply(self.roots, name, gradients[name]), target[None], dim=1
            )
            for name, target in self.target.items()
        ]  # fmt: skip
        return torch.stack(apart).mean(0)


def _roots(matrix: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """(GGᵀ + ε²)^-¼ and (GᵀG + ε²)^-¼ of G, (O, F)."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    low = floor * values[0]
    # What lies outside the span of G is multiplied by the root of ε alone.
    more = (values**2 + low**2) ** -0.25 - low**-0.5
    sides = ((left * more) @ left.T, (right.T * more) @ right)
    first, second = (side + low**-0.5 * torch.eye(len(side)).to(side) for side in sides)
    return first.to(matrix.dtype), second.to(matrix.dtype)


def _apply(roots: Mapping[str, tuple[Tensor, Tensor]], name: str, gradients: Tensor) -> Tensor:
    """Gradients (M, ...) of one layer, whitened where it is a matrix, flat."""
    if name not in roots:
        return gradients.flatten(1)
    left, right = roots[name]
    return (left @ gradients.flatten(2) @ right).flatten(1)

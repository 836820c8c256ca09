"""How like two examples are in another form than their distance sees: inverted, in part, moved, mirrored.

An attack may hold a picture whose every pixel is wrong. Nothing is scored by these likenesses; they only keep
such claims from being called silence.

Shape letters: R candidates (claimed examples), N originals; the shape of one example follows.
"""

from typing import Final

import torch
from torch import Tensor

__all__ = ["correlation", "moved", "part"]

PART: Final = 0.3
"""Share of an example's numbers that must be near for the part to be recognised."""
AT_ONCE: Final = 2**24
"""Numbers that are compared at a time."""


def correlation(candidates: Tensor, originals: Tensor) -> Tensor:
    """Absolute correlation of the numbers, (R, N): 1 up to level, contrast and sign; 0 for constant ones.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0, 3.0]])
        >>> round(float(correlation(5 - 2 * x, x)), 6)
        1.0
    """
    return (_standard(candidates) @ _standard(originals).T).abs()


def part(candidates: Tensor, originals: Tensor) -> Tensor:
    """Minus the absolute difference that ``PART`` of the numbers stay below, (R, N): 0 for an equal part.

    Examples:
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> float(part(torch.tensor([[1.0, 2.0, 9.0, 9.0]]), x))
        -0.0
    """
    left, right = candidates.double().flatten(1), originals.double().flatten(1)
    place = max(1, round(PART * left.shape[1]))
    size = max(1, AT_ONCE // max(1, right.numel()))
    rows = [
        (one[:, None] - right[None]).abs().kthvalue(place, dim=2).values for one in torch.split(left, size)
    ]
    return -torch.cat(rows)


def moved(candidates: Tensor, originals: Tensor) -> Tensor:
    """The largest absolute correlation over all cyclic shifts and mirror images of pictures, (R, N).

    Args:
        candidates: (R, C, H, W).
        originals: (N, C, H, W).

    Examples:
        >>> x = torch.rand(1, 1, 4, 5, generator=torch.Generator().manual_seed(0))
        >>> round(float(moved(x.roll((1, 2), (2, 3)).flip(3), x)), 6)
        1.0
    """
    left, right = (_standard(x).reshape(x.shape) for x in (candidates, originals))
    spectra = torch.fft.rfft2(right)
    rows = []
    for one in left:
        forms = torch.stack([one, one.flip(-1)])[:, None]  # (2, 1, C, H, W)
        products = (torch.fft.rfft2(forms).conj() * spectra[None]).sum(2)  # (2, N, H, W / 2 + 1)
        every = torch.fft.irfft2(products, s=tuple(right.shape[-2:]))
        rows.append(every.abs().amax((0, 2, 3)))
    return torch.stack(rows)


def _standard(inputs: Tensor) -> Tensor:
    """Centred and of length 1, (N, ...) flattened; constant ones are 0."""
    flat = inputs.double().flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    length = centred.norm(dim=1, keepdim=True)
    floor = 1e-9 * flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return torch.where(length > floor, centred / length.clamp_min(1e-300), torch.zeros_like(centred))

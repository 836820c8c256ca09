"""Similarity of two batches of images (MSE, PSNR, SSIM), and total variation of one.

Shape letters: B images, C channels, H and W pixels. Each of these returns one number per image, ``(B,)``;
``mse``, ``ssim`` and ``total_variation`` are differentiable. The caller declares the pixel range; it is
never measured.
"""

from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.limits import Fix, Positive, check_value

PSNR_CAP = 100.0
"""Largest value that :func:`psnr` returns, dB: the PSNR of a mean squared error of 1e-10 at peak 1."""

_WINDOW = 11
_SIGMA = 1.5
_K1, _K2 = 0.01, 0.03


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference per image or other array, ``(B,)``: 0 for equal ones.

    Args:
        a: ``(B, ...)``, any unit; the result has that unit squared.
        b: ``(B, ...)``, any unit; the result has that unit squared.

    Raises:
        BadValue: the shapes differ, or are not those of a batch.

    Examples:
        >>> mse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)).tolist()
        [0.25]
    """
    _check_pair("mse", a, b, least=2)
    return (a - b).square().flatten(1).mean(1)


def psnr(a: Tensor, b: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio per image, ``(B,)``, dB; higher is more alike.

    ``10 log10(data_range² / mse)`` without clamping the images, capped at ``PSNR_CAP``: equal images would
    have infinite PSNR, and a mean over victims must stay finite. Two independent natural images give about
    8 to 10 dB at ``data_range`` 1.

    Args:
        a: ``(B, C, H, W)``.
        b: ``(B, C, H, W)``.
        data_range: largest minus smallest possible pixel. On [-1, 1] images with ``data_range`` 1, as in
            some papers, the PSNR is 6.02 dB lower than on [0, 1].

    Raises:
        BadValue: shapes differ, or ``data_range`` is not positive.

    Examples:
        >>> black = torch.zeros(2, 1, 1, 1)
        >>> psnr(black, torch.tensor([0.1, 0.0]).reshape(2, 1, 1, 1)).round(decimals=3).tolist()
        [20.0, 100.0]
    """
    _check_range("psnr", data_range)
    error = mse(a.double(), b.double()).clamp_min(data_range**2 * 10 ** (-PSNR_CAP / 10))
    return 10 * torch.log10(data_range**2 / error)


def ssim_window(height: int, width: int) -> int:
    """Side of the window that :func:`ssim` uses, pixels: 11, or the largest odd number that fits.

    Examples:
        >>> ssim_window(32, 32), ssim_window(8, 8)
        (11, 7)
    """
    side = min(_WINDOW, height, width)
    return side if side % 2 else side - 1


def ssim(a: Tensor, b: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Structural similarity per image, ``(B,)``, at most 1 (equal images); about 0 for unrelated ones.

    An 11 × 11 Gaussian window with standard deviation 1.5 pixels, constants 0.01 and 0.03, biased variances;
    averaged over channels and over the positions where the whole window lies in the image. Images smaller
    than 11 pixels use the largest odd window that fits and a Gaussian narrowed by the same factor (8 × 8:
    window 7, 0.95 pixels); their values are comparable with each other, not with those of larger images.

    Args:
        a: ``(B, C, H, W)``, floating point, H and W at least 3.
        b: ``(B, C, H, W)``, floating point, H and W at least 3.
        data_range: largest minus smallest possible pixel; fixes the constants.

    Raises:
        BadValue: shapes differ, an image is narrower than 3 pixels, or ``data_range`` is not positive.

    Source:
        Wang et al. 2004, "Image Quality Assessment", IEEE TIP 13(4), Section III.
    """
    _check_pair("ssim", a, b)
    _check_range("ssim", data_range)
    if min(a.shape[-2:]) < 3:
        raise BadValue(
            "metric 'ssim'",
            needs="images of at least 3 × 3 pixels",
            got=f"{a.shape[-2]} × {a.shape[-1]}",
            fix="use mse or psnr, which have no window",
        )
    b = b.to(a.dtype)
    down, across = ssim_filters(a.shape[-2], a.shape[-1], like=a)
    means = down @ torch.cat((a, b, a * a, b * b, a * b)) @ across.T
    mean_a, mean_b, square_a, square_b, product = torch.split(means, len(a))
    variance_a = (square_a - mean_a.square()).clamp_min(0.0)
    variance_b = (square_b - mean_b.square()).clamp_min(0.0)
    covariance = product - mean_a * mean_b
    c1, c2 = (_K1 * data_range) ** 2, (_K2 * data_range) ** 2
    contrast = (2 * covariance + c2) / (variance_a + variance_b + c2)
    luminance = (2 * (mean_a * mean_b) + c1) / (mean_a.square() + mean_b.square() + c1)
    return (luminance * contrast).flatten(1).mean(1)


def ssim_filters(height: int, width: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussian window of :func:`ssim` as two matrices: ``down @ image @ across.T`` are its local means.

    Two matrix products are several times faster than a convolution of small images in float64. The matrices
    are cached: do not modify them.

    Args:
        height: of the images, pixels.
        width: of the images, pixels.
        like: a tensor with the wanted dtype and device.
    """
    return _filters(height, width, like.dtype, like.device)


@lru_cache(maxsize=16)
def _filters(height: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    side = ssim_window(height, width)
    at = torch.arange(side, dtype=dtype, device=device) - (side - 1) / 2
    row = torch.exp(-((at / (_SIGMA * side / _WINDOW)) ** 2) / 2)
    return _slide(row / row.sum(), height), _slide(row / row.sum(), width)


def _slide(row: Tensor, length: int) -> Tensor:
    """``row`` shifted to every position where it fits, (length - side + 1, length)."""
    places = length - len(row) + 1
    columns = torch.arange(places, device=row.device)[:, None] + torch.arange(len(row), device=row.device)
    return row.new_zeros(places, length).scatter(1, columns, row.expand(places, -1))


def total_variation(x: Tensor) -> Tensor:
    """Anisotropic total variation per image, ``(B,)``: 0 for a constant image, larger for a rougher one.

    Mean of ``|difference|`` over horizontal neighbours plus the same over vertical neighbours (a direction
    with a single pixel contributes 0). Subgradient 0 at ties.

    Args:
        x: ``(B, C, H, W)``, any unit; the result has the same unit.

    Source:
        Rudin, Osher & Fatemi 1992; the anisotropic mean of Geiping et al. 2020, arXiv:2003.14053, Section 4.

    Examples:
        >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).tolist()
        [1.0]
    """
    _check_pair("total_variation", x, x)
    across, down = x.diff(dim=-1).abs().flatten(1), x.diff(dim=-2).abs().flatten(1)
    return across.sum(1) / max(across.shape[1], 1) + down.sum(1) / max(down.shape[1], 1)


def _check_pair(name: str, a: Tensor, b: Tensor, *, least: int = 4) -> None:
    if a.shape != b.shape or a.ndim < least or (least == 4 and a.ndim > 4) or a.numel() == 0:
        raise BadValue(
            f"metric '{name}'",
            needs="images of one shape (B, C, H, W), none of the sizes 0",
            got=f"{tuple(a.shape)} and {tuple(b.shape)}",
            fix="add the channel axis to grey images; pair reconstructions with originals first",
        )


def _check_range(name: str, data_range: float) -> None:
    hint = Annotated[Positive, Fix("give the width of the declared image range: 1.0 for [0, 1]")]
    check_value(f"metric '{name}'", "data_range", data_range, hint)

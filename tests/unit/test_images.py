"""Similarity of images: slow definitions, what must not matter, and where it refuses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d

from glasshouse.errors import BadValue
from glasshouse.images import PSNR_CAP, mse, psnr, ssim, ssim_filters, ssim_window, total_variation
from glasshouse.rng import Rng


def images(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_ssim(a: np.ndarray, b: np.ndarray, window: int, data_range: float) -> float:
    """Wang et al. 2004, Section III, one position and one channel at a time."""
    offset = np.arange(window) - window // 2
    bell = np.exp(-(offset**2) / (2 * (1.5 * window / 11) ** 2))
    weights = np.outer(bell, bell) / np.outer(bell, bell).sum()
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    items = []
    for x, y in zip(a, b, strict=True):
        for i in range(x.shape[0] - window + 1):
            for j in range(x.shape[1] - window + 1):
                p, q = x[i : i + window, j : j + window], y[i : i + window, j : j + window]
                mp, mq = (weights * p).sum(), (weights * q).sum()
                vp, vq = (weights * (p - mp) ** 2).sum(), (weights * (q - mq) ** 2).sum()
                cov = (weights * (p - mp) * (q - mq)).sum()
                items.append((2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(items))


@pytest.mark.parametrize(
    ("height", "width", "window"), [(8, 8, 7), (11, 11, 11), (9, 14, 9), (3, 5, 3), (13, 16, 11)]
)
@pytest.mark.parametrize("data_range", [1.0, 2.0])
def test_ssim_is_the_papers_formula_on_every_size(height, width, window, data_range):
    a, b = images(0, 2, 3, height, width), images(1, 2, 3, height, width)
    b = 0.7 * a + 0.3 * b  # similar images: the interesting range
    assert ssim_window(height, width) == window
    items = [slow_ssim(x.numpy(), y.numpy(), window, data_range) for x, y in zip(a, b, strict=True)]
    assert ssim(a, b, data_range=data_range).tolist() == pytest.approx(items, abs=1e-9)


def test_ssim_does_not_mix_images():
    a, b = images(0, 3, 1, 12, 12), images(1, 3, 1, 12, 12)
    alone = [float(ssim(a[i : i + 1], b[i : i + 1])) for i in range(3)]
    assert ssim(a, b).tolist() == pytest.approx(alone)


def test_ssim_of_equal_images_is_one_and_has_a_gradient():
    a = images(0, 2, 3, 8, 8).requires_grad_()
    assert ssim(a, a.detach()).tolist() == pytest.approx([1.0, 1.0])
    (gradient,) = torch.autograd.grad(ssim(a, images(1, 2, 3, 8, 8)).sum(), a)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


@given(st.integers(0, 10**6), st.sampled_from([1.0, 2.0, 255.0]))
@settings(max_examples=25, deadline=None)
def test_psnr_and_mse_are_their_definitions(seed, peak):
    a, b = images(seed, 2, 2, 3, 4), images(seed + 1, 2, 2, 3, 4)
    errors = [float(np.mean((x.numpy() - y.numpy()) ** 2)) for x, y in zip(a, b, strict=True)]
    assert mse(a, b).tolist() == pytest.approx(errors)
    assert psnr(a, b, data_range=peak).tolist() == pytest.approx(
        [10 * math.log10(peak**2 / e) for e in errors]
    )


@pytest.mark.parametrize("peak", [1.0, 2.0])
def test_psnr_of_equal_images_is_the_cap_whatever_the_range(peak):
    a = images(0, 1, 1, 4, 4)
    assert psnr(a, a, data_range=peak).tolist() == pytest.approx([PSNR_CAP])
    assert psnr(a, a + 1e-4, data_range=1.0).tolist() == pytest.approx([80.0])


def test_papers_convention_is_6_02_db_lower():
    a, b = images(0, 1, 3, 4, 4), images(1, 1, 3, 4, 4)
    ours, theirs = psnr(a, b), psnr(2 * a - 1, 2 * b - 1)
    assert float(ours - theirs) == pytest.approx(6.0206, abs=1e-4)


def test_total_variation_is_the_mean_step_in_both_directions():
    x = images(3, 2, 2, 4, 5)
    items = []
    for one in x:
        across = [abs(float(c[i, j] - c[i, j + 1])) for c in one for i in range(4) for j in range(4)]
        down = [abs(float(c[i, j] - c[i + 1, j])) for c in one for i in range(3) for j in range(5)]
        items.append(sum(across) / len(across) + sum(down) / len(down))
    assert total_variation(x).tolist() == pytest.approx(items)
    assert total_variation(x[..., :1]).isfinite().all()


def test_total_variation_pulls_neighbours_together():
    x = torch.tensor([[[[0.0, 1.0]]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(total_variation(x).sum(), x)
    assert gradient.flatten().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("function", [mse, psnr, ssim])
def test_refuses_images_that_do_not_pair(function):
    with pytest.raises(BadValue, match="one shape") as caught:
        function(torch.zeros(2, 1, 8, 8), torch.zeros(1, 1, 8, 8))
    assert caught.value.got == "(2, 1, 8, 8) and (1, 1, 8, 8)"
    with pytest.raises(BadValue, match="channel axis"):
        function(torch.zeros(8), torch.zeros(8))


def test_arrays_have_an_error_and_only_pictures_a_structure():
    volumes = torch.zeros(2, 1, 3, 4, 5)
    assert mse(volumes, volumes + 0.5).tolist() == [0.25, 0.25]
    with pytest.raises(BadValue, match="channel axis"):
        ssim(volumes, volumes)


def test_refuses_images_below_the_smallest_window():
    with pytest.raises(BadValue, match="at least 3 × 3"):
        ssim(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8))


@pytest.mark.parametrize("function", [psnr, ssim])
@pytest.mark.parametrize("width", [0.0, -1.0, math.inf, math.nan])
def test_refuses_a_range_that_is_none(function, width):
    with pytest.raises(BadValue, match="needs  data_range"):
        function(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8), data_range=width)


@pytest.mark.parametrize(("height", "width", "side"), [(64, 64, 11), (28, 32, 11), (8, 9, 7)])
def test_the_filter_of_ssim_is_a_convolution_with_a_gaussian_window(height, width, side):
    images = torch.rand((2, 1, height, width), generator=Rng.root(3).torch(), dtype=torch.float64)
    at = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    row = torch.exp(-at.square() / (2 * (1.5 * side / 11) ** 2))
    window = torch.outer(row, row) / row.sum().square()
    down, across = ssim_filters(height, width, like=images)
    assert torch.allclose(down @ images @ across.T, conv2d(images, window[None, None]), rtol=0, atol=1e-14)

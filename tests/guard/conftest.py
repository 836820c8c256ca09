"""What tests of several files try models on."""

import pytest
import torch
from benchmarks.guard import kinds
from sklearn.datasets import load_digits
from torch.nn import functional as F


@pytest.fixture(scope="session")
def dealt() -> kinds.Pictures:
    """Digits as pictures of 3 x 16 x 16, which differ in every pixel."""
    pixels, labels = load_digits(return_X_y=True)
    small = torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8)
    generator = torch.Generator().manual_seed(0)
    wide = F.interpolate(small, size=16).repeat(1, 3, 1, 1)
    noisy = wide + 0.2 * torch.rand(wide.shape, generator=generator)
    return kinds.pictures(noisy, torch.tensor(labels), 0)

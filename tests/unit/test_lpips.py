"""LPIPS where torchvision is missing, and the plumbing around it with a stand-in network."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glasshouse.errors import NotInstalled, Undefined
from glasshouse.metrics import lpips
from glasshouse.metrics.base import ScoreContext


def test_names_the_extra_where_torchvision_is_missing(monkeypatch):
    monkeypatch.setattr(lpips, "_MISSING", "ModuleNotFoundError: No module named 'torchvision'")
    with pytest.raises(NotInstalled, match=r"glasshouse\[vision\]") as caught:
        lpips.Lpips()
    assert "No module named 'torchvision'" in caught.value.got
    assert lpips.Lpips.card.extra == "vision"


def test_weights_that_cannot_be_fetched_are_not_installed(monkeypatch):
    def offline(**_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(lpips, "_MISSING", "")
    stand_in = SimpleNamespace(LearnedPerceptualImagePatchSimilarity=offline)
    monkeypatch.setattr(lpips, "lpip", stand_in, raising=False)
    lpips._network.cache_clear()
    with pytest.raises(NotInstalled, match="ImageNet weights of 'vgg'"):
        lpips.Lpips(net="vgg").score(
            torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32), context=ScoreContext()
        )


def test_pairs_rescales_and_repeats_grey(monkeypatch):
    items = []

    def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        items.append((tuple(a.shape), float(a.min()), float(b.max())))
        return (a - b).abs().mean()

    monkeypatch.setattr(lpips, "_MISSING", "")
    monkeypatch.setattr(lpips, "_network", lambda _: distance)
    truth = torch.stack((torch.full((1, 32, 32), -1.0), torch.full((1, 32, 32), 1.0)))
    values = lpips.Lpips().score(truth.flip(0), truth, context=ScoreContext(image_range=(-1.0, 1.0)))
    assert values.tolist() == [0.0, 0.0]
    assert items == [((1, 3, 32, 32), 0.0, 0.0), ((1, 3, 32, 32), 1.0, 1.0)]
    assert values.dtype == np.float64


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 4, 32, 32)])
def test_refuses_images_that_the_backbone_cannot_take(monkeypatch, shape):
    monkeypatch.setattr(lpips, "_MISSING", "")
    with pytest.raises(Undefined, match="at least 32 × 32"):
        lpips.Lpips().score(torch.rand(shape), torch.rand(shape), context=ScoreContext())

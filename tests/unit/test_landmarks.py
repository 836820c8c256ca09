"""The pictures of a legend have the numbers that stand beside them."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.landmarks import _photograph, landmarks
from glasshouse.metrics.reconstruction import Mse, Psnr, Ssim


@pytest.mark.parametrize("metric", [Ssim(), Psnr()])
def test_pictures_have_their_numbers(metric):
    rows = landmarks(metric)
    assert [number for number, _, _ in rows] == sorted((n for n, _, _ in rows), reverse=True)
    for number, _, picture in rows:
        data = base64.b64decode(picture.removeprefix("data:image/png;base64,"))
        pixels = np.asarray(Image.open(io.BytesIO(data)), dtype=np.float32) / 255
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        value = float(metric.score(image, _photograph(), context=ScoreContext())[0])
        assert value == pytest.approx(number, rel=0.01)


def test_a_metric_without_landmarks_has_no_pictures():
    assert landmarks(Mse()) == []

"""Built-in colour images: crops of the two photographs that come with scikit-learn."""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glasshouse.data.base import DataSource, assemble_built_in
from glasshouse.data.kinds.shipped import shipped_file
from glasshouse.data.paths import refuse_path
from glasshouse.data.survey import Survey, counted_by, survey_of
from glasshouse.registry import Card

SIDE: Final = 32


def _count(where: str) -> Survey:
    return survey_of(photos(where))  # they are few, and read once


@counted_by(_count)
@Card(
    summary="520 crops of two photographs, a temple and a flower, 32x32 in colour; no download; "
    "train 390, test 130",
    source="china.jpg and flower.jpg, shipped with scikit-learn",
)
@lru_cache(maxsize=2)
def photos(where: str, *, resize: int | None = None) -> DataSource:
    """Non-overlapping crops; the class is the photograph. Every fourth crop is in the test split.

    All crops come from two photographs and neighbours look alike, so auxiliary crops are more useful to an
    adversary than other photographs would be.

    Raises:
        BadValue: ``where`` is not empty; this source takes no path.
    """
    refuse_path("photos", where)
    names = ("china", "flower")
    crops = [_crops(np.asarray(Image.open(shipped_file("images", f"{name}.jpg")))) for name in names]
    images = np.concatenate(crops)
    labels = np.repeat(np.arange(len(crops)), [len(part) for part in crops])
    return assemble_built_in("photos", images, labels, list(names), resize)


def _crops(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Crops (N, SIDE, SIDE, 3), row by row; the remainder at the right and bottom is dropped."""
    rows, columns = picture.shape[0] // SIDE, picture.shape[1] // SIDE
    cut = picture[: rows * SIDE, : columns * SIDE].reshape(rows, SIDE, columns, SIDE, 3)
    return cut.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)

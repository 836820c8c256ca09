"""The built-in data: handwritten digits that come with scikit-learn."""

from functools import lru_cache

import numpy as np

from glasshouse.data.base import DataSource, assemble_built_in
from glasshouse.data.kinds.shipped import shipped_file
from glasshouse.data.paths import refuse_path
from glasshouse.data.survey import Survey, counted_by, survey_of
from glasshouse.registry import Card


def _count(where: str) -> Survey:
    return survey_of(digits(where))  # they are few, and read once


@counted_by(_count)
@Card(
    summary="1,797 handwritten digits, 8x8, 10 classes; no download; train 1,347, test 450",
    source="Alpaydin & Kaynak 1998, UCI repository; shipped with scikit-learn",
)
@lru_cache(maxsize=2)
def digits(where: str, *, resize: int | None = None) -> DataSource:
    """The digits, grey values 0..16 scaled to 0..255. Every fourth image is the test split.

    Raises:
        BadValue: ``where`` is not empty; this source takes no path.
    """
    refuse_path("digits", where)
    rows = np.loadtxt(shipped_file("data", "digits.csv.gz"), delimiter=",")  # 64 grey values and the digit
    images = np.round(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return assemble_built_in("digits", images, rows[:, -1].astype(np.int64), list("0123456789"), resize)

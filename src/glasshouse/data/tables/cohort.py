"""``cohort``: follow-up of a made-up cohort, drawn from a fixed seed: nobody's data, so it may be shown."""

from functools import lru_cache
from typing import Final

import numpy as np
import torch

from glasshouse.data.base import DataSource
from glasshouse.data.paths import refuse_path
from glasshouse.data.shaped.arrays import assemble_examples
from glasshouse.modalities.row import Column, Row
from glasshouse.registry import Card

ROWS: Final = 4000
DAYS: Final = 1095
TABLE: Final = Row(
    columns=(
        Column(name="time", kind="integer", low=0, high=DAYS),
        Column(name="age", kind="integer", low=18, high=98),
        Column(name="sex", kind="binary", levels=("female", "male")),
        Column(name="treatment", kind="categorical", levels=("none", "standard", "new")),
        Column(name="stage", kind="categorical", levels=("I", "II", "III", "IV")),
    )
)


@Card(
    summary="4,000 rows of a made-up cohort: days of follow-up and 4 columns; target: died; train 3,000, "
    "test 1,000"
)
@lru_cache(maxsize=2)
def cohort(where: str, *, resize: int | None = None) -> DataSource:
    """Lives by a Weibull law, losses evenly over three years; every fourth row is in the test split.

    Raises:
        BadValue: ``where`` is not empty; this source takes no path.
    """
    del resize  # for pictures only
    refuse_path("cohort", where)
    draws = np.random.default_rng(2027)
    age = np.clip(np.round(draws.normal(64, 12, ROWS)), 18, 98)
    sex, treatment = draws.integers(2, size=ROWS), draws.choice(3, ROWS, p=(0.2, 0.5, 0.3))
    stage = draws.choice(4, ROWS, p=(0.3, 0.3, 0.25, 0.15))
    scale = 900 * np.exp(-0.015 * (age - 64) - 0.35 * (stage - 1) + 0.2 * treatment)
    lives = np.ceil(scale * draws.weibull(1.2, ROWS))
    leaves = np.ceil(draws.uniform(0.25, 1, ROWS) * DAYS)
    values = np.stack([np.minimum(lives, leaves), age, sex, treatment, stage], 1).astype(np.float64)
    target = (lives <= leaves).astype(np.int64)
    inputs = TABLE.encode(torch.from_numpy(values)).numpy()
    test = np.arange(ROWS) % 4 == 3
    parts = {split: (inputs[own], target[own]) for split, own in (("train", ~test), ("test", test))}
    return assemble_examples("cohort", parts, inputs=TABLE, class_names=("censored", "died"))

"""``clinic``: rows of a made-up clinic, drawn from a fixed seed: nobody's data, so that they may be shown."""

from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from glasshouse.data.base import DataSource
from glasshouse.data.paths import refuse_path
from glasshouse.data.shaped.arrays import assemble_examples
from glasshouse.modalities.row import Column, Row
from glasshouse.registry import Card

ROWS: Final = 6000
TABLE: Final = Row(
    columns=(
        Column(name="age", kind="integer", low=18, high=98),
        Column(name="sex", kind="categorical", levels=("female", "male")),
        Column(name="region", kind="categorical", levels=tuple(f"region {i}" for i in range(1, 13))),
        Column(name="diagnosis", kind="categorical", levels=tuple(f"code {i}" for i in range(1, 17))),
        Column(name="blood group", kind="categorical", levels=("0", "A", "B", "AB")),
        Column(name="smokes", kind="categorical", levels=("never", "earlier", "now")),
        Column(name="bmi", kind="continuous", low=14, high=60, tolerance=0.05),
        Column(name="systolic", kind="integer", low=80, high=230),
        Column(name="visits", kind="integer", low=0, high=40),
    )
)


@Card(summary="6,000 rows of a made-up clinic, 9 columns; target: readmitted; train 4,500, test 1,500")
@lru_cache(maxsize=2)
def clinic(where: str, *, resize: int | None = None) -> DataSource:
    """Rows drawn once from a fixed seed; every fourth one is in the test split.

    Raises:
        BadValue: ``where`` is not empty; this source takes no path.
    """
    del resize  # for pictures only
    refuse_path("clinic", where)
    values, target = _drawn(np.random.default_rng(2026))
    inputs = TABLE.encode(torch.from_numpy(values)).numpy()
    test = np.arange(ROWS) % 4 == 3
    parts = {split: (inputs[own], target[own]) for split, own in (("train", ~test), ("test", test))}
    return assemble_examples("clinic", parts, inputs=TABLE, class_names=("no", "yes"))


def _drawn(draws: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Values (N, C) and whether each was readmitted (N,): the old, heavy and often seen are, more often."""
    age = np.clip(np.round(draws.normal(58, 17, ROWS)), 18, 98)
    sex = draws.integers(2, size=ROWS)
    region = draws.choice(12, ROWS, p=_falling(12))
    diagnosis = (draws.choice(16, ROWS, p=_falling(16)) + (age > 65) * draws.integers(3, size=ROWS)) % 16
    blood = draws.choice(4, ROWS, p=(0.42, 0.43, 0.11, 0.04))
    smokes = draws.choice(3, ROWS, p=(0.5, 0.3, 0.2))
    bmi = np.clip(np.round(draws.gamma(30, 0.9, ROWS) + 0.02 * age, 1), 14, 60)
    systolic = np.clip(np.round(105 + 0.35 * age + 0.5 * bmi + draws.normal(0, 14, ROWS)), 80, 230)
    visits = np.minimum(draws.poisson(1 + 0.05 * age + (diagnosis < 4)), 40)
    risk = -6.4 + 0.04 * age + 0.05 * bmi + 0.25 * visits + 0.5 * (smokes == 2) + 0.6 * (diagnosis < 3)
    target = (draws.random(ROWS) < 1 / (1 + np.exp(-risk))).astype(np.int64)
    values = [age, sex, region, diagnosis, blood, smokes, bmi, systolic, visits]
    return np.stack(values, 1).astype(np.float64), target


def _falling(levels: int) -> NDArray[np.float64]:
    """Shares of levels, each smaller than the one before."""
    weight = 1 / np.arange(1, levels + 1)
    return np.asarray(weight / weight.sum())
